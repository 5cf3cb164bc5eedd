//! Starts an agent on its node's disks.

use super::attached::Attached;
use super::canary::{BuggyRpc, Canary};
use super::counted::CountedFabric;
use super::holders::CountedRpc;
use super::machine::Machine;
use super::{Running, World};
use crate::countdown::{Countdown, FaultKind};
use crate::kernel::Kernel;
use crate::tree::SimulatedTree;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::assembly::{self, Parts, StoreParts};
use tameike_agent::{LocalFiles, MEMORY_MIN, Memory, ProcessState};
use tameike_core::{Cluster, Fault, NodeId, Result, View};
use tameike_fabric::rpc::RpcNode;
use tameike_fabric::simulated::SimulatedConfig;
use tameike_fabric::{MapLease, Rpc, peer_limit};
use tameike_io::os::runtime::yield_now;
use tameike_io::{Frame, Pool, Runtime};
use tameike_store::extent::ExtentData;
use tameike_store::ledger::{LedgerOptions, Media};
use tameike_store::{ExtentStore, Ledger, Options, open_media};

/// Time for which an agent hangs: long enough that it is excluded.
const HANG_TIME: Duration = Duration::from_secs(7);

impl World {
    /// Starts the agent of a node.
    pub(super) async fn start(self: &Arc<Self>, node: usize, after_power_loss: bool) -> Result<()> {
        let incarnation = {
            let mut state = self.state.lock();
            state.sites[node].flips.clear();
            state.incarnations += 1;
            state.incarnations
        };
        let id = NodeId(node as u32);
        log::info!("{id} starts");
        let machine =
            Machine::new(&self.simulation, incarnation, self.config.slowness[node], self.config.skew[node]);
        let started = self.assemble(node, incarnation, &machine, after_power_loss).await;
        if started.is_err() {
            // A process that cannot start exits.
            machine.stop();
            self.simulation.kill_node(incarnation);
            self.network.kill(id);
        }
        started
    }

    async fn assemble(
        self: &Arc<Self>,
        node: usize,
        incarnation: usize,
        machine: &Arc<Machine>,
        after_power_loss: bool,
    ) -> Result<()> {
        let (id, runtime) = (NodeId(node as u32), machine.runtime());
        let memory = Memory::new(MEMORY_MIN, true, self.config.replicas > 1, self.config.region_memory)?;
        let store = self.open_store(node, &runtime, &memory, after_power_loss).await?;
        let fabric = self.network.start(SimulatedConfig {
            node: id,
            runtime: runtime.clone(),
            inline_max: self.config.inline_max,
            peer_limit: peer_limit(self.config.replicas > 1),
            request_frames: memory.requests.clone(),
            reply_frames: memory.replies.clone(),
        });
        let fabric = CountedFabric {
            inner: fabric,
            network: self.network.clone(),
            countdown: self.countdown.clone(),
            meter: self.config.metered.then(|| self.meter.clone()),
            fail: self.failing(node),
        };
        let fabric = Arc::new(fabric);
        let rpc = RpcNode::new(fabric.clone(), runtime.clone(), memory.replies.clone());
        let attached = Arc::new(Attached::new(self.config.canary, memory.replies.clone()));
        let cluster = self.new_cluster()?;
        let has_leases = self.config.replicas > 1 && self.config.canary != Some(Canary::EndlessLease);
        let lease = if has_leases { MapLease::new } else { MapLease::unlimited };
        let lease = lease(runtime.clock.clone());
        rpc.attach(attached.clone(), cluster.clone());
        let rpc = self.wrapped(Arc::new(rpc));
        let shared = self.tree.mounted_by(id);
        let local = SimulatedTree::new(self.simulation.clone(), Countdown::default()).mounted_by(id);
        let parts = Parts {
            node: id,
            cluster: cluster.clone(),
            runtime,
            memory: &memory,
            lease: lease.clone(),
            rpc: rpc.clone(),
            fabric,
            store: store.map(|(ledger, extents)| StoreParts { ledger, extents, shared: shared.clone() }),
            shared: Some(shared),
            local: match self.config.devices[node] {
                true => LocalFiles::Directory(local, self.config.capacity),
                false => LocalFiles::Remote,
            },
            owner: (crate::tree::OWNER, crate::tree::OWNER),
            process: || ProcessState { pid: 1, resident_bytes: 0, cores: None },
            holders: true,
            packing: None,
        };
        let assembled = assembly::assemble(parts).await?;
        attached.set(assembled.clone());
        let (machine, waiting, kernels) = (machine.clone(), BTreeMap::new(), self.kernels(machine));
        let withheld = self.withhold(&memory);
        let running = Running {
            incarnation,
            machine,
            node: assembled,
            cluster,
            rpc,
            lease,
            attached,
            memory,
            withheld,
            kernels,
            waiting,
        };
        self.state.lock().sites[node].running = Some(running);
        Ok(())
    }

    /// Makes an agent fail or hang. `None` if the homes have no replicas, and for node 0, which checks use.
    fn failing(self: &Arc<Self>, node: usize) -> Option<Box<dyn Fn(FaultKind) + Send + Sync>> {
        if self.config.replicas == 1 || node == 0 {
            return None;
        }
        let world = Arc::downgrade(self);
        Some(Box::new(move |fault| {
            // A job whose agents fail at the start does not start.
            let Some(this) = world.upgrade().filter(|this| this.has_leases()) else { return };
            if fault == FaultKind::Hung {
                return this.hang(node, HANG_TIME);
            }
            this.network.kill(NodeId(node as u32));
            let runtime = this.runtime();
            runtime.spawn(async move {
                // Not in the middle of a task of the agent.
                yield_now().await;
                this.kill(node, false);
            });
        }))
    }

    /// Takes the frames that an agent must do without.
    fn withhold(&self, memory: &Memory) -> Vec<Frame> {
        let views = [&memory.shared_view, &memory.cache_view].map(|pool| (pool, self.config.view_frames));
        let services = [
            &memory.requests,
            &memory.replies,
            &memory.reads,
            &memory.flushes,
            &memory.scratch,
            &memory.copies,
        ];
        let services = services.map(|pool| (pool, self.config.service_frames));
        let withhold = |(pool, left): (&Pool, u32)| {
            (left..pool.share()).filter_map(|_| pool.try_take()).collect::<Vec<_>>()
        };
        views.into_iter().chain(services).flat_map(withhold).collect()
    }

    /// The kernel's caches of a new agent's views.
    fn kernels(&self, machine: &Arc<Machine>) -> [Arc<Kernel>; 2] {
        let shows_old = self.config.canary == Some(Canary::OldAttributes);
        [(); 2].map(|()| Arc::new(Kernel::new(self.simulation.clone(), machine.runtime(), shows_old)))
    }

    /// The nodes as a new agent knows them, with the current home map.
    fn new_cluster(&self) -> Result<Arc<Cluster>> {
        let cluster =
            Cluster::new(self.cluster.job.clone(), self.cluster.nodes().to_vec(), self.config.replicas);
        let cluster = cluster.map_err(Fault::io)?;
        cluster.replace_map(self.map());
        Ok(Arc::new(cluster))
    }

    fn wrapped(&self, rpc: Arc<RpcNode>) -> Arc<dyn Rpc> {
        let inner: Arc<dyn Rpc> = match self.config.canary {
            Some(canary) => {
                let (replies, sums) = Default::default();
                Arc::new(BuggyRpc { inner: rpc, canary, simulation: self.simulation.clone(), replies, sums })
            }
            None => rpc,
        };
        Arc::new(CountedRpc { inner, tally: self.tally.clone() })
    }

    async fn open_store(
        &self,
        node: usize,
        runtime: &Runtime,
        memory: &Memory,
        after_power_loss: bool,
    ) -> Result<Option<(Arc<Ledger>, Arc<ExtentStore>)>> {
        let (disk, media) = {
            let state = self.state.lock();
            let Some(disks) = &state.sites[node].disks else { return Ok(None) };
            let disk = disks.disk();
            let data = Arc::new(ExtentData::new(disk.clone(), memory.scratch.clone()));
            (disk, Media { logs: disks.logs(), kv: disks.table(), data })
        };
        let options = Options {
            runtime: runtime.clone(),
            direct: None,
            scratch: memory.scratch.clone(),
            capacity: [self.config.capacity; View::ALL.len()],
            checkpoint_bytes: self.config.checkpoint_bytes,
            table_cache_bytes: 0,
        };
        let ledger_options = LedgerOptions {
            checkpoint_bytes: self.config.checkpoint_bytes,
            volatile: self.config.volatile,
            after_power_loss,
        };
        let open = open_media(disk, media, ledger_options, options, tameike_agent::replay);
        open.await.map(Some).map_err(|fault| fault.context(format_args!("node {node}")))
    }
}
