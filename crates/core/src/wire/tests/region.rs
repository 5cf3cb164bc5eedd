//! Golden bytes of the messages about regions, and the size of their lists.

use super::{INODE, NODE, check};
use crate::ids::NodeId;
use crate::limits::NODES_MAX;
use crate::ranges::RangeSet;
use crate::wire::Reply;
use crate::wire::client::ClientReply;
use crate::wire::codec::encode;
use crate::wire::region::{
    Arrival, Changes, Members, NodeChanges, PAGE_RANGES_MAX, RegionReply, RegionRequest, Release, Writer,
    coarsen, united,
};
use crate::wire::window::{RANKS_MAX, Rank};
use proptest::prelude::*;

fn pages() -> RangeSet {
    [1..3, 300..500].into_iter().collect()
}

fn members() -> Members {
    Members { version: 5, nodes: (0..200).into() }
}

fn changes() -> Vec<NodeChanges> {
    vec![NodeChanges { writer: Writer { node: NODE, memory: 1 }, pages: pages() }]
}

pub(super) fn arrival() -> Arrival {
    Arrival { region: INODE, barrier: 300, processes: 200, changes: changes(), version: 5 }
}

pub(super) fn release() -> Release {
    Release { barrier: 301, sequence: 130, changes: Changes::Pages(changes()), members: members() }
}

#[test]
fn requests_to_coordinators_of_regions() {
    check(&[
        (
            RegionRequest::Attach { region: INODE, processes: 300, one_writer: true, rank: None },
            "00838404ac020100",
        ),
        (
            RegionRequest::Attach {
                region: INODE,
                processes: 300,
                one_writer: false,
                rank: Some(Rank { number: 200, bytes: 1 << 20 }),
            },
            "00838404ac020001c801808040",
        ),
        (RegionRequest::Detach { region: INODE, failed: true }, "0183840401"),
        (RegionRequest::Publish { region: INODE, memory: 1, pages: pages() }, "0283840401020103ac02f403"),
        (RegionRequest::Changes { region: INODE, after: 300 }, "03838404ac02"),
        (RegionRequest::Arrive(arrival()), "04838404ac02c80101c80101020103ac02f40305"),
        (
            RegionRequest::Allocate { region: INODE, pages: 300, bytes: 200, alignment: 8 },
            "05838404ac02c80108",
        ),
        (RegionRequest::Free { region: INODE, offset: 300 }, "06838404ac02"),
        (RegionRequest::Ranks { region: INODE }, "07838404"),
    ]);
}

#[test]
fn replies_of_coordinators_of_regions() {
    check(&[
        (RegionReply::Done, "00"),
        (RegionReply::Attached { barrier: 300, sequence: 130, members: members() }, "01ac028201050100c801"),
        (RegionReply::Published(300), "02ac02"),
        (RegionReply::Changes { sequence: 300, changes: Changes::Any, failed: true }, "03ac020001"),
        (
            RegionReply::Changes { sequence: 300, changes: Changes::Pages(changes()), failed: false },
            "03ac020101c80101020103ac02f40300",
        ),
        (RegionReply::Released(release()), "04ad0282010101c80101020103ac02f403050100c801"),
        (RegionReply::Allocated(300), "05ac02"),
        (RegionReply::Ranks(vec![NodeId(1), NodeId(300)]), "060201ac02"),
    ]);
}

fn ranges_of(changes: &[NodeChanges]) -> usize {
    changes.iter().map(|changes| changes.pages.count()).sum()
}

fn entry(node: u32, pages: impl Into<RangeSet>) -> NodeChanges {
    NodeChanges { writer: Writer { node: NodeId(node), memory: u32::MAX }, pages: pages.into() }
}

fn set(pages: &[(u32, u32)]) -> RangeSet {
    pages.iter().map(|&(start, end)| start..end).collect()
}

#[test]
fn the_smallest_gaps_are_joined() {
    let (first, second) = (set(&[(0, 1), (2, 3), (10, 11), (12, 13), (14, 15)]), set(&[(5, 6), (9, 10)]));
    let mut all = [entry(1, first.clone()), entry(2, second.clone())];
    for (limit, first, second) in [
        (7, first, second.clone()),
        (6, set(&[(0, 3), (10, 11), (12, 13), (14, 15)]), second.clone()),
        (4, set(&[(0, 3), (10, 15)]), second),
        (3, set(&[(0, 3), (10, 15)]), set(&[(5, 10)])),
        (0, set(&[(0, 15)]), set(&[(5, 10)])),
    ] {
        coarsen(&mut all, limit);
        assert_eq!(all, [entry(1, first), entry(2, second)], "{limit}");
    }
}

#[test]
fn the_largest_release_fits_in_a_message() {
    let (count, end) = (PAGE_RANGES_MAX as u32, u32::MAX - NODES_MAX);
    let all: Vec<_> = (NODES_MAX - count..NODES_MAX).map(|node| entry(node, end + node..u32::MAX)).collect();
    let nodes: RangeSet = (0..NODES_MAX / 2).map(|node| 2 * node..2 * node + 1).collect();
    let members = Members { version: u64::MAX, nodes };
    let release = Release { barrier: u64::MAX, sequence: u64::MAX, changes: Changes::Pages(all), members };
    encode(&Reply::Client(ClientReply::Released(release.clone()))).expect("it fits");
    encode(&Reply::Region(RegionReply::Released(release))).expect("it fits");
    let scattered = (0..PAGE_RANGES_MAX as u32).map(|page| u32::MAX - 2 * page - 1..u32::MAX - 2 * page);
    let request = RegionRequest::Publish { region: INODE, memory: u32::MAX, pages: scattered.collect() };
    encode(&crate::wire::Request::Region(request)).expect("it fits");
    let ranks = vec![NodeId(NODES_MAX - 1); RANKS_MAX as usize];
    encode(&Reply::Region(RegionReply::Ranks(ranks))).expect("it fits");
}

proptest! {
    #[test]
    fn coarse_lists_contain_all_pages(
        drawn in prop::collection::vec((0u32..4, 0u32..500, 1u32..9), 0..80),
        limit in 0usize..40,
    ) {
        let single = drawn.iter().map(|&(node, start, length)| entry(node, start..start + length));
        let fine = united(single);
        prop_assert!(fine.windows(2).all(|pair| pair[0].writer < pair[1].writer));
        for &(node, start, length) in &drawn {
            let found = fine.iter().find(|entry| entry.writer.node == NodeId(node)).expect("an entry");
            prop_assert!(found.pages.contains(&(start..start + length)));
        }
        let mut coarse = fine.clone();
        coarsen(&mut coarse, limit);
        prop_assert_eq!(ranges_of(&coarse), ranges_of(&fine).min(limit.max(fine.len())));
        for (coarse, fine) in coarse.iter().zip(&fine) {
            prop_assert!(coarse.pages.is_in_order());
            prop_assert!(fine.pages.iter().all(|range| coarse.pages.contains(&range)));
        }
    }
}
