//! The authority of the home map, as drivers run it: their messages to the agents take some time.
//!
//! A driver can fail, or be cut off from all agents but one. Another one then takes over, as that of a volume does: most keepers of the map must
//! have promised its term (`tameike_agent::keepers`).

use super::{Canary, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::authority::{Authority, TAKEOVER_TIME};
use tameike_agent::control::LeaseMessage;
use tameike_agent::keepers::{Found, Keeper, Keepers, Keeping, Kept, KeptRecord, Term, find};
use tameike_core::limits::MAP_LEASE_INTERVAL;
use tameike_core::{HomeMap, NodeId};

/// Largest delay of a message to an agent or of its answer, and until the end of an agent is noticed.
const DELAY_MAX: Duration = Duration::from_millis(60);
/// Longest time until the next driver begins.
const NEXT_DRIVER_MAX: Duration = Duration::from_secs(3);
/// Time in which a driver takes over, or another one begins.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(1);

/// A driver. Several can run at a time, of which the one with the highest term has taken over, or will.
struct Driver {
    /// Its authority, if it has taken over.
    authority: Option<Authority>,
    /// What keepers keep, once most have promised its term.
    keeping: Option<Keeping>,
    map: HomeMap,
    promises: BTreeMap<Keeper, Kept<HomeMap>>,
    asked: Duration,
    /// It decides before its next interval.
    decides: bool,
    /// The nodes that it reaches, if not all.
    reaches: Option<BTreeSet<usize>>,
}

/// The drivers of a cluster, and what the nodes keep for them.
#[derive(Default)]
pub(super) struct Drivers {
    running: BTreeMap<Term, Driver>,
    kept: Vec<Kept<HomeMap>>,
    /// The last map that was used.
    map: Option<HomeMap>,
    last_term: Term,
    /// Drivers send leases.
    has_leases: bool,
    /// The nodes that new drivers reach, if not all.
    reached: Option<BTreeSet<usize>>,
    /// The nodes that were excluded, and that no one has asked for yet.
    excluded: BTreeSet<usize>,
}

impl Drivers {
    /// Those of a cluster with this first map.
    pub(super) fn new(map: HomeMap, nodes: usize) -> Self {
        let kept = (0..nodes).map(|_| Kept::default()).collect();
        Self { kept, map: Some(map), ..Self::default() }
    }

    /// The driver that has taken over last.
    fn current(&mut self) -> Option<(Term, &mut Driver)> {
        let mut drivers = self.running.iter_mut().rev();
        drivers.find(|(_, driver)| driver.authority.is_some()).map(|(term, driver)| (*term, driver))
    }

    /// Notes that a driver can use its map.
    fn use_map(&mut self, term: Term) {
        let Some(driver) = self.running.get(&term) else { return };
        self.excluded.extend(driver.map.excluded().iter().map(|node| node.0 as usize));
        self.map = Some(driver.map.clone());
    }
}

fn keeper(node: usize) -> Keeper {
    Keeper { node: NodeId(node as u32), store: 0 }
}

impl World {
    /// The current home map.
    pub fn map(&self) -> HomeMap {
        let map = self.drivers.as_ref().and_then(|drivers| drivers.lock().map.clone());
        map.unwrap_or_else(|| (*self.cluster.map()).clone())
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.simulation.draw(DELAY_MAX.as_nanos() as u64))
    }

    fn with_drivers<T>(&self, act: impl FnOnce(&mut Drivers) -> T) -> Option<T> {
        self.drivers.as_ref().map(|drivers| act(&mut drivers.lock()))
    }

    fn with_driver<T>(&self, term: Term, act: impl FnOnce(&mut Driver) -> T) -> Option<T> {
        self.with_drivers(|drivers| drivers.running.get_mut(&term).map(act)).flatten()
    }

    /// The keepers of a map after others, if the drivers are those of a volume.
    fn keepers(&self, map: &HomeMap, current: &Keepers) -> Keepers {
        let nodes = self.cluster.nodes();
        let stores = nodes.iter().filter(|_| self.config.has_keepers).map(|node| (node.id, 0)).collect();
        Keepers::choose(&nodes, &stores, current, |node| !map.excludes(node))
    }

    fn authority(&self, term: Term, map: HomeMap, promised: &[Keeper], asked: Duration) -> Authority {
        let (nodes, now) = (self.cluster.nodes(), self.runtime().clock.monotonic());
        let replicas = self.cluster.replicas() as u32;
        let authority =
            Authority::new(map, nodes.iter().map(|info| info.id), now).repairing(replicas, &nodes);
        let is_hasty = self.config.canary == Some(Canary::HastyDriver);
        let since = if is_hasty { now.saturating_sub(TAKEOVER_TIME) } else { now };
        authority.taking_over(term, promised, asked, since)
    }

    /// Begins to grant leases, before all agents are started: no other driver runs.
    pub(super) fn restart_authority(&self) {
        let (map, now) = (self.map(), self.runtime().clock.monotonic());
        self.with_drivers(|drivers| {
            drivers.running.clear();
            drivers.last_term.0 += 1;
            let term = drivers.last_term;
            let mut keeping = Keeping::new(term);
            keeping.begin(self.keepers(&map, &Keepers::default()));
            let record = keeping.record(map.clone());
            let all: Vec<_> = (0..drivers.kept.len()).map(keeper).collect();
            for (kept, keeper) in drivers.kept.iter_mut().zip(&all) {
                let _ = kept.keep(record.clone()) && keeping.kept(*keeper, record.version);
            }
            let mut authority = self.authority(term, map.clone(), &all, now);
            authority.set_keepers(keeping.keepers().clone());
            let (promises, decides, reaches) = Default::default();
            let (authority, keeping) = (Some(authority), Some(keeping));
            drivers
                .running
                .insert(term, Driver { authority, keeping, map, promises, asked: now, decides, reaches });
        });
    }

    /// Has all homes of a node moved to others, if these are enough for all replicas, or lets it have homes again.
    pub fn leave(&self, node: usize) {
        let (device_nodes, node) = (self.cluster.device_nodes(), NodeId(node as u32));
        let replicas = self.cluster.replicas();
        self.with_drivers(|drivers| {
            let Some(authority) = drivers.current().and_then(|(_, driver)| driver.authority.as_mut()) else {
                return;
            };
            let others = device_nodes.iter().filter(|other| **other != node);
            let others = others.filter(|other| !authority.is_leaving(**other)).count();
            if authority.is_leaving(node) {
                authority.stay(node);
            } else if others >= replicas {
                authority.leave(node);
            }
        });
    }

    /// Lets all nodes have homes again.
    pub fn stay(&self) {
        self.with_drivers(|drivers| {
            let authorities = drivers.running.values_mut().filter_map(|driver| driver.authority.as_mut());
            authorities.for_each(|authority| {
                self.cluster.device_nodes().iter().for_each(|node| authority.stay(*node));
            });
        });
    }

    /// Notes that an agent has ended.
    pub(super) fn end_lease(&self, node: usize) {
        self.with_drivers(|drivers| {
            let authorities = drivers.running.values_mut().filter_map(|driver| driver.authority.as_mut());
            authorities.for_each(|authority| authority.ended(NodeId(node as u32)));
        });
    }

    /// Whether the agents need leases.
    pub(super) fn has_leases(&self) -> bool {
        self.with_drivers(|drivers| drivers.has_leases).unwrap_or(false)
    }

    /// Sends leases from now on, if homes have replicas.
    pub(super) fn send_leases(self: &Arc<Self>) {
        self.with_drivers(|drivers| drivers.has_leases = true);
        let term = self.with_drivers(|drivers| drivers.current().map(|(term, _)| term)).flatten();
        term.into_iter().for_each(|term| self.run_driver(term));
    }

    /// The nodes that were excluded since the last call, and those that are now.
    pub fn take_excluded(&self) -> BTreeSet<usize> {
        let now = self.map().excluded().iter().map(|node| node.0 as usize).collect();
        self.with_drivers(|drivers| std::mem::replace(&mut drivers.excluded, now)).unwrap_or_default()
    }

    /// The current driver fails. Or it and one node are cut off from the others for a time, and from the next driver.
    pub fn fail_driver(self: &Arc<Self>, alone: Option<(usize, Duration)>) {
        if self.keepers(&self.map(), &Keepers::default()).is_empty() || !self.has_leases() {
            return;
        }
        let failed = self.with_drivers(|drivers| {
            let term = drivers.current().map(|(term, _)| term)?;
            match alone {
                Some((node, _)) => drivers.running.get_mut(&term)?.reaches = Some([node].into()),
                None => drop(drivers.running.remove(&term)),
            }
            Some(term)
        });
        let Some(Some(Term(term))) = failed else { return };
        log::info!("driver {term} fails: {alone:?}");
        if let Some((node, _)) = alone {
            for other in (0..self.count()).filter(|other| *other != node) {
                self.network.cut(NodeId(node as u32), NodeId(other as u32));
                self.network.cut(NodeId(other as u32), NodeId(node as u32));
            }
        }
        if let Some((node, _)) = alone {
            let others = (0..self.count()).filter(|other| *other != node).collect();
            self.with_drivers(|drivers| drivers.reached = Some(others));
        }
        let wait = Duration::from_nanos(self.simulation.draw(NEXT_DRIVER_MAX.as_nanos() as u64));
        let (world, runtime) = (Arc::downgrade(self), self.runtime());
        self.runtime().spawn(async move {
            runtime.sleep(wait).await;
            let Some(world) = world.upgrade() else { return };
            // All agents may have been restarted meanwhile.
            if world.with_drivers(|drivers| drivers.last_term.0 == term) == Some(true) {
                world.begin_driver();
            }
        });
        if let Some((_, time)) = alone {
            let (world, runtime) = (Arc::downgrade(self), self.runtime());
            self.runtime().spawn(async move {
                runtime.sleep(time).await;
                if let Some(world) = world.upgrade() {
                    world.network.heal();
                    world.reach_all();
                }
            });
        }
    }

    /// Number of drivers so far.
    pub fn drivers(&self) -> u64 {
        self.with_drivers(|drivers| drivers.last_term.0).unwrap_or(0)
    }

    /// Lets all drivers reach all nodes, over new connections.
    pub fn reach_all(&self) {
        let is_up: Vec<_> = (0..self.count()).map(|node| self.is_up(node)).collect();
        self.with_drivers(|drivers| {
            drivers.reached = None;
            for driver in drivers.running.values_mut() {
                let Some(reached) = driver.reaches.take() else { continue };
                let Some(authority) = &mut driver.authority else { continue };
                let nodes = (0..is_up.len()).filter(|node| is_up[*node] && !reached.contains(node));
                nodes.for_each(|node| authority.connected(NodeId(node as u32)));
            }
        });
    }

    /// The next driver asks all nodes for their promise, again and again until most keepers give it.
    fn begin_driver(self: &Arc<Self>) {
        let (map, asked) = (self.map(), self.runtime().clock.monotonic());
        let begun = self.with_drivers(|drivers| {
            drivers.last_term.0 += 1;
            let (authority, keeping, promises, decides) = Default::default();
            let reaches = drivers.reached.clone();
            let driver = Driver { authority, keeping, map, promises, asked, decides, reaches };
            drivers.running.insert(drivers.last_term, driver);
            drivers.last_term
        });
        let Some(term) = begun else { return };
        log::info!("driver {} begins", term.0);
        for node in 0..self.count() {
            self.send(term, node, move |world| {
                let promised = world.with_drivers(|drivers| {
                    let kept = &mut drivers.kept[node];
                    kept.promise(term).then(|| kept.clone())
                });
                move |world: &Arc<Self>| {
                    if let Some(Some(kept)) = promised {
                        world.take_promise(term, node, kept);
                    }
                }
            });
        }
        let (world, runtime) = (Arc::downgrade(self), self.runtime());
        self.runtime().spawn(async move {
            runtime.sleep(TAKEOVER_LIMIT).await;
            let Some(world) = world.upgrade() else { return };
            let has_failed = world.with_drivers(|drivers| {
                let waits = drivers.running.get(&term).is_some_and(|driver| driver.authority.is_none());
                waits && drivers.running.remove(&term).is_some()
            });
            if has_failed == Some(true) {
                world.begin_driver();
            }
        });
    }

    fn take_promise(self: &Arc<Self>, term: Term, node: usize, kept: Kept<HomeMap>) {
        let taken = self.with_driver(term, |driver| {
            driver.promises.insert(keeper(node), kept);
            let Found::Newest(found) = find(&driver.promises) else { return false };
            if driver.keeping.is_some() {
                return false;
            }
            driver.map = found.record.clone();
            driver.keeping = Some(Keeping::from_found(term, found));
            true
        });
        if taken == Some(true) {
            self.send_record(term);
        }
    }

    /// Has the keepers keep the map of a driver.
    fn send_record(self: &Arc<Self>, term: Term) {
        let record: Option<Option<KeptRecord<HomeMap>>> = self.with_driver(term, |driver| {
            let map = driver.map.clone();
            driver.keeping.as_ref().map(|keeping| keeping.record(map))
        });
        let Some(Some(record)) = record else { return };
        let keepers: BTreeSet<_> = record.keepers.iter().chain(record.before.iter()).collect();
        for keeper in keepers {
            let (node, record) = (keeper.node.0 as usize, record.clone());
            self.send(term, node, move |world| {
                let version = record.version;
                let is_kept = world.with_drivers(|drivers| drivers.kept[node].keep(record));
                move |world: &Arc<Self>| {
                    if is_kept == Some(true)
                        && world.with_driver(term, |driver| {
                            driver.keeping.as_mut().is_some_and(|keeping| keeping.kept(keeper, version))
                        }) == Some(true)
                    {
                        world.take_kept(term);
                    }
                }
            });
        }
    }

    /// Most keepers keep the map of a driver: it uses it.
    fn take_kept(self: &Arc<Self>, term: Term) {
        let begins = self.with_drivers(|drivers| {
            drivers.use_map(term);
            let driver = drivers.running.get_mut(&term)?;
            let begins = driver.authority.is_none();
            if begins {
                let promised: Vec<_> = driver.promises.keys().copied().collect();
                driver.authority = Some(self.authority(term, driver.map.clone(), &promised, driver.asked));
            }
            let keepers = driver.keeping.as_ref()?.keepers().clone();
            driver.authority.as_mut()?.set_keepers(keepers);
            Some(begins)
        });
        match begins.flatten() {
            Some(true) => {
                log::info!("driver {} has taken over", term.0);
                (0..self.count()).filter(|node| !self.is_up(*node)).for_each(|node| self.end_lease(node));
                self.run_driver(term);
            }
            Some(false) => self.send_all(term),
            None => {}
        }
    }

    /// Sends leases of a driver in intervals, until it ends.
    fn run_driver(self: &Arc<Self>, term: Term) {
        let world = Arc::downgrade(self);
        self.runtime().spawn(async move {
            loop {
                let Some(this) = world.upgrade() else { return };
                if this.with_driver(term, |_| ()).is_none() {
                    return;
                }
                this.decide(term);
                this.send_all(term);
                let pause = this.runtime().sleep(MAP_LEASE_INTERVAL);
                drop(this);
                pause.await;
            }
        });
    }

    /// Decides about the map.
    fn decide(self: &Arc<Self>, term: Term) {
        let now = self.runtime().clock.monotonic();
        let changed = self.with_driver(term, |driver| {
            let Some(authority) = &mut driver.authority else { return false };
            let changes = authority.tick(now);
            for change in &changes {
                log::info!("driver {} changes the home map: {change:?}", term.0);
            }
            if changes.is_empty() {
                return false;
            }
            driver.map = authority.map().clone();
            if let Some(keeping) = &mut driver.keeping {
                keeping.begin(self.keepers(&driver.map, keeping.keepers()));
            }
            true
        });
        if changed == Some(true) {
            self.send_record(term);
            let is_kept = |driver: &mut Driver| driver.keeping.as_ref().is_some_and(Keeping::is_kept);
            if self.with_driver(term, is_kept) == Some(true) {
                self.with_drivers(|drivers| drivers.use_map(term));
            }
        }
    }

    /// Sends a message to each agent.
    fn send_all(self: &Arc<Self>, term: Term) {
        (0..self.count()).for_each(|node| self.send_lease(term, node));
    }

    /// Decides about the map when answers make that due.
    fn decide_early(self: &Arc<Self>, term: Term) {
        let due = self.with_driver(term, |driver| {
            let due = driver.authority.as_ref()?.decision_due()?;
            (!std::mem::replace(&mut driver.decides, true)).then_some(due)
        });
        let Some(Some(due)) = due else { return };
        let (world, runtime) = (Arc::downgrade(self), self.runtime());
        self.runtime().spawn(async move {
            runtime.sleep(due.saturating_sub(runtime.clock.monotonic())).await;
            let Some(world) = world.upgrade() else { return };
            world.with_driver(term, |driver| driver.decides = false);
            world.decide(term);
            let is_due = |driver: &mut Driver| driver.authority.as_ref().is_some_and(Authority::is_round_due);
            if world.with_driver(term, is_due) == Some(true) {
                world.send_all(term);
            }
        });
    }

    /// Sends a message to an agent, and takes its answer. No message goes out before most keepers keep the map.
    fn send_lease(self: &Arc<Self>, term: Term, node: usize) {
        let now = self.runtime().clock.monotonic();
        if !self.is_up(node) {
            return;
        }
        let message = self.with_driver(term, |driver| {
            driver.keeping.as_ref().filter(|keeping| keeping.is_kept())?;
            driver.authority.as_mut()?.message(NodeId(node as u32), now)
        });
        let Some(Some(message)) = message else { return };
        let LeaseMessage { number, .. } = message;
        log::trace!("message {number} of driver {} to node {node}", term.0);
        self.send(term, node, move |world| {
            let promised = world.with_drivers(|drivers| {
                // A node that has not heard of the driver promises its term with the connection.
                let kept = &mut drivers.kept[node];
                let _ = kept.promised < term && kept.promise(term);
                kept.promised
            });
            let agent = world.with(node, |node, _, _| node.clone()).filter(|_| promised == Some(term));
            let answer = agent.map(|agent| agent.renew_lease(message));
            move |world: &Arc<Self>| {
                let Some(answer) = answer else {
                    log::info!("driver {} learns that another one has taken over", term.0);
                    world.with_drivers(|drivers| drivers.running.remove(&term));
                    return;
                };
                let now = world.runtime().clock.monotonic();
                let is_urgent = world.with_driver(term, |driver| {
                    let Some(authority) = &mut driver.authority else { return false };
                    authority.set_store(keeper(node));
                    authority.answered(NodeId(node as u32), answer, now)
                });
                if is_urgent == Some(true) {
                    world.send_lease(term, node);
                }
                world.decide_early(term);
            }
        });
    }

    /// Sends a request of a driver to an agent, where `serve` executes it, and then executes its reply at the driver. Neither arrives if the driver
    /// does not reach the node.
    fn send<R: FnOnce(&Arc<Self>) + Send + 'static>(
        self: &Arc<Self>,
        term: Term,
        node: usize,
        serve: impl FnOnce(&Arc<Self>) -> R + Send + 'static,
    ) {
        let Some(runtime) = self.with(node, |_, runtime, _| runtime.clone()) else { return };
        let (world, there, back) = (Arc::downgrade(self), self.delay(), self.delay());
        let (driver, pipe) = (self.runtime(), runtime.clone());
        runtime.spawn(async move {
            pipe.sleep(there).await;
            let Some(this) = world.upgrade().filter(|world| world.reaches(term, node)) else { return };
            let reply = serve(&this);
            drop(this);
            // The way back does not depend on the agent.
            driver.clone().spawn(async move {
                driver.sleep(back).await;
                if let Some(this) = world.upgrade().filter(|world| world.reaches(term, node)) {
                    reply(&this);
                }
            });
        });
    }

    fn reaches(&self, term: Term, node: usize) -> bool {
        let reaches = |driver: &mut Driver| driver.reaches.as_ref().is_none_or(|nodes| nodes.contains(&node));
        self.with_driver(term, reaches).unwrap_or(false)
    }
}
