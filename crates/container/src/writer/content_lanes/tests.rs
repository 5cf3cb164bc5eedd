use crate::{Codec, Container, Content, Geometry, LaneWriter, Node, Superblock, WriterId};
use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::{FileKind, Timestamp};
use tameike_io::shared::{PosixTree, SharedFs};

const STREAMS: usize = 3;
const GEOMETRY: Geometry = Geometry { block_size: 64 << 10, lanes: 2 };
const NODE: Node = Node {
    kind: FileKind::File,
    mode: 0o644,
    uid: 0,
    gid: 0,
    rdev: 0,
    atime: Timestamp { seconds: 0, nanoseconds: 0 },
    mtime: Timestamp { seconds: 0, nanoseconds: 0 },
    target: Vec::new(),
    xattrs: Vec::new(),
    size: 0,
    content: Content::Here,
};

struct Bed {
    _dir: tempfile::TempDir,
    fs: Arc<dyn SharedFs>,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let fs: Arc<dyn SharedFs> = Arc::new(PosixTree::open(dir.path()).expect("a tree"));
        Superblock { container: 7, geometry: GEOMETRY }.create(&*fs).expect("a container");
        Self { _dir: dir, fs }
    }

    fn by_records(&self) -> Container {
        Container::open_by_records(self.fs.clone()).expect("it opens")
    }

    fn writer(&self) -> LaneWriter {
        let who = WriterId::Host("host".to_owned());
        self.by_records().begin_writer(&who, Codec::None, STREAMS).expect("a writer")
    }
}

/// Long, so that the entries of some hundred files fill a block.
fn path(number: u32) -> Vec<u8> {
    format!("{}/{number}", "d".repeat(200)).into_bytes()
}

fn content(number: u32) -> Vec<u8> {
    (0..17_000 + number % 7 * 9_000).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// All that is found is whole, and nothing is found that is not believed; how many files that are.
fn assert_whole(container: &Container, where_: &str) -> usize {
    let refused = container.damage().iter().find(|damage| damage.why.contains("never known"));
    assert_eq!(refused, None, "{where_}");
    let entries: Vec<_> = container.walk().expect("a walk").map(|entry| entry.expect("an entry")).collect();
    for entry in &entries {
        let number = String::from_utf8_lossy(&entry.path[201..]).parse().expect("a number");
        let expected = content(number);
        let mut found = vec![0; expected.len() + 1];
        let count = container.open_entry(entry).expect("opened").read_at(&mut found, 0).expect("read");
        assert!(found[..count] == expected, "{where_}, file {number}");
    }
    entries.len()
}

/// Whoever looks, at any moment, as after a death of the writer, finds no entry whose content is not there; and what was written out is found. A block that
/// is being written just then is torn.
#[test]
fn no_entry_is_there_before_its_content() {
    for writes_behind in [false, true] {
        put_and_look(writes_behind);
    }
}

fn put_and_look(writes_behind: bool) {
    let bed = Bed::new();
    let mut writer = bed.writer();
    if writes_behind {
        writer.write_behind().expect("a thread");
    }
    let mut seen = 0;
    for number in 0..600 {
        writer.put(&path(number), 1, NODE, &content(number)).expect("put");
        if number % 50 == 0
            && let Some(given) = writer.begin_write().expect("written")
        {
            given.write();
        }
        if number % 20 == 0 {
            let found = assert_whole(&bed.by_records(), &format!("after {number}"));
            assert!(found >= seen);
            seen = found;
        }
    }
    // Blocks of entries were full meanwhile.
    assert!(seen > 100);
    writer.write_pending().expect("written");
    assert_eq!(assert_whole(&bed.by_records(), "at the end"), 600);
    assert_eq!(bed.by_records().damage(), &[]);
}

/// One after the other, as they are needed; and the next life takes the same again.
#[test]
fn content_lies_in_several_subfiles_and_the_next_life_takes_the_same() {
    let bed = Bed::new();
    for life in 0..2 {
        let mut writer = bed.writer();
        let mut subfiles = BTreeSet::new();
        let range = life * 200..(life + 1) * 200;
        for number in range {
            let (entry, _) = writer.put(&path(number), 1, NODE, &content(number)).expect("put");
            let Content::Extents(extents) = entry.node.expect("a node").content else {
                panic!("it is large")
            };
            subfiles.extend(extents.iter().map(|extent| extent.lane.subfile));
            assert!(extents.iter().all(|extent| writer.has(extent.lane)));
        }
        assert!(!subfiles.contains(&writer.lane().subfile));
        assert!((1..=STREAMS).contains(&subfiles.len()), "{subfiles:?}");
        let synced = writer.begin_sync().expect("written");
        synced.sync().expect("synced");
        writer.end_sync(&synced);
        assert_eq!(assert_whole(&bed.by_records(), "synced"), (life as usize + 1) * 200);
        writer.finish().expect("finished");
        let container = bed.by_records();
        assert!(container.ends().iter().all(|end| end.is_finished));
        assert!(container.ends().len() <= STREAMS + 1, "{:?}", container.ends());
    }
}

/// What is small is kept with its entry, and needs no other file.
#[test]
fn what_is_small_needs_no_other_lane() {
    let bed = Bed::new();
    let mut writer = bed.writer();
    for number in 0..100 {
        writer.put(&path(number), 1, NODE, &vec![1; 16 << 10]).expect("put");
    }
    writer.finish().expect("finished");
    assert_eq!(bed.by_records().ends().len(), 1);
}
