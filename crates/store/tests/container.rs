//! Containers as format 1 has them: golden ones, which every later version reads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tameike_core::{FileKind, Timestamp};
use tameike_io::shared::{PosixTree, SharedFs};
use tameike_store::container::{
    Brief, Codec, Container, Content, Geometry, IndexBuilder, IndexEntry, LaneEnd, LaneWriter, Node,
    Superblock, WriterId, Xattr,
};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn tree(dir: &Path) -> Arc<dyn SharedFs> {
    Arc::new(PosixTree::open(dir).expect("a tree"))
}

fn node(kind: FileKind) -> Node {
    Node {
        kind,
        mode: 0o640,
        uid: 1000,
        gid: 100,
        rdev: 0,
        atime: Timestamp { seconds: 1_700_000_000, nanoseconds: 1 },
        mtime: Timestamp { seconds: 1_700_000_001, nanoseconds: 999_999_999 },
        target: Vec::new(),
        xattrs: Vec::new(),
        size: 0,
        content: Content::Here,
    }
}

/// A file's bytes.
fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * at % 251) as u8).collect()
}

/// All that both writers have put before the index was made.
fn files() -> Vec<(&'static [u8], Node, Vec<u8>)> {
    let xattrs = vec![Xattr { name: b"user.unit".to_vec(), value: vec![0, 255] }];
    vec![
        (b"d", node(FileKind::Directory), Vec::new()),
        (b"d/empty", node(FileKind::File), Vec::new()),
        (b"d/small", Node { xattrs, ..node(FileKind::File) }, bytes(300)),
        (b"d/link", Node { target: b"../\xff".to_vec(), ..node(FileKind::Symlink) }, Vec::new()),
        (b"large", node(FileKind::File), bytes(10_000)),
        (b"\xfe not UTF-8", node(FileKind::File), bytes(1)),
    ]
}

/// Writes it: by two writers, one of which comes back after an index was made.
fn write(dir: &Path, codec: Codec) {
    let superblock =
        Superblock { container: 0x0123_4567_89ab_cdef, geometry: Geometry { block_size: 4096, lanes: 2 } };
    superblock.create(&*tree(dir)).expect("a container");
    let begin = |rank| {
        let mut writer =
            LaneWriter::begin(&*tree(dir), superblock, &WriterId::Rank { rank, size: 2 }).expect("a lane");
        writer.set_codec(codec).expect("a codec");
        writer
    };
    let mut writers = [begin(0), begin(1)];
    let mut index = IndexBuilder::new(tree(dir), superblock.container).expect("a builder");
    for (number, (path, node, content)) in files().into_iter().enumerate() {
        let writer = &mut writers[number % 2];
        writer.put(path, 1, node.clone(), b"replaced").expect("put");
        let (entry, put) = writer.put(path, 2, node, &content).expect("put");
        let node = entry.node.as_ref().map(Brief::of);
        let (lane, address) = (writer.lane(), put.address);
        index
            .add(IndexEntry { path: entry.path, version: 2, lane, address, record_size: put.size, node })
            .expect("added");
    }
    writers[0].put(b"removed", 3, node(FileKind::File), b"x").expect("put");
    writers[0].put_entry(b"removed", 4, None, &[]).expect("removed");
    let ends: Vec<LaneEnd> =
        writers.into_iter().flat_map(|writer| writer.finish().expect("finished")).collect();
    index.finish(&ends).expect("an index");
    let mut again = begin(1);
    again.put(b"added", 5, node(FileKind::File), b"after the index").expect("put");
    again.finish().expect("finished");
}

fn assert_read(container: &Container) {
    let mut expected = files();
    expected.push((b"added", node(FileKind::File), b"after the index".to_vec()));
    assert_eq!(container.walk().expect("a walk").count(), expected.len());
    for (path, told, content) in expected {
        let mut file = container.file(path).expect("there");
        let found = Node { size: 0, content: Content::Here, ..file.node().clone() };
        assert_eq!(found, told);
        if found.kind == FileKind::File {
            let mut read = vec![0; content.len() + 1];
            let count = file.read_at(&mut read, 0).expect("whole");
            assert!(read[..count] == content[..], "{}", String::from_utf8_lossy(path));
        }
    }
}

#[test]
fn containers_of_format_1_are_read() {
    for name in ["container-1", "container-1-zstd"] {
        let container = Container::open(tree(&golden(name))).expect("it opens");
        assert!(container.has_index());
        assert_read(&container);
        let scanned = Container::open_by_records(tree(&golden(name))).expect("it opens");
        assert_eq!(scanned.damage(), &[]);
        assert_read(&scanned);
    }
}

#[test]
fn containers_are_written_as_format_1_has_them() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), Codec::None);
    let names = std::fs::read_dir(golden("container-1")).expect("the golden one");
    let mut names: Vec<_> = names.map(|name| name.expect("a name").file_name()).collect();
    names.sort();
    assert_eq!(names, ["00000000.data", "container", "index"]);
    for name in names {
        let read = |dir: &Path| std::fs::read(dir.join(&name)).expect("read");
        assert!(read(dir.path()) == read(&golden("container-1")), "{}", name.display());
    }
}

#[test]
#[ignore = "makes the golden ones, where there are none: when there is a new format"]
fn make_golden_containers() {
    for (name, codec) in [("container-1", Codec::None), ("container-1-zstd", Codec::Zstd)] {
        std::fs::create_dir_all(golden("")).expect("a directory");
        std::fs::create_dir(golden(name)).expect("it is new");
        write(&golden(name), codec);
    }
}
