use super::*;
use tameike_core::Errno;
use tameike_core::changes::NumberedChange;

const NOW: Duration = Duration::from_secs(100);

fn path(number: u64, name: &str, content: Content) -> NumberedChange {
    let change = Change::Path { path: name.into(), inode: Some(InodeId(7)), content };
    NumberedChange { number, age_ms: 0, change }
}

fn renamed(number: u64, from: &str, to: &str) -> NumberedChange {
    NumberedChange { number, age_ms: 0, change: Change::Renamed { from: from.into(), to: to.into() } }
}

fn deliver(pending: &mut Pending, node: u32, changes: Vec<NumberedChange>) {
    pending.deliver(node, Changes { changes, has_more: false }, NOW);
}

fn names(batch: &Batch) -> Vec<&str> {
    batch.paths.iter().map(|(path, _)| std::str::from_utf8(path).expect("text")).collect()
}

#[test]
fn a_change_is_acknowledged_when_the_mirror_has_all_its_paths() {
    let mut pending = Pending::default();
    deliver(&mut pending, 3, vec![path(1, "a", Content::range(0..4)), renamed(2, "b", "c")]);
    deliver(&mut pending, 4, vec![path(9, "a", Content::range(4..8))]);
    assert_eq!((pending.acknowledged(3), pending.acknowledged(4)), (0, 8));
    let first = pending.take(2, NOW);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first.paths[0].1.content, [(InodeId(7), Content::range(0..8))]);
    assert_eq!(first.renames, [(b"b".to_vec(), b"c".to_vec())]);
    pending.complete(first.number, Vec::new(), NOW);
    assert_eq!((pending.acknowledged(3), pending.acknowledged(4)), (1, 9));
    let second = pending.take(2, NOW);
    assert_eq!(names(&second), ["c"]);
    pending.complete(second.number, Vec::new(), NOW);
    assert_eq!(pending.acknowledged(3), 2);
    assert!(pending.is_empty() && pending.oldest().is_none());
}

#[test]
fn a_broken_connection_loses_nothing() {
    let mut pending = Pending::default();
    deliver(&mut pending, 0, vec![path(1, "a", Content::range(0..4)), renamed(2, "b", "c")]);
    let batch = pending.take(8, NOW);
    deliver(&mut pending, 0, vec![path(3, "a", Content::range(6..8))]);
    pending.restore();
    pending.complete(batch.number, Vec::new(), NOW);
    let again = pending.take(8, NOW);
    assert_eq!((names(&again), again.renames.len()), (vec!["a", "b", "c"], 1));
    let Content::Ranges(ranges) = &again.paths[0].1.content[0].1 else { panic!("{again:?}") };
    assert_eq!(ranges.count(), 2);
    assert_eq!(pending.acknowledged(0), 0);
    pending.complete(again.number, Vec::new(), NOW);
    assert_eq!(pending.acknowledged(0), 3);
}

#[test]
fn a_path_with_a_fault_is_tried_again() {
    let mut pending = Pending::default();
    deliver(&mut pending, 0, vec![path(1, "a", Content::Whole), path(2, "b", Content::Whole)]);
    let batch = pending.take(8, NOW);
    let fault = Fault::from(Errno::ENOSPC);
    pending.complete(batch.number, vec![(b"a".to_vec(), fault.clone())], NOW);
    assert_eq!((pending.count_paths(), pending.acknowledged(0)), (1, 0));
    assert!(!pending.has_paths(NOW) && pending.has_paths(NOW + RETRY_TIME));
    assert_eq!(pending.failed().collect::<Vec<_>>(), [(&b"a"[..], 1, &fault)]);
    let again = pending.take(8, NOW + RETRY_TIME);
    assert!(names(&again) == ["a"] && again.paths[0].1.is_replaced);
    pending.complete(again.number, Vec::new(), NOW);
    assert!(pending.is_empty() && pending.acknowledged(0) == 2);
}

#[test]
fn all_paths_have_their_turn() {
    let mut pending = Pending::default();
    deliver(&mut pending, 0, vec![path(1, "a", Content::Whole), path(2, "m", Content::Whole)]);
    let mut taken = Vec::new();
    for number in 3..7 {
        let batch = pending.take(1, NOW);
        taken.extend(names(&batch).into_iter().map(str::to_owned));
        pending.complete(batch.number, Vec::new(), NOW);
        deliver(&mut pending, 0, vec![path(number, "a", Content::Whole)]);
    }
    assert_eq!(taken, ["a", "m", "a", "a"]);
    let mut pending = Pending::default();
    deliver(&mut pending, 0, (0..4).map(|n| path(n + 1, &n.to_string(), Content::Whole)).collect());
    let batch = pending.take(4, NOW);
    pending.put_back(batch.number, 1);
    pending.complete(batch.number, Vec::new(), NOW);
    assert_eq!(pending.acknowledged(0), 1);
    assert_eq!(names(&pending.take(2, NOW)), ["1", "2"]);
}

#[test]
fn a_renamed_file_is_found_by_its_old_path() {
    let mut pending = Pending::default();
    deliver(&mut pending, 0, vec![renamed(1, "dir", "other/dir"), renamed(2, "x", "y")]);
    assert_eq!(pending.moved_to(b"dir/sub/file").as_deref(), Some(&b"other/dir/sub/file"[..]));
    assert_eq!(pending.moved_to(b"x").as_deref(), Some(&b"y"[..]));
    assert_eq!(pending.moved_to(b"director"), None);
}

#[test]
fn a_comparison_ends_when_its_differences_are_mirrored() {
    let mut pending = Pending::default();
    deliver(&mut pending, 0, vec![NumberedChange { number: 5, age_ms: 10, change: Change::Everything }]);
    let walk = pending.walk().expect("a directory").clone();
    assert!(walk.path.is_empty() && pending.is_comparing());
    pending.end_walk(&walk, vec![b"a".to_vec()], vec![b"dir".to_vec()]);
    let below = pending.walk().expect("a directory").clone();
    assert_eq!(below.path, b"dir");
    pending.end_walk(&below, Vec::new(), Vec::new());
    assert!(!pending.is_comparing() && pending.acknowledged(0) == 4);
    assert_eq!(pending.oldest(), Some(NOW - Duration::from_millis(10)));
    let batch = pending.take(8, NOW);
    pending.complete(batch.number, Vec::new(), NOW);
    assert_eq!(pending.acknowledged(0), 5);
}
