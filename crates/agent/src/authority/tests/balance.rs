//! Homes move to nodes that were added, and away from nodes that leave.

use super::repair::{Repaired, infos};
use super::*;

/// Nodes on hosts of their own, in one group.
fn nodes(count: u32) -> Vec<NodeInfo> {
    infos(count).into_iter().map(|info| NodeInfo { group: 0, ..info }).collect()
}

/// A job with two replicas on such nodes.
fn job_of(count: u32) -> Repaired {
    let mut bed = Repaired::of(nodes(count), 2);
    bed.run(ms(5000));
    bed
}

/// The numbers of copies that nodes have, and of homes that they serve.
fn loads(map: &HomeMap, nodes: impl Iterator<Item = u32>) -> Vec<(usize, usize)> {
    let load = |node| {
        let copies = map.homes().filter(|&home| map.is_on(home, node)).count();
        (copies, map.served_by(node).count())
    };
    nodes.map(|node| load(NodeId(node))).collect()
}

#[track_caller]
fn assert_even(map: &HomeMap, nodes: impl Iterator<Item = u32>) {
    let loads = loads(map, nodes);
    let spread = |of: fn(&(usize, usize)) -> usize| {
        loads.iter().map(of).max().unwrap_or_default() - loads.iter().map(of).min().unwrap_or_default()
    };
    assert!(spread(|load| load.0) <= 1 && spread(|load| load.1) <= 1, "{loads:?}");
    assert!(map.is_valid() && map.all_joining().is_empty());
}

#[test]
fn the_homes_of_a_new_job_stay_where_they_are() {
    for count in 2..=33 {
        for replicas in [2, 3].into_iter().filter(|replicas| *replicas <= count) {
            let mut bed = Repaired::of(infos(count), replicas);
            assert_eq!(bed.run(ms(6000)), [], "{count} nodes, {replicas} replicas");
            assert_eq!(bed.authority.copies_to_move(), 0);
        }
    }
}

#[test]
fn added_nodes_get_their_share_and_every_home_keeps_its_copies() {
    for (count, added, replicas) in [(2, 2, 2), (3, 1, 2), (4, 3, 3), (5, 8, 2)] {
        let all = nodes(count + added);
        let mut bed = Repaired::of(all[..count as usize].to_vec(), replicas);
        bed.run(ms(5000));
        all[count as usize..].iter().for_each(|node| bed.authority.add(node.clone()));
        assert_eq!(bed.authority.map().excluded().len(), added as usize);
        let mut changes = Vec::new();
        while bed.authority.copies_to_move() > 0 || changes.is_empty() {
            changes.extend(bed.run(MAP_LEASE_INTERVAL));
            let map = bed.authority.map();
            assert!(map.is_valid());
            let copies = |home: &HomeId| map.copies(*home) >= replicas as usize;
            assert!(map.homes().all(|home| copies(&home)));
            assert!(changes.len() < 4000, "{:?}", &changes[3900..]);
        }
        assert_even(bed.authority.map(), 0..count + added);
        let moved = changes.iter().filter(|change| matches!(change, MapChange::Moved(..))).count();
        let of_added = loads(bed.authority.map(), count..count + added);
        let needed: usize = of_added.iter().map(|load| load.0).sum();
        assert!((needed..=needed * 3 / 2).contains(&moved), "{moved} moves for {needed} copies");
        assert_eq!(bed.run(ms(10_000)), [], "no home moves for ever");
    }
}

#[test]
fn the_homes_of_a_node_that_leaves_move_to_the_others() {
    let mut bed = job_of(5);
    bed.authority.leave(NodeId(2));
    while bed.authority.homes_on(NodeId(2)) > 0 {
        bed.run(MAP_LEASE_INTERVAL);
        let map = bed.authority.map();
        assert!(map.homes().all(|home| map.copies(home) >= 2));
    }
    bed.fail(2);
    assert!(bed.run(ms(2000)).contains(&MapChange::Excluded(NodeId(2), Cause::Left)));
    bed.run(ms(10_000));
    assert_even(bed.authority.map(), [0, 1, 3, 4].into_iter());
    // It comes back as another process, at another address.
    let again = NodeInfo { address: "elsewhere".to_owned(), ..nodes(5)[2].clone() };
    bed.failed.clear();
    bed.authority.add(again);
    bed.run(ms(30_000));
    assert_even(bed.authority.map(), 0..5);
}

#[test]
fn a_primary_whose_homes_move_has_no_lease_when_others_serve_them() {
    let mut bed = job_of(2);
    nodes(4)[2..].iter().for_each(|node| bed.authority.add(node.clone()));
    let mut handed_over = 0;
    for _ in 0..600 {
        let before = bed.authority.map().clone();
        bed.now += ms(50);
        let changes = bed.authority.tick(bed.now);
        for change in &changes {
            if let MapChange::Moved(home, from, to) = change
                && before.primary(*home) == *from
            {
                assert_eq!(bed.authority.map().primary(*home), *to);
                assert!(!bed.authority.members[from].has_lease(bed.now), "{home}");
                handed_over += 1;
            }
        }
        bed.answer_all();
    }
    assert!(handed_over > 10, "{handed_over}");
    assert_even(bed.authority.map(), 0..4);
    assert!((0..4).all(|node| bed.authority.members[&NodeId(node)].has_lease(bed.now)));
}

#[test]
fn moves_survive_failures_of_both_nodes() {
    for failing in [0, 1, 3] {
        let mut bed = job_of(3);
        bed.copies = false;
        bed.authority.add(nodes(4)[3].clone());
        bed.run(ms(6000));
        assert!(!bed.authority.map().all_joining().is_empty());
        bed.fail(failing);
        bed.run(ms(6000));
        bed.copies = true;
        bed.run(ms(60_000));
        assert_even(bed.authority.map(), (0..4).filter(|node| *node != failing));
        assert!(bed.authority.map().homes().all(|home| bed.authority.map().copies(home) == 2));
    }
}

#[test]
fn a_new_authority_ends_the_moves_of_the_last_one() {
    let mut bed = job_of(3);
    bed.authority.add(nodes(4)[3].clone());
    let is_too_many = |map: &HomeMap| map.homes().any(|home| map.copies(home) > 2);
    while !is_too_many(bed.authority.map()) {
        bed.now += ms(50);
        _ = bed.authority.tick(bed.now);
        bed.answer_all();
    }
    let map = bed.authority.map().clone();
    bed.authority = Authority::new(map, (0..4).map(NodeId), bed.now).repairing(2, &nodes(4));
    bed.run(ms(60_000));
    assert!(!is_too_many(bed.authority.map()));
    assert_even(bed.authority.map(), 0..4);
}

#[test]
fn homes_do_not_move_into_the_failure_domain_of_their_other_copies() {
    let mut bed = Repaired::of(infos(4), 2);
    bed.run(ms(5000));
    infos(6)[4..].iter().for_each(|node| bed.authority.add(node.clone()));
    bed.run(ms(100_000));
    let map = bed.authority.map();
    for home in map.homes() {
        let groups: BTreeSet<_> = map.replicas(home).map(|node| node.0 / 2).collect();
        assert_eq!(groups.len(), 2, "{home}");
    }
    let copies: Vec<_> = loads(map, 0..6).into_iter().map(|load| load.0).collect();
    assert!(copies.iter().max() <= copies.iter().min().map(|least| least + 1).as_ref(), "{copies:?}");
}

#[test]
fn a_home_with_a_region_keeps_its_primary() {
    let mut bed = job_of(3);
    let pinned: Vec<_> = bed.authority.map().served_by(NodeId(1)).take(3).collect();
    bed.pinned.clone_from(&pinned);
    bed.run(ms(1000));
    bed.authority.leave(NodeId(1));
    bed.authority.add(nodes(4)[3].clone());
    bed.run(ms(60_000));
    let left: Vec<_> =
        bed.authority.map().homes().filter(|home| bed.authority.map().is_on(*home, NodeId(1))).collect();
    assert_eq!(left, pinned);
    assert!(left.iter().all(|home| bed.authority.map().primary(*home) == NodeId(1)));
    bed.pinned.clear();
    bed.run(ms(10_000));
    assert_eq!(bed.authority.homes_on(NodeId(1)), 0);
}
