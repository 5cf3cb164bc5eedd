use super::*;
use tameike_io::shared::PosixTree;
use tempfile::TempDir;

const CONTAINER: u64 = 7;

fn open(dir: &TempDir, container: u64) -> (Journal, Vec<u64>) {
    let tree = PosixTree::open(dir.path()).expect("a tree");
    let (journal, noted) = Journal::open(&tree, container).expect("opened");
    (journal, noted.iter().map(|entry| entry.version).collect())
}

fn note(journal: &mut Journal, versions: std::ops::Range<u64>) {
    for version in versions {
        journal.add(&Entry { path: format!("file-{version}").into_bytes(), version, node: None });
    }
    journal.write().expect("written");
}

#[test]
fn what_was_written_is_found_in_order_until_it_is_safe() {
    let dir = TempDir::new().expect("a directory");
    let (mut journal, noted) = open(&dir, CONTAINER);
    assert_eq!(noted, []);
    for turn in 0..4 {
        let first = turn * 10;
        note(&mut journal, first..first + 3);
        journal.begin_sync();
        note(&mut journal, first + 3..first + 5);
        // A process that dies meanwhile.
        let (_, noted) = open(&dir, CONTAINER);
        let before = if turn == 0 { 0..0 } else { first - 7..first - 5 };
        assert_eq!(noted, before.chain(first..first + 5).collect::<Vec<_>>());
        journal.end_sync();
        let (again, noted) = open(&dir, CONTAINER);
        assert_eq!(noted, [first + 3, first + 4]);
        journal = again;
    }
    journal.clear().expect("cleared");
    note(&mut journal, 90..91);
    assert_eq!(open(&dir, CONTAINER).1, [90]);
}

#[test]
fn a_record_that_was_cut_off_or_damaged_ends_it() {
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
    for byte in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 4;
        std::fs::write(&path, &damaged).expect("written");
        let (_, noted) = open(&dir, CONTAINER);
        assert!(noted.len() < 3 && noted == [1, 2, 3][..noted.len()], "{byte}: {noted:?}");
    }
}

#[test]
fn what_is_of_another_container_is_not_found() {
    let dir = TempDir::new().expect("a directory");
    note(&mut open(&dir, CONTAINER).0, 1..4);
    let (mut journal, noted) = open(&dir, CONTAINER + 1);
    assert_eq!(noted, []);
    note(&mut journal, 9..10);
    assert_eq!(open(&dir, CONTAINER + 1).1, [9]);
}
