//! Implements [`AgentControl`]: the process-level agent, built from a store, a fabric, a node and frontends.

use crate::assembly::{self, Parts, StoreParts};
use crate::attach::{Attachments, NodeAddress, VolumeName};
use crate::control::{
    AgentControl, AgentMode, AgentStart, FabricChoice, LeaseAnswer, LeaseMessage, PROGRESS_INTERVAL,
    Progress, StartInput, Undrained, ViewFrontend,
};
use crate::files::{FileLine, FileSelection};
use crate::gathering::Gathering;
use crate::memory::Memory;
use crate::node::Node;
use crate::packing::{self, OfNode, Packing, Plain};
use crate::ring::Ring;
use crate::storage::{self, OnDamage};
use crate::views::{LocalFiles, Views};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::changes::Changes;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::{CopyReport, Counter, NodeStatus, Warmed};
use tameike_core::wire::measure::{Order, Outcome};
use tameike_core::{Cluster, Errno, Fault, HomeMap, NodeId, NodeInfo, Result, View};
use tameike_fabric::ofi::OfiConfig;
use tameike_fabric::rpc::RpcNode;
use tameike_fabric::socket::{SocketConfig, SocketFabric};
use tameike_fabric::{MapLease, Rpc};
use tameike_io::disk::HostDevice;
use tameike_io::os::process;
use tameike_io::os::system::System;
use tameike_io::shared::{ChangeLog, PosixTree, Recorded, SharedFs};
use tameike_server::cache::CacheService;
use tameike_store::Store;
use tameike_store::directory::LOCAL;

/// Directory on the device that replaces a missing shared directory; no frontend serves it.
const UNSHARED_DIR: &str = "unshared";

/// One agent.
pub struct Agent {
    start: AgentStart,
    system: System,
    memory: Memory,
    lease: Arc<MapLease>,
    store: Option<Store>,
    shared: Option<Arc<dyn SharedFs>>,
    /// The changes of the shared directory, if the job has a mirror.
    change_log: Option<Arc<ChangeLog>>,
    fabric: Arc<SocketFabric>,
    rpc: Arc<RpcNode>,
    node: OnceLock<Arc<Node>>,
    cluster: OnceLock<Arc<Cluster>>,
    mounts: Mutex<Vec<ViewFrontend>>,
    /// Socket at which the ring listens.
    ring_path: Option<PathBuf>,
    ring: OnceLock<Ring>,
    packing: OnceLock<Packing>,
    /// Mounts of programs, in [`AgentMode::Volume`].
    attachments: OnceLock<Attachments>,
}

impl Agent {
    fn rpc(&self) -> Arc<dyn Rpc> {
        self.rpc.clone()
    }

    /// Closes the connections to other agents.
    fn close(&self) {
        self.rpc.close();
        self.fabric.close();
    }

    /// Spawns a task for the driver, and returns the channel of its result.
    fn begin<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Receiver<T> {
        let (sender, receiver) = channel();
        self.system.runtime().spawn(async move {
            // The receiver waits until the end.
            let _ = sender.send(task.await);
        });
        receiver
    }

    fn node(&self) -> Result<&Arc<Node>> {
        self.node.get().ok_or_else(|| Fault::new(Errno::EAGAIN, "the agent has not joined its job yet"))
    }

    /// Opens the shared directory with its packed files, if the job has one.
    fn packed(&self, cluster: &Arc<Cluster>) -> Result<Option<&Packing>> {
        let (Some(dir), Some(plain)) = (&self.start.shared_dir, &self.shared) else { return Ok(None) };
        let (runtime, rpc, lease) = (self.system.runtime(), self.rpc(), &self.lease);
        let of_node = OfNode { runtime, cluster, rpc, lease, device_dir: self.device_dir() };
        let plain = Plain { dir, tree: plain.clone(), change_log: self.change_log.clone() };
        let packing = Packing::open(plain, self.start.aggregate, of_node)?;
        Ok(Some(self.packing.get_or_init(|| packing)))
    }

    fn shared_or_nothing(&self, shared: Option<&Packing>) -> Result<Arc<dyn SharedFs>> {
        if let Some(shared) = shared {
            return Ok(shared.tree.clone());
        }
        let dir = self.device_dir().ok_or_else(|| Fault::io("a node without a device has no services"))?;
        let dir = dir.join(UNSHARED_DIR);
        make_dir(&dir)?;
        Ok(Arc::new(PosixTree::open(&dir)?))
    }

    fn device_dir(&self) -> Option<&Path> {
        self.start.device.as_ref().map(|device| device.dir.as_path())
    }

    fn store_parts(&self, shared: Option<&Packing>) -> Result<Option<StoreParts>> {
        let Some(store) = &self.store else { return Ok(None) };
        let shared = self.shared_or_nothing(shared)?;
        Ok(Some(StoreParts { ledger: store.ledger.clone(), extents: store.extents.clone(), shared }))
    }

    fn local(&self) -> Result<LocalFiles> {
        let Some(dir) = self.device_dir() else { return Ok(LocalFiles::Remote) };
        let is_mounted = |mount: &&ViewFrontend| mount.view == View::NodeLocal && mount.fuse.is_none();
        if let Some(mount) = self.mounts.lock().iter().find(is_mounted) {
            return Ok(LocalFiles::Mounted(Arc::new(PosixTree::open(&mount.path)?)));
        }
        let dir = dir.join(LOCAL);
        make_dir(&dir)?;
        let tree = Arc::new(PosixTree::open(&dir)?);
        Ok(LocalFiles::Directory(tree, self.start.capacity[View::NodeLocal.index()]))
    }

    /// Returns the coordinator of cached files, if the agent has joined its job and the node has a device.
    fn coordinator(&self) -> Option<Arc<CacheService>> {
        Some(self.node().ok()?.services()?.cache.clone())
    }

    /// Accepts mounts of the job-shared view that other processes make. The agent has joined its job.
    ///
    /// # Errors
    /// See [`Attachments::listen`].
    pub fn accept_mounts(&self, address: NodeAddress) -> Result<Attachments> {
        Attachments::listen(self.system.runtime(), self.node()?.views(), address)
    }

    /// Serves the programs of this host that attach to the volume, in [`AgentMode::Volume`].
    fn open_volume(&self) -> Result<()> {
        let Some(name) = self.start.volume.clone().filter(|_| self.start.mode == AgentMode::Volume) else {
            return Ok(());
        };
        let volume = VolumeName { owner: process::user(), name };
        let attachments = self.accept_mounts(NodeAddress { volume, node: self.start.node.0 })?;
        let _ = self.attachments.set(attachments);
        Ok(())
    }

    /// Brings what programs have written to a volume to all replicas, durably.
    fn flush_volume(&self) -> Result<()> {
        let node = self.node()?;
        let (views, services) = (node.views().clone(), node.services());
        let replicas = services.and_then(|services| services.replicas.clone());
        let flushed = self.begin(async move {
            let flushed = views.shared().flush_all().await;
            if let Some(replicas) = replicas {
                replicas.wait_for_backups(None).await?;
            }
            flushed
        });
        flushed.recv().map_err(|_| stopped())?
    }

    /// Serves preloaded programs. If that fails, they use the mounts.
    fn open_ring(&self, views: &Views, served: Vec<(View, PathBuf)>) {
        let Some(path) = &self.ring_path else { return };
        match Ring::open(&self.system, path, served, self.memory.frame_grants.clone(), |shown, names| {
            views.ring_frontend(shown, names)
        }) {
            Ok(ring) => drop(self.ring.set(ring)),
            Err(fault) => log::warn!("the ring for preloaded programs does not work: {fault}"),
        }
    }
}

/// Gives the fabric the addresses of the nodes of a job, now and whenever the home map has others.
fn follow_nodes(fabric: &Arc<SocketFabric>, cluster: &Arc<Cluster>, node: NodeId) {
    let (fabric, of_job) = (fabric.clone(), Arc::downgrade(cluster));
    let follow = move || {
        let Some(cluster) = of_job.upgrade() else { return };
        let nodes = cluster.nodes();
        let peers = nodes.iter().filter(|info| info.id != node);
        fabric.set_peers(peers.map(|info| (info.id, info.address.clone())).collect());
        fabric.keep(&cluster.neighbours(node));
    };
    follow();
    cluster.watch(follow);
}

/// The shared directory, whose changes are recorded if the job has a mirror.
fn recorded(tree: Arc<dyn SharedFs>, log: Option<&Arc<ChangeLog>>) -> Arc<dyn SharedFs> {
    match log {
        Some(log) => Arc::new(Recorded::new(tree, log.clone(), b"")),
        None => tree,
    }
}

fn stopped() -> Fault {
    Fault::new(Errno::EINTR, "the agent stopped before the command ended")
}

fn make_dir(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Fault::from_os(format_args!("making the directory {}", dir.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Opens the store of a node with a device.
fn open_store(start: &AgentStart, system: &System, memory: &Memory) -> Result<Option<Store>> {
    let Some(device) = &start.device else { return Ok(None) };
    let on_damage = match start.mode {
        AgentMode::Serve | AgentMode::Volume => OnDamage::Refuse,
        AgentMode::Recover => OnDamage::Salvage(&start.damage),
    };
    let frames = (&memory.slab, memory.scratch.clone());
    let open = storage::open(system, &device.dir, start.capacity, frames, on_damage);
    pollster::block_on(open).map(Some)
}

impl AgentControl for Agent {
    fn start(input: StartInput) -> Result<Self> {
        let StartInput { start, frontends: mounts, ring: ring_path } = input;
        if let Some(cores) = &start.cores {
            // Before any other thread starts, as threads inherit the binding.
            process::bind_to_cores(cores)?;
        }
        let system = System::start(assembly::blocking_threads_max(&start))
            .map_err(|error| Fault::from_os("starting threads", &error))?;
        let has_replicas = start.replicas > 1;
        let memory =
            Memory::new(start.memory, start.shared_dir.is_some(), has_replicas, start.region_memory)?;
        let lease = if has_replicas { MapLease::new } else { MapLease::unlimited };
        let lease = lease(system.runtime().clock.clone());
        let store = open_store(&start, &system, &memory)?;
        let change_log =
            start.records_changes.then(|| Arc::new(ChangeLog::new(system.runtime().clock.clone())));
        let shared = match &start.shared_dir {
            Some(dir) => Some(recorded(Arc::new(PosixTree::open(dir)?), change_log.as_ref())),
            None => None,
        };
        let device_memory = store.as_ref().and_then(|store| store.extents.memory());
        let config = SocketConfig {
            node: start.node,
            job: start.job.clone(),
            secret: start.secret.0,
            listen: start.listen.clone(),
            inline_max: UNIT_SIZE,
            peer_limit: tameike_fabric::peer_limit(has_replicas),
            request_frames: memory.requests.clone(),
            reply_frames: memory.replies.clone(),
            slab: (start.fabric == FabricChoice::Auto).then(|| memory.slab.clone()),
            ofi: match start.fabric {
                FabricChoice::Ofi(provider) => {
                    Some(OfiConfig { provider, slab: memory.slab.clone(), frames: memory.requests.clone() })
                }
                FabricChoice::Auto | FabricChoice::Tcp => None,
            },
            device: device_memory.map(|memory| Arc::new(HostDevice::new(memory))),
            connections: assembly::connections(start.connections),
        };
        let fabric = Arc::new(SocketFabric::listen(config, &system)?);
        let rpc = Arc::new(RpcNode::new(fabric.clone(), system.runtime().clone(), memory.replies.clone()));
        let (node, cluster, ring, packing, attachments) = Default::default();
        let mounts = Mutex::new(mounts);
        Ok(Self {
            start,
            system,
            memory,
            lease,
            store,
            shared,
            change_log,
            fabric,
            rpc,
            node,
            cluster,
            mounts,
            ring_path,
            ring,
            packing,
            attachments,
        })
    }

    fn address(&self) -> String {
        self.fabric.local_addr().to_string()
    }

    fn join(&self, nodes: Vec<NodeInfo>, map: Option<HomeMap>) -> Result<()> {
        let cluster = Cluster::new(self.start.job.clone(), nodes, self.start.replicas)
            .map_err(|wrong| Fault::new(Errno::EINVAL, wrong))?;
        if let Some(map) = map.filter(|map| map.epoch > cluster.epoch())
            && !cluster.replace_map(map)
        {
            return Err(Fault::new(Errno::EINVAL, "the home map is not one of this job"));
        }
        let cluster = Arc::new(cluster);
        follow_nodes(&self.fabric, &cluster, self.start.node);
        let runtime = self.system.runtime();
        let packing = self.packed(&cluster)?;
        let parts = Parts {
            node: self.start.node,
            cluster: cluster.clone(),
            runtime: runtime.clone(),
            memory: &self.memory,
            lease: self.lease.clone(),
            rpc: self.rpc(),
            fabric: self.fabric.clone(),
            store: self.store_parts(packing)?,
            shared: packing.map(|packing| packing.tree.clone() as Arc<dyn SharedFs>),
            local: self.local()?,
            owner: (process::user(), process::group()),
            process: assembly::own_process,
            holders: !self.start.no_peer_reads,
            packing: packing.and_then(|packing| packing.service.clone()),
        };
        let node = pollster::block_on(assembly::assemble(parts))?;
        self.rpc.attach(node.clone(), cluster.clone());
        pollster::block_on(assembly::greet(self.system.runtime(), &self.rpc(), &cluster))?;
        assembly::begin(&node, runtime, self.start.mode, &self.rpc())?;
        let views = node.views().clone();
        if self.node.set(node).is_err() || self.cluster.set(cluster).is_err() {
            return Err(Fault::new(Errno::EINVAL, "the agent has joined its job already"));
        }
        let mounts = std::mem::take(&mut *self.mounts.lock());
        // Programs use views without a FUSE session through the kernel only.
        let served = mounts.iter().filter(|mount| mount.fuse.is_some());
        let served = served.map(|mount| (mount.view, mount.path.clone())).collect();
        mounts.into_iter().try_for_each(|mount| views.serve(mount, self.start.coherent_mmap))?;
        self.open_ring(&views, served);
        self.open_volume()
    }

    fn drain(&self, verify: bool, progress: &mut dyn FnMut(Progress)) -> Receipt {
        if let Err(fault) = self.node() {
            return Receipt { faults: vec![fault.to_string()], ..Receipt::default() };
        }
        if self.start.mode == AgentMode::Volume {
            let faults = self.flush_volume().err().map(|fault| fault.to_string());
            return Receipt { faults: faults.into_iter().collect(), ..Receipt::default() };
        }
        if let Some(ring) = self.ring.get() {
            ring.settle();
        }
        // A node without a device coordinates no file.
        let Some(cache) = self.coordinator() else {
            return Receipt { storms: packing::storms(&self.packing), ..Receipt::default() };
        };
        let before = pollster::block_on(assembly::progress_of(&cache));
        let services = self.node().ok().and_then(|node| node.services());
        let replicas = services.and_then(|services| services.replicas.clone());
        let drained = self.begin(assembly::drain(cache.clone(), replicas, verify));
        loop {
            match drained.recv_timeout(PROGRESS_INTERVAL) {
                Ok(receipt) => return Receipt { storms: packing::storms(&self.packing), ..receipt },
                Err(RecvTimeoutError::Timeout) => {
                    progress(pollster::block_on(assembly::progress_of(&cache)).since(before));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let faults = vec!["the agent stopped during the drain".to_owned()];
                    return Receipt { faults, ..Receipt::default() };
                }
            }
        }
    }

    fn undrained(&self) -> Receipt {
        self.coordinator().map_or_else(Receipt::default, |cache| cache.undrained())
    }

    fn save_removed(&self, dir: &Path) -> Receipt {
        let Some(cache) = self.coordinator() else { return Receipt::default() };
        let dir = dir.to_owned();
        let saved = self.begin(async move { cache.save_orphaned(&dir).await }).recv();
        saved.unwrap_or_else(|_| Receipt { faults: vec![stopped().to_string()], ..Receipt::default() })
    }

    fn damage(&self) -> Vec<String> {
        self.store.as_ref().map_or_else(Vec::new, |store| store.damage.clone())
    }

    fn status(&self) -> Result<NodeStatus> {
        let mut status = self.node()?.status();
        status.storms = packing::storms(&self.packing);
        status.counters.extend(self.fabric.counters());
        status.counters.extend(self.ring.get().map(Ring::counters).unwrap_or_default());
        let attachments = self.attachments.get().map(|attachments| attachments.count() as u64);
        status.counters.extend(attachments.map(|count| Counter::new("attachments", count)));
        Ok(status)
    }

    fn warm(
        &self,
        paths: Vec<Vec<u8>>,
        progress: &mut dyn FnMut(Warmed) -> ControlFlow<()>,
    ) -> Result<Warmed> {
        let cache = self.node()?.views().cache().cloned();
        let none = || Fault::new(Errno::EINVAL, "the job has no shared directory: there is nothing to load");
        let cache = cache.ok_or_else(none)?;
        let warming = cache.warming();
        let at_work = warming.clone();
        let loaded = self.begin(async move {
            for path in paths {
                cache.warm(path, &at_work).await;
            }
            at_work.so_far()
        });
        loop {
            match loaded.recv_timeout(PROGRESS_INTERVAL) {
                Ok(warmed) => return Ok(warmed),
                Err(RecvTimeoutError::Timeout) => {
                    if progress(warming.so_far()).is_break() {
                        warming.cancel();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
            }
        }
    }

    fn files(&self, selection: FileSelection) -> Result<Vec<FileLine>> {
        let (node, rpc) = (self.node()?.clone(), self.rpc());
        let cluster = self.cluster.get().cloned().ok_or(Errno::EAGAIN)?;
        let gathering = Gathering { node, rpc, cluster };
        self.begin(async move { gathering.lines(selection).await }).recv().map_err(|_| stopped())?
    }

    fn renew_lease(&self, message: LeaseMessage) -> Result<LeaseAnswer> {
        Ok(self.node()?.renew_lease(message))
    }

    fn changes(&self, acknowledged: u64) -> Changes {
        self.change_log.as_ref().map(|log| log.report(acknowledged)).unwrap_or_default()
    }

    fn measure(&self, order: Order) -> Result<Outcome> {
        let meter = self.node()?.meter().clone();
        self.begin(async move { meter.measure(order).await }).recv().map_err(|_| stopped())?
    }

    fn check_copies(&self) -> Result<CopyReport> {
        // A node without a device serves no home.
        let check = self.node()?.services().and_then(|services| services.copy_check.clone());
        let Some(check) = check else { return Ok(CopyReport::default()) };
        self.begin(async move { check.run().await }).recv().map_err(|_| stopped())
    }

    fn stop(
        &self,
        grace: Duration,
        drained: bool,
        packer: Option<NodeId>,
        stopping: &mut dyn FnMut(),
    ) -> Result<Undrained> {
        if let Some(attachments) = self.attachments.get() {
            attachments.stop();
        }
        if let Some(ring) = self.ring.get() {
            ring.stop(self.system.runtime(), grace.max(Duration::from_secs(1)));
        }
        let (Some(store), Some(dir)) = (&self.store, self.device_dir()) else {
            self.close();
            return Ok(Undrained::default());
        };
        let packing = self.packing.get();
        let packed = packing.map_or(Ok(()), |packing| packing.finish(drained, packer, stopping));
        let runtime = self.system.runtime().clone();
        // Other agents, which may have copies, stop as well.
        let sync = store.ledger.sync_own(true);
        let synced = pollster::block_on(runtime.timeout(grace.max(Duration::from_secs(1)), sync));
        self.close();
        let late = || Fault::new(Errno::ETIMEDOUT, "the journal could not be synced within the grace time");
        synced.ok_or_else(late)??;
        packed?;
        let owner = self.cluster.get().map(|cluster| (cluster.clone(), self.start.node));
        let undrained = storage::undrained_unless_salvaged(store, dir, owner)?;
        // After a complete drain, the receipt has reported the files that were interrupted.
        Ok(Undrained { open: if drained { 0 } else { undrained.open }, ..undrained })
    }

    fn end_waits(&self) {
        self.rpc.end_waits();
    }

    fn mark_interrupted(&self) {
        let Some(cache) = self.node().ok().and_then(|node| node.views().cache().cloned()) else { return };
        // A stopped agent cannot record more.
        let _ = self.begin(async move { cache.mark_interrupted().await }).recv();
    }

    fn inspect(device_dir: &Path) -> Result<Undrained> {
        storage::inspect(device_dir)
    }
}
