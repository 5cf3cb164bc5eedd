//! Tests of the metadata service: clusters on one thread, with simulated time, messages that take a while, and
//! nodes that die and come back with what their logs hold. After every test the tables of all nodes are checked
//! against each other.

mod access;
mod basic;
mod check;
mod client;
mod crash;
mod leases;
mod model;
mod world;

use super::MetaService;
use client::Client;
use std::sync::Arc;
use tameike_core::NodeId;
use world::World;

impl MetaService {
    /// Panics when a name or an operation is in the middle of something.
    fn assert_idle(&self) {
        self.state.lock().assert_idle();
    }
}

fn client(world: &Arc<World>) -> Client {
    Client { world: world.clone(), node: NodeId(0) }
}

/// Runs a client's work, then lets everything end, and checks all tables.
fn run<T>(world: &Arc<World>, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let client = client(world);
    let result = world.machine.run(work(&client));
    world.machine.finish();
    check::check(world);
    result
}
