//! Placement of records in blocks.

use super::*;
use crate::format::geometry;
use std::os::unix::fs::FileExt;

/// Four times the size of the test files, 1 MiB.
const BLOCK: u32 = 4 << 20;

/// Files of a quarter of a block are adjacent, each with its entry; one that does not fit into the block is split.
#[test]
fn files_follow_each_other_without_holes() {
    let bed = Bed::new(Geometry { block_size: BLOCK, lanes: 1 });
    let mut writer = bed.writer(0, 0);
    let data = bytes(2, 1 << 20);
    let mut split = 0;
    for version in 1..=16 {
        let begun = writer.end();
        let (entry, put) =
            writer.put(format!("f{version}").as_bytes(), version, node(FileKind::File), &data).expect("put");
        match entry.node.expect("a node").content {
            Content::Here => assert_eq!(put.address, begun),
            Content::Extents(extents) => {
                let ends_block = extents[1].address.is_multiple_of(BLOCK.into());
                assert!(extents.len() == 2 && extents[0].address == begun && ends_block, "{extents:?}");
                split += 1;
            }
        }
    }
    assert_eq!(split, 4);
    // The rest is heads and entries.
    assert!(writer.end() < (16 << 20) + (16 << 10), "{}", writer.end());
    writer.sync().expect("synced");
    let container = bed.by_records();
    for version in 1..=16 {
        let path = format!("f{version}");
        assert!(content(&container, path.as_bytes()) == Ok(data.clone()), "{path}");
    }
}

/// If hardly anything of the block is left, a file goes to the next one with its entry.
#[test]
fn a_small_rest_of_a_block_stays_unused() {
    let bed = Bed::new(Geometry { block_size: BLOCK, lanes: 1 });
    let mut writer = bed.writer(0, 0);
    writer.put(b"most", 1, node(FileKind::File), &bytes(2, (4 << 20) - (100 << 10))).expect("put");
    let (entry, put) = writer.put(b"next", 2, node(FileKind::File), &bytes(4, 1 << 20)).expect("put");
    assert_eq!((entry.node.expect("a node").content, put.address), (Content::Here, BLOCK.into()));
}

/// A block may be larger than a writer's buffer.
#[test]
fn a_block_is_written_before_it_is_full() {
    let bed = Bed::new(Geometry { block_size: 64 << 20, lanes: 2 });
    let mut writer = bed.writer(0, 1);
    let data = bytes(2, 12 << 20);
    let (mut extents, mut started) = (Vec::new(), 0);
    for piece in data.chunks(512 << 10) {
        writer.put_pieces(started, piece, &mut extents).expect("put");
        started += piece.len() as u64;
        let unwritten = extents.iter().filter(|extent| !writer.has_written(extent.address));
        assert!(unwritten.map(|extent| extent.length).sum::<u32>() < 4 << 20);
    }
    // One large write is split into records.
    let whole = writer.put(b"whole", 1, node(FileKind::File), &bytes(4, 40 << 20)).expect("put").0;
    let Content::Extents(pieces) = whole.node.expect("a node").content else { panic!("it is large") };
    assert!(pieces.iter().all(|piece| piece.length <= 4 << 20), "{pieces:?}");
    let node = Node { size: started, content: Content::Extents(extents), ..node(FileKind::File) };
    writer.put_entry(b"pieces", 2, Some(node), &[]).expect("put");
    writer.sync().expect("synced");
    let container = bed.by_records();
    assert!(content(&container, b"pieces") == Ok(data));
    assert!(content(&container, b"whole") == Ok(bytes(4, 40 << 20)));
    assert_eq!(container.damage(), &[]);
}

/// The same with a write-behind thread, which has larger buffers.
#[test]
fn a_long_block_is_written_behind_in_portions() {
    let bed = Bed::new(Geometry { block_size: 64 << 20, lanes: 2 });
    let mut writer = bed.writer(0, 1);
    writer.write_behind().expect("a thread");
    let data = bytes(2, 50 << 20);
    let mut extents = Vec::new();
    for (index, piece) in data.chunks(512 << 10).enumerate() {
        writer.put_pieces((index * (512 << 10)) as u64, piece, &mut extents).expect("put");
        let written = extents.iter().take_while(|extent| writer.has_written(extent.address)).count();
        let unwritten: u32 = extents[written..].iter().map(|extent| extent.length).sum();
        // One buffer is written, one is filled.
        assert!(unwritten <= 33 << 20, "{unwritten}");
    }
    let node = Node { size: 50 << 20, content: Content::Extents(extents), ..node(FileKind::File) };
    writer.put_entry(b"pieces", 1, Some(node), &[]).expect("put");
    writer.sync().expect("synced");
    assert!(content(&bed.by_records(), b"pieces") == Ok(data));
}

/// A power failure may lose an unsynced `End` record that an index covers. The next incarnation is found all the same.
#[test]
fn entries_after_a_lost_end_record_are_found() {
    // No data, a part of a block, and a whole block.
    for size in [None, Some(100), Some((64 << 10) - 200)] {
        let bed = Bed::new(Geometry { block_size: 64 << 10, lanes: 1 });
        let mut container = Container::open(bed.fs()).expect("it opens");
        let mut writer = bed.writer(0, 0);
        if let Some(size) = size {
            let (entry, record) = writer
                .put_entry(b"first", 1, Some(Node { size, ..node(FileKind::File) }), &bytes(2, size as usize))
                .expect("put");
            container.add(IndexEntry {
                path: entry.path,
                version: 1,
                lane: writer.lane(),
                address: record.address,
                record_size: record.size,
                node: entry.node.as_ref().map(Brief::of),
            });
        }
        writer.sync().expect("synced");
        let durable = std::fs::metadata(bed.subfile(0)).expect("a subfile").len();
        container.end_writer(writer).expect("ended");
        container.write_index().expect("an index");
        let file = std::fs::File::options().write(true).open(bed.subfile(0)).expect("open");
        file.set_len(durable).expect("lost");
        file.write_all_at(&1_u32.to_le_bytes(), geometry::INCARNATIONS_AT).expect("lost");

        let mut writer = bed.writer(0, 0);
        put(&mut writer, b"second", 2, b"of the next incarnation");
        writer.sync().expect("synced");
        let container = Container::open(bed.fs()).expect("it opens");
        assert!(container.has_index() && container.damage().is_empty(), "{size:?}: {:?}", container.damage());
        assert_eq!(content(&container, b"second"), Ok(b"of the next incarnation".to_vec()), "{size:?}");
        assert_eq!(paths(&container).len(), 1 + usize::from(size.is_some()), "{size:?}");
    }
}
