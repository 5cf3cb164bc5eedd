use super::*;
use std::collections::BTreeSet;

fn unit(index: u32) -> Unit {
    Unit { file: 0, index }
}

/// Misses of a memory of `capacity` units, each of whose uses is told.
fn misses(kind: Kind, capacity: usize, uses: &[u32]) -> usize {
    let (mut policy, mut held, mut misses) = (kind.policy(capacity), BTreeSet::new(), 0);
    for (place, &index) in uses.iter().enumerate() {
        let later = uses[place + 1..].iter().position(|&other| other == index);
        let next = later.map_or(usize::MAX, |distance| place + 1 + distance);
        if held.contains(&index) {
            policy.hit(unit(index), next);
            continue;
        }
        misses += 1;
        if held.len() == capacity {
            let gone = policy.evict().expect("one of those that are there");
            assert!(held.remove(&gone.index), "{kind:?} names {gone:?}, which is not there");
        }
        held.insert(index);
        policy.insert(unit(index), next);
    }
    misses
}

fn mixed() -> Vec<u32> {
    let mut chance = crate::chance::Chance::new(7);
    // Ten units again and again, among them a scan.
    (0..4000).map(|place| if place % 2 == 0 { chance.below(10) as u32 } else { 100 + place }).collect()
}

#[test]
fn none_misses_less_than_the_bound_and_each_names_what_is_there() {
    let uses = mixed();
    let bound = misses(Kind::Bound, 16, &uses);
    assert_eq!(bound, 2010);
    for kind in Kind::value_variants() {
        assert!(misses(*kind, 16, &uses) >= bound, "{kind:?}");
    }
}

#[test]
fn what_is_made_to_resist_scans_does() {
    let uses = mixed();
    let lru = misses(Kind::Lru, 16, &uses);
    for kind in [Kind::Sieve, Kind::TwoQueue, Kind::Arc, Kind::S3Fifo, Kind::S3FifoOnce, Kind::Product] {
        let misses = misses(kind, 16, &uses);
        assert!(misses < 2100 && misses < lru, "{kind:?}: {misses}, LRU: {lru}");
    }
}

#[test]
fn first_in_first_out_and_least_recently_used_are_as_they_are_called() {
    let uses = [1, 2, 1, 3, 1, 2];
    assert_eq!(misses(Kind::Fifo, 2, &uses), 5);
    assert_eq!(misses(Kind::Clock, 2, &uses), 4);
    assert_eq!(misses(Kind::Lru, 2, &uses), 4);
    assert_eq!(misses(Kind::Bound, 2, &uses), 4);
}

#[test]
fn what_is_spared_is_not_the_next_to_go() {
    for kind in Kind::value_variants() {
        let mut policy = kind.policy(4);
        (0..4).for_each(|index| policy.insert(unit(index), 9));
        let spared = policy.evict().expect("one of four");
        policy.spare(spared);
        let gone: Vec<_> = (0..4).map_while(|_| policy.evict()).collect();
        assert_eq!(gone.len(), 4, "{kind:?} loses none");
        assert_ne!(gone[0], spared, "{kind:?}");
    }
}
