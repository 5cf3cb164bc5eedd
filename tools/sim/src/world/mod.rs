//! A simulated cluster: the product's server, client and store on every node, assembled as in the agent, over a simulated network,
//! simulated disks and a simulated shared file system.
//!
//! All random choices follow from one seed. An agent fails with all its tasks, as a process does. Its disks remain, except for what a
//! power loss drops, and it can be restarted on them.

mod attached;
mod authority;
mod canary;
mod config;
mod counted;
mod disk;
mod disk_faults;
mod holders;
mod incarnation;
mod machine;
mod region_canary;
mod replicas;
mod table;

use crate::countdown::Countdown;
use crate::kernel::Kernel;
use crate::locking::Caller;
use crate::tree::SimulatedTree;
use attached::Attached;
use authority::Drivers;
pub use canary::Canary;
pub use config::WorldConfig;
pub(crate) use config::{AMPLE_CAPACITY, CHECKPOINT_BYTES};
use counted::Meter;
pub use counted::Traffic;
use disk::Disks;
use disk_faults::DiskCanary;
pub use disk_faults::DiskFaults;
pub(crate) use holders::Flip;
pub use holders::{Counts, Tally};
use machine::Machine;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::assembly;
use tameike_agent::check::{Report, check_media};
use tameike_agent::control::AgentMode;
use tameike_agent::{Memory, Node, Services, Views};
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::{Counter, Space};
use tameike_core::{Cluster, Errno, HomeId, JobId, NodeId, NodeInfo, Result, View};
use tameike_fabric::simulated::{NetworkFaults, SimulatedNetwork};
use tameike_fabric::{MapLease, Rpc};
use tameike_io::os::runtime::Resolver;
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Runtime};

/// Interval at which a drain checks whether a node that it waits for is excluded.
const DRAIN_PAUSE: Duration = Duration::from_millis(100);

/// The state of an agent's process.
struct Running {
    /// Number of the incarnation, which identifies its tasks in the simulation.
    incarnation: usize,
    machine: Arc<Machine>,
    node: Arc<Node>,
    /// The nodes as this agent knows them, with its home map.
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    lease: Arc<MapLease>,
    attached: Arc<Attached>,
    memory: Memory,
    /// Frames withheld to make its pools smaller.
    withheld: Vec<Frame>,
    /// The kernel's caches of the job-shared and the cache view.
    kernels: [Arc<Kernel>; 2],
    /// Resolved when the node fails.
    waiting: BTreeMap<u64, Resolver<()>>,
}

impl Running {
    /// Whether its store accepts no more changes, in a job that goes on without it.
    fn has_lost_store(&self) -> bool {
        let has_failed = self.node.services().is_some_and(|services| services.ledger.has_failed());
        has_failed && self.cluster.is_replicated()
    }
}

struct Site {
    disks: Option<Disks>,
    running: Option<Running>,
    /// Bit flips in memory of its last incarnation.
    flips: Vec<Flip>,
}

struct State {
    sites: Vec<Site>,
    incarnations: usize,
    waits: u64,
}

/// The cluster.
pub struct World {
    /// Simulated time and random choices.
    pub simulation: Simulation,
    /// The network between the nodes.
    pub network: SimulatedNetwork,
    /// The shared file system.
    pub tree: SimulatedTree,
    /// The nodes of the job.
    pub cluster: Arc<Cluster>,
    /// The countdown of all calls to disks, network and shared file system.
    pub countdown: Countdown,
    /// Counts outcomes of peer reads.
    pub tally: Tally,
    config: WorldConfig,
    meter: Meter,
    state: Mutex<State>,
    /// The drivers, with the authority of the home map, if homes have replicas.
    drivers: Option<Mutex<Drivers>>,
}

impl World {
    /// Creates a cluster without starting its agents.
    pub fn new(config: WorldConfig) -> Arc<Self> {
        Self::counted(config, Countdown::default(), Tally::default())
    }

    /// As [`Self::new`]. `countdown` counts or fails calls, and `tally` counts outcomes of peer reads.
    pub fn counted(config: WorldConfig, countdown: Countdown, tally: Tally) -> Arc<Self> {
        let simulation = Simulation::shuffled(config.seed);
        let nodes = config.devices.iter().enumerate().map(|(id, &device)| NodeInfo {
            id: NodeId(id as u32),
            host: format!("host{id}"),
            address: String::new(),
            group: 0,
            device,
        });
        let job = JobId::new("simulated").expect("a valid name");
        let cluster = Cluster::new(job, nodes.collect(), config.replicas).expect("a node with a device");
        let canary = DiskCanary {
            forgets_syncs: config.canary == Some(Canary::LostSync),
            shares_blocks: config.canary == Some(Canary::DoubleFreedExtent),
            hides_failures: config.canary == Some(Canary::HiddenFailure),
            hides_rot: config.canary == Some(Canary::HiddenRot),
        };
        let size = 4 * config.capacity + (8 << 20);
        let site = |(node, &device): (usize, &bool)| Site {
            disks: device.then(|| Disks::new(NodeId(node as u32), &simulation, &countdown, size, canary)),
            running: None,
            flips: Vec::new(),
        };
        let sites = config.devices.iter().enumerate().map(site).collect();
        let tree = SimulatedTree::new(simulation.clone(), countdown.clone());
        if config.canary == Some(Canary::TornRename) {
            tree.tear_renames();
        }
        Arc::new(Self {
            network: SimulatedNetwork::new(simulation.clone(), NetworkFaults::NONE),
            tree,
            drivers: (config.replicas > 1)
                .then(|| Mutex::new(Drivers::new((*cluster.map()).clone(), config.devices.len()))),
            cluster: Arc::new(cluster),
            state: Mutex::new(State { sites, incarnations: 0, waits: 0 }),
            simulation,
            countdown,
            tally,
            meter: Meter::new(config.devices.len()),
            config,
        })
    }

    /// Returns the capacity of each view on each node, in bytes.
    pub fn capacity(&self) -> u64 {
        self.config.capacity
    }

    /// Returns the number of replicas of each home.
    pub fn replicas(&self) -> u64 {
        self.config.replicas.into()
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.config.devices.len()
    }

    /// Returns the traffic of each node so far, if the configuration has it counted.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.meter.traffic()
    }

    /// Returns a runtime that does not fail.
    pub fn runtime(&self) -> Runtime {
        self.simulation.runtime_of(0)
    }

    /// Starts all agents, as a driver does.
    pub async fn start_all(self: &Arc<Self>, mode: AgentMode, after_power_loss: bool) -> Result<()> {
        self.restart_authority();
        for node in 0..self.count() {
            self.start(node, after_power_loss).await?;
        }
        for node in 0..self.count() {
            let (node, runtime, rpc) = {
                let state = self.state.lock();
                let running = state.sites[node].running.as_ref().ok_or(Errno::EHOSTDOWN)?;
                (running.node.clone(), running.machine.runtime(), running.rpc.clone())
            };
            assembly::greet(&runtime, &rpc, &self.cluster).await?;
            assembly::begin(&node, &runtime, mode, &rpc)?;
        }
        self.send_leases();
        Ok(())
    }

    /// Fails an agent; with `power`, also drops what was not synced.
    pub fn kill(&self, node: usize, power: bool) {
        let running = self.state.lock().sites[node].running.take();
        let Some(mut running) = running else { return };
        log::info!("node {node} fails{}", if power { " and loses power" } else { "" });
        running.machine.stop();
        self.count_detected(&running.node);
        self.simulation.kill_node(running.incarnation);
        self.network.kill(NodeId(node as u32));
        self.end_lease(node);
        running.attached.clear();
        running.withheld.clear();
        let waiting = std::mem::take(&mut running.waiting);
        waiting.into_values().for_each(|resolver| resolver.resolve(()));
        if power {
            if let Some(disks) = &self.state.lock().sites[node].disks {
                disks.lose_power();
            }
            self.tree.lose_power(NodeId(node as u32));
        }
    }

    /// Stops an agent for a time.
    pub fn hang(&self, node: usize, time: Duration) {
        let Some(incarnation) = self.state.lock().sites[node].running.as_ref().map(|one| one.incarnation)
        else {
            return;
        };
        log::info!("node {node} hangs");
        self.simulation.stop_node(incarnation);
        let (simulation, runtime) = (self.simulation.clone(), self.runtime());
        self.runtime().spawn(async move {
            runtime.sleep(time).await;
            log::info!("node {node} continues");
            simulation.continue_node(incarnation);
        });
    }

    /// Returns true if the agent of a node is up.
    pub fn is_up(&self, node: usize) -> bool {
        self.state.lock().sites[node].running.is_some()
    }

    /// The homes that a node serves now, as it believes.
    pub fn served(&self, node: usize) -> Vec<HomeId> {
        let state = self.state.lock();
        let Some(running) = state.sites[node].running.as_ref().filter(|one| one.lease.is_valid()) else {
            return Vec::new();
        };
        running.cluster.map().served_by(NodeId(node as u32)).collect()
    }

    /// Gives the next home map to a node that is up. All homes stay where they are.
    pub fn renew_map(&self, node: usize) {
        if let Some(running) = &self.state.lock().sites[node].running {
            let (map, home) = (running.cluster.map(), HomeId(0));
            running.cluster.replace_map(map.with_primary(home, map.primary(home)));
        }
    }

    /// Calls `look` with a running node.
    pub(crate) fn with<T>(
        &self,
        node: usize,
        look: impl FnOnce(&Arc<Node>, &Runtime, &Memory) -> T,
    ) -> Option<T> {
        let state = self.state.lock();
        let running = state.sites[node].running.as_ref()?;
        Some(look(&running.node, &running.machine.runtime(), &running.memory))
    }

    /// Returns true if the agent of a node is up, and its store, if it has one, accepts changes.
    pub fn can_serve(&self, node: usize) -> bool {
        self.state.lock().sites[node].running.as_ref().is_some_and(|running| !running.has_lost_store())
    }

    /// Returns the nodes that a running node considers unreachable.
    pub fn unreachable(&self, node: usize) -> Option<Vec<NodeId>> {
        self.with(node, |node, _, _| node.status().unreachable)
    }

    /// Returns the views of a running node, and the runtime of its programs.
    pub fn views(&self, node: usize) -> Option<(Arc<Views>, Runtime)> {
        self.with(node, |node, runtime, _| (node.views().clone(), runtime.clone()))
    }

    /// Returns a calling process on a running node.
    pub fn caller(&self, node: usize, view: View) -> Option<Caller> {
        let state = self.state.lock();
        let running = state.sites[node].running.as_ref()?;
        let kernel = running.kernels[usize::from(view == View::Cache)].clone();
        Some(Caller { runtime: running.machine.runtime(), view, kernel, signalled: Arc::default() })
    }

    /// Returns the counters of a running node.
    pub fn counters(&self, node: usize) -> Vec<Counter> {
        self.with(node, |node, _, _| node.status().counters).unwrap_or_default()
    }

    /// Resolves `resolver` when the node fails. The returned number cancels that.
    pub fn on_failure(&self, node: usize, resolver: Resolver<()>) -> u64 {
        let mut state = self.state.lock();
        state.waits += 1;
        let number = state.waits;
        match &mut state.sites[node].running {
            Some(running) => drop(running.waiting.insert(number, resolver)),
            None => {
                drop(state);
                resolver.resolve(());
            }
        }
        number
    }

    /// Cancels [`Self::on_failure`].
    pub(crate) fn cancel_on_failure(&self, node: usize, number: u64) {
        let mut state = self.state.lock();
        let taken = state.sites[node].running.as_mut().and_then(|running| running.waiting.remove(&number));
        drop(state);
        drop(taken);
    }

    /// Sets the faults of a node's disks.
    pub fn set_disk_faults(&self, node: usize, faults: DiskFaults) {
        if let Some(disks) = &self.state.lock().sites[node].disks {
            disks.set_faults(faults);
        }
    }

    /// Flips a bit on the disk of a node.
    pub fn rot(&self, node: usize) {
        if let Some(disks) = &self.state.lock().sites[node].disks {
            disks.rot();
        }
    }

    /// Starts a warm of all files of the shared file system on a node.
    pub fn warm(&self, node: usize) {
        let Some((views, runtime)) = self.views(node) else { return };
        if let Some(cache) = views.cache().cloned() {
            runtime.spawn(async move { cache.warm(Vec::new(), &cache.warming()).await });
        }
    }

    /// Sets the maximum delay of blocking calls on a node.
    pub fn set_slowness(&self, node: usize, slowness: Duration) {
        if let Some(running) = &self.state.lock().sites[node].running {
            running.machine.set_slowness(slowness);
        }
    }

    /// Drains all nodes that are not excluded and merges their receipts, as a driver does: again if the home map changes meanwhile.
    pub async fn drain(&self, verify: bool) -> Receipt {
        loop {
            let epoch = self.map().epoch;
            let receipt = self.drain_once(verify).await;
            if self.map().epoch == epoch {
                return receipt;
            }
        }
    }

    fn excludes(&self, node: usize) -> bool {
        self.map().excludes(NodeId(node as u32))
    }

    async fn drain_once(&self, verify: bool) -> Receipt {
        let mut receipt = Receipt::default();
        let mut draining = Vec::new();
        // Other nodes drain the data of an excluded node.
        for node in (0..self.count()).filter(|&node| !self.excludes(node)) {
            let found = self.with(node, |node, runtime, _| {
                let parts = |services: &Services| (services.cache.clone(), services.replicas.clone());
                (node.services().map(parts), runtime.clone())
            });
            let Some((parts, runtime)) = found else {
                receipt.faults.push(format!("node {node} is down"));
                continue;
            };
            let Some((cache, replicas)) = parts else { continue };
            let (resolver, done) = tameike_io::os::runtime::promise();
            runtime.spawn(async move { resolver.resolve(assembly::drain(cache, replicas, verify).await) });
            draining.push((node, done));
        }
        for (node, mut done) in draining {
            while !self.excludes(node) {
                if let Some(part) = self.runtime().timeout(DRAIN_PAUSE, &mut done).await {
                    receipt.merge(part);
                    break;
                }
            }
        }
        receipt
    }

    /// Makes a running node write its pending records to its log, unless its disk fails.
    pub async fn write_log(&self, node: usize) {
        let found = self.with(node, |node, _, _| node.services().map(|services| services.extents.clone()));
        if let Some(extents) = found.flatten()
            && let Err(fault) = extents.sync(false).await
        {
            log::debug!("node {node} cannot write its log: {fault}");
        }
    }

    /// Checks the stores of all nodes, as if they had stopped.
    pub fn check_stores(&self) -> Result<Vec<(usize, Report)>> {
        let map = self.map();
        let stopped = |(node, site): (usize, &Site)| Some((node, site.disks.as_ref()?.stopped()));
        let sites = self.state.lock();
        // Stores of excluded nodes have old copies only. Those that have failed will be excluded.
        let is_current = |(node, site): &(usize, &Site)| {
            !map.excludes(NodeId(*node as u32)) && !site.running.as_ref().is_some_and(Running::has_lost_store)
        };
        let current = sites.sites.iter().enumerate().filter(is_current);
        let stopped: Vec<_> = current.filter_map(stopped).collect();
        drop(sites);
        stopped.into_iter().map(|(node, media)| Ok((node, check_media(media)?))).collect()
    }

    /// Returns the sum of `of` over the stores of all running nodes that have not failed.
    pub(crate) fn space(&self, view: View, of: impl Fn(Space) -> u64) -> u64 {
        let of_node =
            |node: &Arc<Node>| node.services().map_or(0, |services| of(services.extents.space(view)));
        let serving = (0..self.count()).filter(|&node| self.can_serve(node));
        serving.filter_map(|node| self.with(node, |node, _, _| of_node(node))).sum()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        (0..self.count()).for_each(|node| self.kill(node, false));
        self.simulation.kill();
    }
}
