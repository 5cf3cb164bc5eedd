//! Many slim agents, and what each costs; and whether all nodes of a larger job learn of a death.

use std::sync::Arc;
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_core::NodeId;
use tameike_sim::countdown::Countdown;
use tameike_sim::scale::{Scale, measure};
use tameike_sim::world::{World, WorldConfig};

#[test]
fn connections_and_the_load_of_the_table_stay_bounded_as_agents_grow() {
    let measured = [20, 200]
        .map(|agents| measure(Scale { agents, connections: 16, seed: 5 }).expect("all is read, as it is"));
    for measured in &measured {
        let [most, at_the_end] = measured.most_peers();
        assert!(at_the_end <= 16, "{} agents: {at_the_end}, {most} at a time", measured.agents);
        let opens: u64 = measured.hot.iter().map(|load| load.opens).sum();
        assert_eq!(opens, u64::from(measured.agents), "each open is one look, and there is no other");
        assert_eq!(measured.hot.iter().map(|load| load.shared).sum::<u64>(), 8, "each unit once");
    }
    let busiest = measured.each_ref().map(|measured| measured.table_per_read()[1][1]);
    assert!(busiest[1] * 3.0 < busiest[0], "of many files: {busiest:?}");
}

/// With connections on first use, most nodes of a job would have learnt of a death only when they asked the dead one.
#[test]
fn nodes_that_are_not_connected_learn_of_a_death() {
    const NODES: usize = 14;
    let world = World::new(WorldConfig::plain(3, NODES), Countdown::default());
    let at = Arc::clone(&world);
    world.simulation.clone().run(async move {
        at.start_all(AgentMode::Serve, false).await.expect("the agents start");
        let neighbours = at.cluster.neighbours(NodeId(0));
        assert!(neighbours.len() < NODES - 1, "some are connected with others only");
        at.kill(0, false);
        at.runtime().sleep(Duration::from_secs(5)).await;
        for node in 1..NODES {
            let unreachable = at.unreachable(node).expect("the node runs");
            assert_eq!(unreachable, [NodeId(0)], "node {node}");
        }
    });
}
