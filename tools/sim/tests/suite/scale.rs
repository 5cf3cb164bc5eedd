//! Costs of many small agents, and failure detection in a larger job.

use super::programs::on_cluster;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_sim::scale::{Scale, measure};
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
