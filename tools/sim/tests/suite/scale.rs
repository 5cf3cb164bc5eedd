//! Costs of many small agents, and failure detection in a larger job.

use super::programs::on_cluster;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_core::wire::region::BARRIER_CHILDREN;
use tameike_sim::scale::{MeasuredBarrier, Scale, measure, measure_barriers};
use tameike_sim::world::WorldConfig;

#[test]
fn connections_and_cache_table_load_stay_bounded_as_agents_grow() {
    let measured = [20, 200].map(|agents| {
        measure(Scale { agents, connections: 16, seed: 5 }).expect("all reads return the right bytes")
    });
    for measured in &measured {
        let [most, at_the_end] = measured.most_peers();
        assert!(at_the_end <= 16, "{} agents: {at_the_end}, {most} at a time", measured.agents);
        let opens: u64 = measured.hot.iter().map(|load| load.opens).sum();
        assert_eq!(opens, u64::from(measured.agents), "each open is one lookup, and there is no other");
        assert_eq!(measured.hot.iter().map(|load| load.shared).sum::<u64>(), 8, "each unit once");
    }
    let busiest = measured.each_ref().map(|measured| measured.table_per_read()[1][1]);
    assert!(busiest[1] * 3.0 < busiest[0], "of many files: {busiest:?}");
}

/// Also with 1,000 nodes: `tameike-sim scale --barriers --agents 1000`.
#[test]
fn no_node_handles_more_arrivals_than_its_children_send() {
    const NODES: u32 = 90;
    let barriers = measure_barriers(NODES, 5).expect("all barriers return");
    let arrivals: Vec<_> = barriers.iter().map(MeasuredBarrier::arrivals).collect();
    // No node knows the others before the first release.
    assert_eq!(arrivals[0], (u64::from(NODES) - 1, 0));
    let most = BARRIER_CHILDREN as u64;
    for (coordinator, others) in &arrivals[1..] {
        // Those of the first level, and of its own children.
        assert!(*coordinator <= 2 * most && *others <= most, "{arrivals:?}");
        assert!(*others > 1, "{arrivals:?}");
    }
}

/// With connections on first use only, most nodes would detect a failure only at their next request to the failed node.
#[test]
fn nodes_that_are_not_connected_detect_a_failure() {
    const NODES: usize = 14;
    on_cluster(WorldConfig::plain(3, NODES), async |at| {
        let neighbours = at.cluster.neighbours(NodeId(0));
        assert!(neighbours.len() < NODES - 1, "some nodes are not neighbours");
        at.kill(0, false);
        at.runtime().sleep(Duration::from_secs(5)).await;
        for node in 1..NODES {
            let unreachable = at.unreachable(node).expect("the node runs");
            assert_eq!(unreachable, [NodeId(0)], "node {node}");
        }
    });
}
