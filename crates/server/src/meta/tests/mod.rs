//! Tests of the metadata service on simulated clusters: one thread, simulated time, delayed messages, and nodes that crash and restart
//! from their logs. After every test, the tables of all nodes must be consistent.

mod access;
mod basic;
mod check;
pub(crate) mod client;
mod crash;
mod leases;
mod model;
pub(crate) mod world;

use super::MetaServices;
use client::Client;
use std::sync::Arc;
use tameike_core::NodeId;
use world::World;

impl MetaServices {
    /// Panics if a name, a directory or an operation is pending.
    fn assert_idle(&self) {
        self.all().iter().for_each(|home| home.state.lock().assert_idle());
    }
}

fn client(world: &Arc<World>) -> Client {
    Client { world: world.clone(), node: NodeId(0) }
}

/// Runs a client's work and all tasks to their end, then checks all tables.
fn run<T>(world: &Arc<World>, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let client = client(world);
    let result = world.machine.run(work(&client));
    world.machine.finish();
    check::check(world);
    result
}
