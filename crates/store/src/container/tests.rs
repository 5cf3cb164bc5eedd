use super::*;
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
        LaneWriter::begin(&*self.fs(), self.superblock, LaneId { subfile, lane }).expect("a lane")
    }

    fn by_records(&self) -> Container {
        Container::open_by_records(self.fs()).expect("it opens")
    }

    /// Writes the closing index, with so many entries sorted in memory.
    fn close(&self, sorted_max: usize) {
        let container = self.by_records();
        let mut index = IndexBuilder::with_memory_for(self.fs(), self.superblock.container, sorted_max);
        let entries: Vec<_> =
            container.walk().expect("a walk").map(|entry| entry.expect("an entry")).collect();
        // Older entries of a path do not count, whenever they come.
        let older = entries.iter().map(|entry| IndexEntry { version: 0, ..entry.clone() });
        entries.iter().cloned().chain(older).for_each(|entry| index.add(entry).expect("added"));
        index.finish(container.ends()).expect("an index");
    }

    fn subfile(&self, number: u32) -> std::path::PathBuf {
        let name = superblock::subfile_name(number);
        self.dir.path().join(String::from_utf8(name).expect("a name"))
    }
}

fn node(kind: FileKind) -> Node {
    let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
    Node {
        kind,
        mode: 0o640,
        uid: 1000,
        gid: 100,
        rdev: 0,
        atime: time,
        mtime: time,
        target: Vec::new(),
        xattrs: Vec::new(),
        size: 0,
        content: Content::Here,
    }
}

/// Bytes that follow from a number.
fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
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

/// Does it all, on four lanes of two subfiles. What each path is in the end, and when everything was synced.
fn run(bed: &Bed, ops: &[Op]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut writers: Vec<_> = (0..4).map(|number| bed.writer(number / 2, number % 2)).collect();
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
    fn what_was_put_last_is_found_with_and_without_an_index(ops in proptest::collection::vec(op(), 1..60), sorted in 1..9_usize) {
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
    fn small_reads_bring_what_one_large_read_does(size in 0..700_000_usize, reads in proptest::collection::vec((0..700_000_u64, 0..9_000_usize), 1..40)) {
        let bed = Bed::new(GEOMETRY);
        let data = bytes(7, size);
        let mut writer = bed.writer(0, 1);
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

    /// A writer that dies leaves its subfile cut at any byte, or, where power was lost, without some of what was not synced.
    #[test]
    fn what_was_synced_survives_a_cut_at_any_byte(
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
        // Written, and never known to be safe.
        writer.write_pending().expect("written");
        let file = std::fs::OpenOptions::new().write(true).open(bed.subfile(0)).expect("a subfile");
        let end = file.metadata().expect("a size").len();
        let at = synced + (end - synced) * cut / 1000;
        if holes {
            file.write_all_at(&vec![0; (end - at).min(40_000) as usize], at).expect("lost");
        } else {
            file.set_len(at).expect("cut");
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
    fn damage_is_named_and_nothing_else_is_wrong(ops in proptest::collection::vec(op(), 1..40), places in proptest::collection::vec((0..2_u32, 0..1_000_000_u64, 0..8_u32), 1..4), indexed: bool) {
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
                // Without an index, an older version shows where the record of the newest is damaged: that is named.
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
    fn rubbish_never_ends_a_reader(rubbish in proptest::collection::vec(any::<u8>(), 0..5_000), at in 0..200_000_u64, name in 0..4_usize) {
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
fn paths_that_lead_elsewhere_are_refused() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    for path in [&b""[..], b"/a", b"a/", b"a//b", b"..", b"a/../b", b"./a", b"a\0b", &[b'x'; 256]] {
        writer.put(path, 1, node(FileKind::File), b"").expect_err("no path");
    }
}

#[test]
fn what_is_no_container_is_refused_with_the_reason() {
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
