//! The authority of the home map, as the driver of a job runs it: its messages to the agents take some time, but keep their order.

use super::World;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::authority::Authority;
use tameike_agent::control::LeaseMessage;
use tameike_core::limits::MAP_LEASE_INTERVAL;
use tameike_core::{Cluster, HomeId, HomeMap, NodeId};

/// Largest delay of a message to an agent or of its answer, and until the end of an agent is noticed.
const DELAY_MAX: Duration = Duration::from_millis(60);

/// The authority of a cluster that has not started yet.
pub(super) fn new(cluster: &Cluster) -> Authority {
    begun(cluster, (*cluster.map()).clone(), Duration::ZERO)
}

fn begun(cluster: &Cluster, map: HomeMap, now: Duration) -> Authority {
    let replicas = 1 + cluster.map().backups(HomeId(0)).len() as u32;
    let nodes = cluster.nodes().iter().map(|info| info.id);
    Authority::new(map, nodes, now).repairing(replicas, cluster.nodes())
}

impl World {
    /// The current home map.
    pub fn map(&self) -> HomeMap {
        self.authority.as_ref().map_or_else(|| (*self.cluster.map()).clone(), |one| one.lock().map().clone())
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.simulation.draw(DELAY_MAX.as_nanos() as u64))
    }

    /// Begins to grant leases again after all agents were restarted.
    pub(super) fn restart_authority(&self) {
        if let Some(authority) = &self.authority {
            let (map, now) = (self.map(), self.runtime().clock.monotonic());
            *authority.lock() = begun(&self.cluster, map, now);
        }
    }

    /// Notes that an agent has ended.
    pub(super) fn end_lease(&self, node: usize) {
        if let Some(authority) = &self.authority {
            authority.lock().ended(NodeId(node as u32));
        }
    }

    /// Sends leases from now on, if homes have replicas.
    pub(super) fn send_leases(self: &Arc<Self>) {
        if self.authority.is_none() || std::mem::replace(&mut self.state.lock().has_leases, true) {
            return;
        }
        let world = Arc::downgrade(self);
        self.runtime().spawn(async move {
            loop {
                let Some(this) = world.upgrade() else { return };
                this.decide();
                let pause = this.runtime().sleep(MAP_LEASE_INTERVAL);
                drop(this);
                pause.await;
            }
        });
    }

    fn authority(&self) -> Option<&Mutex<Authority>> {
        self.authority.as_ref()
    }

    /// Decides about the map, and sends a message to each agent.
    fn decide(self: &Arc<Self>) {
        let Some(authority) = self.authority() else { return };
        let now = self.runtime().clock.monotonic();
        let changes = authority.lock().tick(now);
        changes.iter().for_each(|change| log::info!("the home map changes: {change:?}"));
        (0..self.count()).for_each(|node| self.send_lease(node));
    }

    /// Sends a message to an agent, and takes its answer.
    fn send_lease(self: &Arc<Self>, node: usize) {
        let Some(authority) = self.authority() else { return };
        let Some((agent, runtime)) = self.with(node, |node, runtime, _| (node.clone(), runtime.clone()))
        else {
            return;
        };
        let message = authority.lock().message(NodeId(node as u32), self.runtime().clock.monotonic());
        let Some(message) = message else { return };
        let LeaseMessage { number, .. } = message;
        log::trace!("message {number} to node {node}");
        let (world, there, back) = (Arc::downgrade(self), self.delay(), self.delay());
        let (driver, pipe) = (self.runtime(), runtime.clone());
        runtime.spawn(async move {
            pipe.sleep(there).await;
            let answer = agent.renew_lease(message);
            // The way back does not depend on the agent.
            driver.clone().spawn(async move {
                driver.sleep(back).await;
                let Some(world) = world.upgrade() else { return };
                let now = world.runtime().clock.monotonic();
                let Some(authority) = world.authority() else { return };
                let is_urgent = authority.lock().answered(NodeId(node as u32), answer, now);
                if is_urgent {
                    world.send_lease(node);
                }
            });
        });
    }
}
