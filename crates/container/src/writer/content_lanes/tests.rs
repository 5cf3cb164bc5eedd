use crate::{Codec, Container, Content, Geometry, LaneWriter, Node, Superblock, WriterId};
use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::{FileKind, Timestamp};
use tameike_io::shared::{PosixTree, SharedFs};

const STREAMS: usize = 3;
const GEOMETRY: Geometry = Geometry { block_size: 64 << 10, lanes: 2 };
const NODE: Node = Node::new(FileKind::File, 0o644, (0, 0), Timestamp { seconds: 0, nanoseconds: 0 });

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

/// Checks that all visible files are complete and no entry is refused. Returns the number of files.
fn assert_whole(container: &Container, moment: &str) -> usize {
    let refused = container.damage().iter().find(|damage| damage.why.contains("durable"));
    assert_eq!(refused, None, "{moment}");
    let entries: Vec<_> = container.walk().expect("a walk").map(|entry| entry.expect("an entry")).collect();
    for entry in &entries {
        let number = String::from_utf8_lossy(&entry.path[201..]).parse().expect("a number");
        let expected = content(number);
        let mut found = vec![0; expected.len() + 1];
        let count = container.open_entry(entry).expect("opened").read_at(&mut found, 0).expect("read");
        assert!(found[..count] == expected, "{moment}, file {number}");
    }
    entries.len()
}

/// A reader at any moment, also after a crash of the writer, finds no entry without its content, and finds everything
/// that was written out. A block that is being written may be torn.
#[test]
fn no_entry_is_visible_before_its_content() {
    for writes_behind in [false, true] {
        put_and_check(writes_behind);
    }
}

fn put_and_check(writes_behind: bool) {
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
    // At least one block of entries was full.
    assert!(seen > 100);
    writer.write_pending().expect("written");
    assert_eq!(assert_whole(&bed.by_records(), "at the end"), 600);
    assert_eq!(bed.by_records().damage(), &[]);
}

/// Subfiles are added as they are needed; the next writer claims their lanes.
#[test]
fn content_is_spread_over_subfiles_that_the_next_writer_reuses() {
    let bed = Bed::new();
    for round in 0..2 {
        let mut writer = bed.writer();
        let mut subfiles = BTreeSet::new();
        let range = round * 200..(round + 1) * 200;
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
        assert_eq!(assert_whole(&bed.by_records(), "synced"), (round as usize + 1) * 200);
        writer.finish().expect("finished");
        let container = bed.by_records();
        assert!(container.ends().iter().all(|end| end.is_finished));
        assert!(container.ends().len() <= STREAMS + 1, "{:?}", container.ends());
    }
}

/// Small files are kept with their entries.
#[test]
fn small_files_use_one_lane() {
    let bed = Bed::new();
    let mut writer = bed.writer();
    for number in 0..100 {
        writer.put(&path(number), 1, NODE, &vec![1; 16 << 10]).expect("put");
    }
    writer.finish().expect("finished");
    assert_eq!(bed.by_records().ends().len(), 1);
}
