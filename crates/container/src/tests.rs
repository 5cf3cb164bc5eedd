mod indexes;
mod large_reads;
mod many_readers;
mod many_subfiles;
mod placement;
mod snapshot;

use super::*;
use crate::format::subfile;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tameike_core::{Errno, FileKind, Timestamp};
use tameike_io::shared::{PosixTree, SharedFs};
use tempfile::TempDir;

const GEOMETRY: Geometry = Geometry { block_size: 64 << 10, lanes: 2 };

struct Bed {
    dir: TempDir,
    superblock: Superblock,
}

impl Bed {
    fn new(geometry: Geometry) -> Self {
        let bed = Self {
            dir: tempfile::tempdir().expect("a directory"),
            superblock: Superblock { container: 0x1122_3344_5566_7788, geometry },
        };
        bed.superblock.create(&*bed.fs()).expect("a container");
        bed
    }

    fn fs(&self) -> Arc<dyn SharedFs> {
        Arc::new(PosixTree::open(self.dir.path()).expect("a tree"))
    }

    fn writer(&self, subfile: u32, lane: u32) -> LaneWriter {
        let subfile =
            subfile::Subfile::open_or_create(&*self.fs(), self.superblock, subfile).expect("a subfile");
        LaneWriter::claim(subfile, self.superblock, lane, true).expect("locks").expect("the lane is free")
    }

    fn by_records(&self) -> Container {
        Container::open_by_records(self.fs()).expect("it opens")
    }

    /// Writes the index; at most `sorted_max` entries are sorted in memory.
    fn close(&self, sorted_max: usize) {
        let container = self.by_records();
        let mut index = IndexBuilder::with_memory_for(self.fs(), self.superblock.container, sorted_max)
            .expect("a builder");
        let entries: Vec<_> =
            container.walk().expect("a walk").map(|entry| entry.expect("an entry")).collect();
        // Older entries of a path must not count, in any order.
        let older = entries.iter().map(|entry| IndexEntry { version: 0, ..entry.clone() });
        entries.iter().cloned().chain(older).for_each(|entry| index.add(entry).expect("added"));
        index.finish(&container.ends()).expect("an index");
    }

    fn subfile(&self, number: u32) -> std::path::PathBuf {
        let name = subfile::name(number);
        self.dir.path().join(String::from_utf8(name).expect("a name"))
    }
}

fn node(kind: FileKind) -> Node {
    Node::new(kind, 0o640, (1000, 100), Timestamp { seconds: 1_700_000_000, nanoseconds: 5 })
}

/// Bytes derived from a seed; those of odd seeds are compressible.
fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if seed % 2 == 1 { state as u8 & 0x11 } else { state as u8 }
    };
    std::iter::repeat_with(next).take(size).collect()
}

fn content(container: &Container, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut file = container.file(path).map_err(|fault| fault.errno)?;
    let mut all = vec![0; file.node().size as usize];
    let count = file.read_at(&mut all, 0).map_err(|fault| fault.errno)?;
    assert_eq!(count, all.len());
    Ok(all)
}

fn paths(container: &Container) -> Vec<Vec<u8>> {
    container.walk().expect("a walk").map(|entry| entry.expect("an entry").path).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Put { lane: u32, path: u8, size: usize },
    Remove { lane: u32, path: u8 },
    Sync { lane: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let sizes = prop_oneof![Just(0_usize), 1..500_usize, 10_000..20_000_usize, 100_000..600_000_usize];
    prop_oneof![
        6 => (0..4_u32, 0..12_u8, sizes).prop_map(|(lane, path, size)| Op::Put { lane, path, size }),
        1 => (0..4_u32, 0..12_u8).prop_map(|(lane, path)| Op::Remove { lane, path }),
        2 => (0..4_u32).prop_map(|lane| Op::Sync { lane }),
    ]
}

fn path_of(number: u8) -> Vec<u8> {
    match number % 3 {
        0 => format!("f{number}"),
        1 => format!("d/f{number}"),
        _ => format!("d/e/f{number}"),
    }
    .into_bytes()
}

/// Runs all operations on four lanes of two subfiles, and syncs. Returns the final content of each path.
fn run(bed: &Bed, ops: &[Op]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut writers: Vec<_> = (0..4).map(|number| bed.writer(number / 2, number % 2)).collect();
    // One writer of each subfile does not compress.
    writers[1..3].iter_mut().for_each(|writer| writer.set_codec(Codec::Zstd).expect("a codec"));
    let mut model = BTreeMap::new();
    for (version, op) in (1..).zip(ops) {
        match *op {
            Op::Put { lane, path, size } => {
                let data = bytes(version, size);
                writers[lane as usize]
                    .put(&path_of(path), version, node(FileKind::File), &data)
                    .expect("put");
                model.insert(path_of(path), data);
            }
            Op::Remove { lane, path } => {
                writers[lane as usize].put_entry(&path_of(path), version, None, &[]).expect("removed");
                model.remove(&path_of(path));
            }
            Op::Sync { lane } => writers[lane as usize].sync().expect("synced"),
        }
    }
    writers.iter_mut().for_each(|writer| writer.sync().expect("synced"));
    model
}

fn assert_is(container: &Container, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut expected: Vec<_> = model.keys().cloned().collect();
    expected.sort_by_key(|path| (split_path(path).0.to_vec(), path.clone()));
    assert_eq!(paths(container), expected);
    for (path, data) in model {
        assert_eq!(
            &content(container, path).expect("it is there"),
            data,
            "{}",
            String::from_utf8_lossy(path)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_newest_version_is_found_with_and_without_an_index(ops in proptest::collection::vec(op(), 1..60), sorted in 1..9_usize) {
        let bed = Bed::new(GEOMETRY);
        let model = run(&bed, &ops);
        let container = bed.by_records();
        prop_assert_eq!(container.damage(), &[]);
        assert_is(&container, &model);
        bed.close(sorted);
        let container = Container::open(bed.fs()).expect("it opens");
        prop_assert!(container.has_index());
        assert_is(&container, &model);
        for name in std::fs::read_dir(bed.dir.path()).expect("a directory") {
            let name = name.expect("a name").file_name();
            prop_assert!(!name.to_string_lossy().contains("run"), "{name:?}");
        }
    }

    #[test]
    fn small_reads_return_the_same_bytes_as_one_large_read(size in 0..700_000_usize, reads in proptest::collection::vec((0..700_000_u64, 0..9_000_usize), 1..40)) {
        let bed = Bed::new(GEOMETRY);
        let data = bytes(7, size);
        let mut writer = bed.writer(0, 1);
        writer.set_codec(Codec::Zstd).expect("a codec");
        writer.put(b"file", 1, node(FileKind::File), &data).expect("put");
        writer.sync().expect("synced");
        let container = bed.by_records();
        let mut file = container.file(b"file").expect("it is there");
        for (offset, length) in reads {
            let mut some = vec![0xa5; length];
            let count = file.read_at(&mut some, offset).expect("read");
            let start = size.min(offset as usize);
            let end = size.min(start + length);
            prop_assert_eq!(&some[..count], &data[start..end]);
        }
    }

    /// A crashed writer leaves its subfile truncated at any byte; a power failure also leaves holes in what was not synced.
    #[test]
    fn synced_entries_survive_truncation_at_any_byte(
        before in proptest::collection::vec(op(), 1..20), after in proptest::collection::vec(op(), 1..20), cut in 0..=1000_u64, holes: bool,
    ) {
        let bed = Bed::new(Geometry { lanes: 1, ..GEOMETRY });
        let on_one = |ops: &[Op]| -> Vec<Op> {
            ops.iter().filter(|op| !matches!(op, Op::Sync { .. })).cloned().map(|op| match op {
                Op::Put { path, size, .. } => Op::Put { lane: 0, path, size },
                Op::Remove { path, .. } => Op::Remove { lane: 0, path },
                Op::Sync { .. } => op,
            }).collect()
        };
        let mut writer = bed.writer(0, 0);
        let (mut model, mut later) = (BTreeMap::new(), BTreeMap::<Vec<u8>, Vec<Option<Vec<u8>>>>::new());
        let (before, after) = (on_one(&before), on_one(&after));
        let mut versions = 1..;
        let mut apply = |writer: &mut LaneWriter, op: &Op| {
            let version = versions.next().expect("endless");
            match *op {
                Op::Put { path, size, .. } => {
                    let data = bytes(version, size);
                    writer.put(&path_of(path), version, node(FileKind::File), &data).expect("put");
                    (path_of(path), Some(data))
                }
                Op::Remove { path, .. } => {
                    writer.put_entry(&path_of(path), version, None, &[]).expect("removed");
                    (path_of(path), None)
                }
                Op::Sync { .. } => unreachable!("left out"),
            }
        };
        for op in &before {
            let (path, data) = apply(&mut writer, op);
            match data {
                Some(data) => model.insert(path, data),
                None => model.remove(&path),
            };
        }
        writer.sync().expect("synced");
        let synced = std::fs::metadata(bed.subfile(0)).expect("a subfile").len();
        for op in &after {
            let (path, data) = apply(&mut writer, op);
            later.entry(path).or_default().push(data);
        }
        // Written, but not synced.
        writer.write_pending().expect("written");
        let file = std::fs::OpenOptions::new().write(true).open(bed.subfile(0)).expect("a subfile");
        let end = file.metadata().expect("a size").len();
        let at = synced + (end - synced) * cut / 1000;
        if holes {
            file.write_all_at(&vec![0; (end - at).min(40_000) as usize], at).expect("holes written");
        } else {
            file.set_len(at).expect("truncated");
        }
        let container = bed.by_records();
        for path in model.keys().chain(later.keys()) {
            let found = match content(&container, path) {
                Ok(data) => Some(data),
                Err(errno) => {
                    prop_assert_eq!(errno, Errno::ENOENT);
                    None
                }
            };
            let is_later = later.get(path).is_some_and(|later| later.contains(&found));
            prop_assert!(found == model.get(path).cloned() || is_later, "{}", String::from_utf8_lossy(path));
        }
    }

    #[test]
    fn damage_is_reported_and_other_files_are_intact(ops in proptest::collection::vec(op(), 1..40), places in proptest::collection::vec((0..2_u32, 0..1_000_000_u64, 0..8_u32), 1..4), indexed: bool) {
        let bed = Bed::new(GEOMETRY);
        let model = run(&bed, &ops);
        if indexed {
            bed.close(100);
        }
        for (subfile, place, bit) in places {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(bed.subfile(subfile)).expect("a subfile");
            let size = file.metadata().expect("a size").len();
            let first = GEOMETRY.offset(0, 0);
            if size <= first {
                continue;
            }
            let place = first + place * (size - first) / 1_000_000;
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).expect("read");
            file.write_all_at(&[byte[0] ^ (1 << bit)], place).expect("damaged");
        }
        let container = Container::open(bed.fs()).expect("it opens");
        let mut damaged = container.damage().len();
        let mut lost = 0;
        for (path, data) in &model {
            match content(&container, path) {
                Ok(found) if found == *data => {}
                // Without an index, an older version is visible if the newest record is damaged; the damage is reported.
                Ok(_) | Err(Errno::ENOENT) if !indexed => lost += 1,
                Err(Errno::EIO) => {
                    let entry = container.find(path).expect("an index").expect("it is there");
                    prop_assert!(!container.check(&entry).expect("checked").is_empty());
                    lost += 1;
                    damaged += 1;
                }
                other => prop_assert!(false, "{}: {other:?}", String::from_utf8_lossy(path)),
            }
        }
        prop_assert!(lost == 0 || damaged > 0);
    }

    #[test]
    fn readers_survive_arbitrary_bytes(rubbish in proptest::collection::vec(any::<u8>(), 0..5_000), at in 0..200_000_u64, name in 0..4_usize) {
        let bed = Bed::new(GEOMETRY);
        let ops: Vec<_> = (0..12).map(|path| Op::Put { lane: u32::from(path % 4), path, size: 30_000 }).collect();
        run(&bed, &ops);
        bed.close(100);
        let path = match name {
            0 => bed.dir.path().join("index"),
            1 => bed.dir.path().join("container"),
            number => bed.subfile(number as u32 - 2),
        };
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        let at = at % file.metadata().expect("a size").len();
        file.write_all_at(&rubbish, at).expect("written");
        for container in [Container::open(bed.fs()), Container::open_by_records(bed.fs())].into_iter().flatten() {
            let entries: Vec<_> = container.walk().into_iter().flatten().flatten().collect();
            for entry in entries {
                let _ = container.check(&entry);
            }
        }
    }
}

#[test]
fn directories_links_and_attributes_are_kept() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    let link = Node { target: b"../somewhere".to_vec(), ..node(FileKind::Symlink) };
    let xattrs = vec![Xattr { name: b"user.unit".to_vec(), value: vec![0, 255] }];
    writer.put(b"d", 1, node(FileKind::Directory), &[]).expect("put");
    writer.put(b"d/link", 2, link.clone(), &[]).expect("put");
    writer
        .put(b"d/file", 3, Node { xattrs: xattrs.clone(), ..node(FileKind::File) }, b"content")
        .expect("put");
    writer.put(b"d/e/deep", 4, node(FileKind::File), b"x").expect("put");
    writer.put(b"dd", 5, node(FileKind::File), b"y").expect("put");
    writer.sync().expect("synced");
    for _ in 0..2 {
        let container = Container::open(bed.fs()).expect("it opens");
        let names = |dir: &'static [u8]| -> Vec<_> {
            container.children(dir).expect("a directory").map(|entry| entry.expect("an entry").path).collect()
        };
        assert_eq!(names(b""), [&b"d"[..], b"dd"]);
        assert_eq!(names(b"d"), [&b"d/file"[..], b"d/link"]);
        assert_eq!(names(b"d/e"), [b"d/e/deep"]);
        assert_eq!(container.file(b"d/link").expect("a link").node(), &link);
        assert_eq!(container.file(b"d/file").expect("a file").node().xattrs, xattrs);
        assert_eq!(content(&container, b"d").expect_err("a directory"), Errno::EISDIR);
        bed.close(2);
    }
}

#[test]
fn invalid_paths_are_refused() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    for path in [&b""[..], b"/a", b"a/", b"a//b", b"..", b"a/../b", b"./a", b"a\0b", &[b'x'; 256]] {
        writer.put(path, 1, node(FileKind::File), b"").expect_err("no path");
    }
}

#[test]
fn directories_that_are_no_containers_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = || Arc::new(PosixTree::open(dir.path()).expect("a tree"));
    let why = Container::open(fs()).err().expect("no container").to_string();
    assert!(why.contains("no file `container`"), "{why}");
    std::fs::write(dir.path().join("container"), [7; 32]).expect("written");
    let why = Container::open(fs()).err().expect("no container").to_string();
    assert!(why.contains("no container"), "{why}");
    let impossible = Superblock { container: 1, geometry: Geometry { block_size: 5000, lanes: 1 } };
    let why = impossible.create(&*fs()).expect_err("impossible").to_string();
    assert!(why.contains("power of two"), "{why}");
}

fn put(writer: &mut LaneWriter, path: &[u8], version: u64, data: &[u8]) {
    writer.put(path, version, node(FileKind::File), data).expect("put");
}

#[test]
fn a_lane_has_one_writer_at_a_time_and_the_next_one_appends() {
    let bed = Bed::new(GEOMETRY);
    let mut first = bed.writer(0, 0);
    let subfile = subfile::Subfile::open_or_create(&*bed.fs(), bed.superblock, 0).expect("a subfile");
    assert!(LaneWriter::claim(subfile, bed.superblock, 0, true).expect("locks").is_none());
    put(&mut first, b"a", 1, b"one");
    first.finish().expect("finished");
    for round in 2..5 {
        let mut next = bed.writer(0, 0);
        put(&mut next, format!("b{round}").as_bytes(), round, &bytes(round, 100_000));
        put(&mut next, b"a", round, &bytes(round, 10));
        // One of them crashes.
        if round == 3 {
            next.sync().expect("synced");
        } else {
            next.finish().expect("finished");
        }
    }
    let container = bed.by_records();
    assert_eq!(container.damage(), &[]);
    assert_eq!(content(&container, b"a").expect("there"), bytes(4, 10));
    for round in 2..5 {
        assert_eq!(
            content(&container, format!("b{round}").as_bytes()).expect("there"),
            bytes(round, 100_000)
        );
    }
}

#[test]
fn entries_added_after_the_index_are_found() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    (0..50_u64)
        .for_each(|number| put(&mut writer, format!("d/{number}").as_bytes(), 1, &bytes(number, 3000)));
    writer.finish().expect("finished");
    bed.close(7);
    assert!(Container::open(bed.fs()).expect("it opens").is_indexed());
    // In the same lane, in another one, and in another subfile.
    for (subfile, lane) in [(0, 0), (0, 1), (3, 1)] {
        let mut writer = bed.writer(subfile, lane);
        put(&mut writer, b"d/7", u64::from(10 + subfile + lane), format!("{subfile} {lane}").as_bytes());
        put(&mut writer, format!("e/{subfile}.{lane}").as_bytes(), 5, b"new");
        writer.put_entry(b"d/9", 5, None, &[]).expect("removed");
        writer.finish().expect("finished");
    }
    let container = Container::open(bed.fs()).expect("it opens");
    assert!(container.has_index() && !container.is_indexed());
    assert_eq!(content(&container, b"d/7").expect("there"), b"3 1");
    assert_eq!(content(&container, b"d/9"), Err(Errno::ENOENT));
    assert_eq!(content(&container, b"d/8").expect("there"), bytes(8, 3000));
    let names = |dir: &'static [u8]| container.children(dir).expect("a directory").count();
    assert_eq!((names(b"d"), names(b"e")), (49, 3));
    let walked = paths(&container);
    bed.close(5);
    let indexed = Container::open(bed.fs()).expect("it opens");
    assert!(indexed.is_indexed());
    assert_eq!(paths(&indexed), walked);
}

#[test]
fn refresh_shows_entries_synced_meanwhile() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 1);
    let mut container = Container::open(bed.fs()).expect("it opens");
    for round in 1..40_u64 {
        put(&mut writer, b"again", round, &bytes(round, 9000));
        if round % 3 == 0 {
            writer.sync().expect("synced");
            container.refresh().expect("refreshed");
            assert_eq!(content(&container, b"again").expect("there"), bytes(round, 9000));
        }
    }
    assert_eq!(container.damage(), &[]);
}

/// An incomplete record is not valid, and is scanned again.
#[test]
fn an_incomplete_record_is_read_by_a_refresh_once_it_is_complete() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    put(&mut writer, b"before", 1, b"x");
    writer.sync().expect("synced");
    put(&mut writer, b"half", 1, &bytes(3, 12_000));
    put(&mut writer, b"behind", 1, b"y");
    writer.write_pending().expect("written");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(bed.subfile(0)).expect("a subfile");
    let whole = std::fs::read(bed.subfile(0)).expect("a subfile");
    let at = whole.len() as u64 - 8000;
    file.write_all_at(&[0; 4000], at).expect("torn");
    let mut container = Container::open(bed.fs()).expect("it opens");
    assert_eq!(content(&container, b"half"), Err(Errno::ENOENT));
    assert_eq!(content(&container, b"behind").expect("whole"), b"y");
    assert_eq!(container.damage().len(), 1);
    file.write_all_at(&whole[at as usize..], at).expect("the rest");
    container.refresh().expect("refreshed");
    assert_eq!(content(&container, b"half").expect("whole"), bytes(3, 12_000));
    assert_eq!(container.damage(), &[]);
}

#[test]
fn records_handed_to_a_caller_are_written_after_the_callers_write() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    let at = |writer: &mut LaneWriter, path: &[u8]| {
        writer.put_entry(path, 1, Some(node(FileKind::File)), b"").expect("put").1.address
    };
    let first = at(&mut writer, b"first");
    let given = writer.begin_write().expect("nothing in flight").expect("there is something");
    let second = at(&mut writer, b"second");
    assert!(!writer.has_written(first) && !writer.has_written(second));
    given.write();
    assert!(writer.has_written(first) && !writer.has_written(second));
    let given = writer.begin_write().expect("the first was written").expect("there is something");
    assert!(writer.has_written(first) && !writer.has_written(second));
    let third = at(&mut writer, b"third");
    given.write();
    // Waiting for one record writes all before it.
    writer.make_readable(writer.lane(), third).expect("written");
    assert!(writer.has_written(second) && writer.has_written(third));
    assert!(writer.begin_write().expect("all was written").is_none());
    let container = Container::open(bed.fs()).expect("it opens");
    for path in [&b"first"[..], b"second", b"third"] {
        assert!(container.find(path).expect("no damage").is_some());
    }
}

/// Records lost by an incarnation stay lost, whatever later incarnations sync.
#[test]
fn a_torn_record_stays_invalid_after_the_next_incarnation() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    put(&mut writer, b"file", 1, b"old and durable");
    writer.sync().expect("synced");
    put(&mut writer, b"file", 2, &bytes(3, 12_000));
    writer.write_pending().expect("written");
    drop(writer);
    let file = std::fs::OpenOptions::new().write(true).open(bed.subfile(0)).expect("a subfile");
    let end = file.metadata().expect("a size").len();
    file.write_all_at(&[0; 4000], end - 6000).expect("torn");
    let mut writer = bed.writer(0, 0);
    put(&mut writer, b"other", 3, b"z");
    writer.sync().expect("synced");
    put(&mut writer, b"another", 4, b"z");
    writer.finish().expect("finished");
    let container = bed.by_records();
    assert_eq!(content(&container, b"file").expect("durable"), b"old and durable");
    assert_eq!(content(&container, b"another").expect("durable"), b"z");
    assert_eq!(container.damage().len(), 1);
    bed.close(10);
    let container = Container::open(bed.fs()).expect("it opens");
    assert_eq!(content(&container, b"file").expect("durable"), b"old and durable");
}

/// After a power failure, unsynced records may survive without those before them: a renamed file would have no path then.
#[test]
fn a_removal_after_an_incomplete_record_is_not_valid() {
    for is_lost in [false, true] {
        let bed = Bed::new(GEOMETRY);
        let mut writer = bed.writer(0, 0);
        put(&mut writer, b"old", 1, b"content");
        writer.sync().expect("synced");
        let durable = std::fs::metadata(bed.subfile(0)).expect("a size").len();
        put(&mut writer, b"new", 2, b"content");
        writer.put_entry(b"old", 3, None, &[]).expect("removed");
        writer.write_pending().expect("written");
        if is_lost {
            let file = std::fs::OpenOptions::new().write(true).open(bed.subfile(0)).expect("a subfile");
            file.write_all_at(b"lost", durable).expect("holes written");
        }
        let container = bed.by_records();
        let is_there = |path: &[u8]| container.find(path).expect("whole").is_some();
        assert_eq!((is_there(b"old"), is_there(b"new")), (is_lost, !is_lost));
        assert_eq!(
            container.damage().iter().any(|damage| damage.why.contains("old may have reappeared")),
            is_lost
        );
        // After the damage, complete entries are valid, and removals known to be durable.
        put(&mut writer, b"other", 4, b"z");
        writer.sync().expect("synced");
        put(&mut writer, b"another", 5, b"z");
        writer.write_pending().expect("written");
        let container = bed.by_records();
        assert_eq!(paths(&container).len(), if is_lost { 2 } else { 3 });
    }
}

#[test]
fn processes_of_a_host_and_ranks_claim_distinct_lanes() {
    let bed = Bed::new(GEOMETRY);
    let begin = |id: &WriterId| LaneWriter::begin(&*bed.fs(), bed.superblock, id).expect("a lane");
    let host = |name: &str| WriterId::Host(name.to_string());
    let rank = |rank| WriterId::Rank { rank, size: 3 };
    let guess = |rank| WriterId::Guess { rank, size: 3, host: "a".to_string() };
    let ids = [host("a"), host("a"), host("a"), host("b"), rank(0), rank(1), guess(1), guess(2)];
    let writers: Vec<_> = ids.iter().map(begin).collect();
    let lanes: std::collections::BTreeSet<_> = writers.iter().map(LaneWriter::lane).collect();
    assert_eq!(lanes.len(), ids.len());
    assert!(bed.by_records().may_grow().expect("checked"));
    let taken = LaneWriter::begin(&*bed.fs(), bed.superblock, &rank(0)).err().expect("it is taken");
    assert_eq!(taken.errno, Errno::EBUSY);
    // One crashes, the others finish.
    let mut writers = writers.into_iter();
    drop(writers.next());
    writers.for_each(|writer| {
        writer.finish().expect("finished");
    });
    assert!(!bed.by_records().may_grow().expect("checked"));
    // A free lane is claimed again; no subfile is created.
    let files = || std::fs::read_dir(bed.dir.path()).expect("a directory").count();
    let before = files();
    assert!(lanes.contains(&begin(&host("b")).lane()));
    assert_eq!(files(), before);
}

#[test]
fn lookups_of_adjacent_paths_use_cached_pages() {
    let bed = Bed::new(GEOMETRY);
    let path = |number: usize| format!("{number:04}{}", "-".repeat(200)).into_bytes();
    let mut writer = bed.writer(0, 0);
    for number in 0..3_000 {
        writer.put(&path(number), 1, node(FileKind::File), b"").expect("put");
    }
    writer.finish().expect("finished");
    bed.close(100);
    let find = |container: &Container, number| {
        container.find(&path(number)).map(|found| found.map(|entry| entry.path)).map_err(|fault| fault.errno)
    };
    let (one, other) =
        (Container::open(bed.fs()).expect("it opens"), Container::open(bed.fs()).expect("it opens"));
    for container in [&one, &other] {
        assert_eq!(find(container, 7), Ok(Some(path(7))));
    }
    for number in (0..3_000).rev() {
        assert_eq!(find(&other, number), Ok(Some(path(number))));
    }
    // Pages read from now on are damaged.
    let index =
        std::fs::OpenOptions::new().write(true).open(bed.dir.path().join("index")).expect("the index");
    let size = index.metadata().expect("its size").len() as usize;
    index.write_all_at(&vec![0; size], 0).expect("damaged");
    assert_eq!(find(&one, 8), Ok(Some(path(8))));
    assert_eq!(find(&one, 2_900), Err(Errno::EIO));
    assert_eq!(find(&other, 8), Ok(Some(path(8))), "the last pages are cached");
    assert_eq!(find(&other, 2_900), Err(Errno::EIO), "only a few pages are cached");
}

/// A finished writer has synced its records, and with them the incarnation of its lane.
#[test]
fn writing_an_index_syncs_lanes_that_may_not_be_durable() {
    for (is_put, is_ended, is_synced) in [(true, true, false), (false, true, true), (true, false, true)] {
        let bed = Bed::new(GEOMETRY);
        let mut writer = bed.writer(0, 0);
        if is_put {
            put(&mut writer, b"file", 1, b"content");
        }
        let ends = match is_ended {
            true => writer.finish().expect("ended"),
            false => {
                writer.sync().expect("synced");
                bed.by_records().ends()
            }
        };
        let index = IndexBuilder::new(bed.fs(), bed.superblock.container).expect("a builder");
        // A directory at the subfile's path makes the sync fail.
        std::fs::remove_file(bed.subfile(0)).expect("removed");
        std::fs::create_dir(bed.subfile(0)).expect("made");
        assert_eq!(index.finish(&ends).is_err(), is_synced, "put: {is_put}, ended: {is_ended}");
    }
}

/// Users with read permission can take read locks.
#[test]
fn a_read_lock_does_not_count_as_a_live_writer() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let bed = Bed::new(GEOMETRY);
    let id = WriterId::Host("a".to_string());
    let writer = LaneWriter::begin(&*bed.fs(), bed.superblock, &id).expect("a lane");
    let subfile = bed.dir.path().join("00010000.data");
    drop(writer);
    let lock = "import fcntl, sys; f = open(sys.argv[1], 'rb'); fcntl.lockf(f, fcntl.LOCK_SH); print(flush=True); sys.stdin.read()";
    let mut reader = Command::new("python3");
    reader.args(["-c", lock]).arg(subfile).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = reader.spawn().expect("Python");
    let mut line = String::new();
    BufReader::new(reader.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    let may_grow = bed.by_records().may_grow();
    drop(reader.stdin.take());
    reader.wait().expect("it ends");
    assert!(!may_grow.expect("checked"));
}
