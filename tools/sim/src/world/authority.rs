//! The authority of the home map, as the driver of a job runs it: its messages to the agents take some time, but keep their order.

use super::World;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::authority::{Authority, MapChange};
use tameike_agent::control::LeaseMessage;
use tameike_core::limits::MAP_LEASE_INTERVAL;
use tameike_core::{Cluster, HomeMap, NodeId};

/// Largest delay of a message to an agent or of its answer, and until the end of an agent is noticed.
const DELAY_MAX: Duration = Duration::from_millis(60);

/// The authority of a cluster that has not started yet.
pub(super) fn new(cluster: &Cluster) -> Authority {
    begun(cluster, (*cluster.map()).clone(), Duration::ZERO)
}

fn begun(cluster: &Cluster, map: HomeMap, now: Duration) -> Authority {
    let replicas = cluster.replicas() as u32;
    let nodes = cluster.nodes();
    Authority::new(map, nodes.iter().map(|info| info.id), now).repairing(replicas, &nodes)
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

    /// Has all homes of a node moved to others, if these are enough for all replicas, or lets it have homes again.
    pub fn leave(&self, node: usize) {
        let Some(authority) = &self.authority else { return };
        let (mut authority, node) = (authority.lock(), NodeId(node as u32));
        let others = self.cluster.device_nodes().iter().filter(|other| **other != node);
        let others = others.filter(|other| !authority.is_leaving(**other)).count();
        if authority.is_leaving(node) {
            authority.stay(node);
        } else if others >= self.cluster.replicas() {
            authority.leave(node);
        }
    }

    /// Lets all nodes have homes again.
    pub fn stay(&self) {
        let Some(authority) = &self.authority else { return };
        let mut authority = authority.lock();
        self.cluster.device_nodes().iter().for_each(|node| authority.stay(*node));
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
                this.send_all();
                let pause = this.runtime().sleep(MAP_LEASE_INTERVAL);
                drop(this);
                pause.await;
            }
        });
    }

    /// The nodes that were excluded since the last call, and those that are now.
    pub fn take_excluded(&self) -> BTreeSet<usize> {
        let now = self.map().excluded().iter().map(|node| node.0 as usize).collect();
        std::mem::replace(&mut self.state.lock().excluded, now)
    }

    fn authority(&self) -> Option<&Mutex<Authority>> {
        self.authority.as_ref()
    }

    /// Decides about the map.
    fn decide(&self) {
        let Some(authority) = self.authority() else { return };
        let now = self.runtime().clock.monotonic();
        let changes = authority.lock().tick(now);
        for change in changes {
            log::info!("the home map changes: {change:?}");
            if let MapChange::Excluded(node, _) = change {
                self.state.lock().excluded.insert(node.0 as usize);
            }
        }
    }

    /// Sends a message to each agent.
    fn send_all(self: &Arc<Self>) {
        (0..self.count()).for_each(|node| self.send_lease(node));
    }

    /// Decides about the map when answers make that due.
    fn decide_early(self: &Arc<Self>) {
        let due = self.authority().and_then(|authority| authority.lock().decision_due());
        let Some(due) = due.filter(|_| !std::mem::replace(&mut self.state.lock().decides, true)) else {
            return;
        };
        let (world, runtime) = (Arc::downgrade(self), self.runtime());
        self.runtime().spawn(async move {
            runtime.sleep(due.saturating_sub(runtime.clock.monotonic())).await;
            let Some(world) = world.upgrade() else { return };
            world.state.lock().decides = false;
            world.decide();
            if world.authority().is_some_and(|authority| authority.lock().is_round_due()) {
                world.send_all();
            }
        });
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
                world.decide_early();
            });
        });
    }
}
