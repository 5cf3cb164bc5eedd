use super::*;
use tameike_io::shared::PosixTree;
use tempfile::TempDir;

const CONTAINER: u64 = 7;

fn open(dir: &TempDir, container: u64) -> (Journal, Vec<u64>) {
    let (journal, Earlier { noted, was_compacted }) =
        open_of(dir, JournaledContainer { container, oldest: 3 });
    assert!(!was_compacted);
    let is_right = |noted: &JournalEntry| *noted == some(noted.entry.version);
    assert!(noted.iter().all(is_right), "{noted:?}");
    (journal, noted.iter().map(|noted| noted.entry.version).collect())
}

fn open_of(dir: &TempDir, whose: JournaledContainer) -> (Journal, Earlier) {
    let tree = PosixTree::open(dir.path()).expect("a tree");
    Journal::open(&tree, whose).expect("opened")
}

fn some(version: u64) -> JournalEntry {
    let entry = Entry { path: format!("file-{version}").into_bytes(), version, node: None };
    let unsafe_pieces = (0..version as u32 % 3).collect();
    JournalEntry { entry, lane: LaneId { subfile: 65536, lane: 1 }, address: version << 40, unsafe_pieces }
}

fn count(dir: &TempDir) -> u64 {
    count_journaled(&PosixTree::open(dir.path()).expect("a tree")).expect("counted")
}

fn note(journal: &mut Journal, versions: std::ops::Range<u64>) {
    for version in versions {
        journal.add(&some(version));
    }
    journal.write().expect("written");
}

#[test]
fn written_records_are_found_in_order_until_they_are_durable() {
    let dir = TempDir::new().expect("a directory");
    let (mut journal, noted) = open(&dir, CONTAINER);
    assert_eq!(noted, []);
    for turn in 0..4 {
        let first = turn * 10;
        note(&mut journal, first..first + 3);
        journal.begin_sync();
        note(&mut journal, first + 3..first + 5);
        // The process fails here.
        let (_, noted) = open(&dir, CONTAINER);
        let before = if turn == 0 { 0..0 } else { first - 7..first - 5 };
        assert_eq!(noted, before.chain(first..first + 5).collect::<Vec<_>>());
        journal.end_sync();
        let (again, noted) = open(&dir, CONTAINER);
        assert_eq!(noted, [first + 3, first + 4]);
        journal = again;
    }
    journal.clear().expect("cleared");
    assert_eq!(count(&dir), 0);
    note(&mut journal, 90..91);
    assert_eq!((open(&dir, CONTAINER).1, count(&dir)), (vec![90], 1));
    let (mut journal, earlier) = open_of(&dir, JournaledContainer { container: CONTAINER, oldest: 9 });
    assert!(earlier.was_compacted && earlier.noted == [some(90)]);
    journal.clear().expect("cleared");
    let (_, earlier) = open_of(&dir, JournaledContainer { container: CONTAINER, oldest: 9 });
    assert!(!earlier.was_compacted && earlier.noted.is_empty());
}

#[test]
fn an_incomplete_or_damaged_record_ends_the_journal() {
    let dir = TempDir::new().expect("a directory");
    let (mut journal, _) = open(&dir, CONTAINER);
    note(&mut journal, 1..4);
    let path = dir.path().join("packed.0");
    let whole = std::fs::read(&path).expect("read");
    for size in 0..whole.len() {
        std::fs::write(&path, &whole[..size]).expect("written");
        let (_, noted) = open(&dir, CONTAINER);
        assert!(noted.len() < 3 && noted == [1, 2, 3][..noted.len()], "{size}: {noted:?}");
    }
    // The last four bytes of the header are unused.
    for byte in (0..28).chain(HEADER_SIZE..whole.len()) {
        let mut damaged = whole.clone();
        damaged[byte] ^= 4;
        std::fs::write(&path, &damaged).expect("written");
        let (_, noted) = open(&dir, CONTAINER);
        assert!(noted.len() < 3 && noted == [1, 2, 3][..noted.len()], "{byte}: {noted:?}");
    }
}

#[test]
fn records_of_another_container_are_ignored() {
    let dir = TempDir::new().expect("a directory");
    assert_eq!(count(&dir), 0);
    let (mut journal, _) = open(&dir, CONTAINER);
    note(&mut journal, 1..4);
    journal.begin_sync();
    note(&mut journal, 4..5);
    assert_eq!(count(&dir), 4);
    let (mut journal, noted) = open(&dir, CONTAINER + 1);
    assert_eq!((noted, count(&dir)), (vec![], 0));
    note(&mut journal, 9..10);
    assert_eq!(open(&dir, CONTAINER + 1).1, [9]);
}
