//! Tests of eviction from the table of files.

use super::*;

fn stamp(size: u64) -> Stamp {
    Stamp { size, ..Stamp::default() }
}

#[test]
fn eviction_takes_the_oldest_unused_files_a_few_at_a_time_and_keeps_their_generations() {
    let (mut known, paths, most) = (Known::default(), Arc::<Paths>::default(), (8, 100));
    let record = |number: u64| Record::new(b"file", stamp(number), Generation(1000 + number));
    let held = known.insert(File::new(InodeId(0), record(0), paths.clone()), most);
    for number in 1..50 {
        known.insert(File::new(InodeId(number), record(number), paths.clone()), most);
        assert!(known.get(InodeId(1)).is_some(), "each request uses it");
        assert!(known.by_inode.len() >= 6.min(number as usize) && known.by_inode.len() <= 9);
    }
    assert!(known.by_inode.contains_key(&InodeId(0)) && known.by_inode.contains_key(&InodeId(49)));
    drop(held);
    let (same, other) = (stamp(7), stamp(8));
    assert_eq!(known.generations.take(InodeId(7), &same), Some(Generation(1007)));
    assert_eq!(known.generations.take(InodeId(7), &same), None, "taken once");
    assert_eq!(known.generations.take(InodeId(9), &other), None, "the file has another stamp");
}

#[test]
fn generations_are_bounded_and_not_kept_of_files_in_the_journal() {
    let mut generations = Generations::default();
    for number in 0..100 {
        generations.keep(InodeId(number), &Record::new(b"f", stamp(1), Generation(number)), 10);
    }
    assert_eq!((generations.by_inode.len(), generations.order.len()), (10, 10));
    assert_eq!(generations.take(InodeId(99), &stamp(1)), Some(Generation(99)));
    let journaled = Record { journaled: true, ..Record::new(b"f", stamp(1), Generation(5)) };
    generations.keep(InodeId(200), &journaled, 10);
    assert_eq!(generations.take(InodeId(200), &stamp(1)), None);
}
