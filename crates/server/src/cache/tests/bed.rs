//! A cluster in one process on real directories, with simulated stores and network.

use super::client::Client;
use super::faulty::{Control, FaultyFs};
use super::late::{Mount, Server};
use crate::cache::{Activity, CacheParts, CacheService, replay};
use crate::holders::CacheTable;
use crate::replica::{BackupService, Copies, CopiesParts, CopyCheck, JoinsParts, ReplicaParts, Replicas};
use crate::unit::{UnitParts, UnitService};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::CopyReport;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::unit::{UnitDigest, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{
    Cluster, Errno, Fault, Generation, HomeId, InodeId, JobId, NodeId, NodeInfo, Result, UnitId, View,
};
use tameike_fabric::{Answer, Destination, MapLease, RequestContext, Rpc, Target};
use tameike_io::disk::Disk;
use tameike_io::disk::memory::{Faults, MemoryDisk, MemoryLog};
use tameike_io::os::simulated::Simulation;
use tameike_io::shared::{PosixTree, SharedFs};
use tameike_io::{Frame, Payload, Pool, Runtime, Slab};
use tameike_store::extent::ExtentData;
use tameike_store::ledger::kv::MemoryKv;
use tameike_store::ledger::{LedgerOptions, Media};
use tameike_store::table::Table;
use tameike_store::{ExtentStore, Ledger, RecordKind};

pub(super) const QUIET: Duration = Duration::from_millis(50);

/// A running node.
struct Node {
    unit: Arc<UnitService>,
    cache: Arc<CacheService>,
    activity: Arc<Activity>,
    replicas: Option<Arc<Replicas>>,
    check: Option<Arc<CopyCheck>>,
    backups: BackupService,
    stores: (Arc<Ledger>, Arc<ExtentStore>),
    /// Calls of the services that do not own it.
    _rpc: Arc<dyn Rpc>,
}

/// The network: calls between nodes of this process.
struct Net {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    nodes: Mutex<Vec<Option<Arc<Node>>>>,
    /// Nodes that do not answer flush requests, and execute them after this delay.
    late: Mutex<BTreeMap<NodeId, Duration>>,
    /// One-way latency of a call.
    latency: Mutex<Duration>,
    /// Nodes that receive flush requests after this delay.
    slow: Mutex<BTreeMap<NodeId, Duration>>,
    /// Nodes whose next request brings a new home map.
    renewals: Mutex<BTreeSet<NodeId>>,
    /// Nodes that received `MarkClean`, the confirmation of a flush round.
    rounds: Mutex<Vec<NodeId>>,
    /// Nodes that do not answer requests to backups.
    refuses: Mutex<BTreeSet<NodeId>>,
    /// Units in the memory of nodes, with their generation.
    held: Mutex<BTreeMap<(NodeId, UnitId), Held>>,
}

type Held = (Generation, Vec<u8>);

impl Net {
    /// Replaces the home map by a later one, which has all homes where they are, and one of them was elsewhere meanwhile.
    fn renew_map(&self) {
        let (map, home) = (self.cluster.map(), HomeId(0));
        let primary = map.primary(home);
        let other = NodeId(primary.0 ^ 1);
        assert!(self.cluster.replace_map(map.with_primary(home, other).with_primary(home, primary)));
    }
}

impl Net {
    async fn serve(
        &self,
        node: &Node,
        (local, to, home): (NodeId, NodeId, Option<HomeId>),
        request: Request,
        (payload, into): (Option<Payload>, Option<Frame>),
    ) -> Result<(Reply, Option<Payload>)> {
        let _foreground = node.activity.of_request(&request);
        Ok(match request {
            Request::Unit(request) => {
                let (reply, carried) = node.unit.serve(home, request, payload, into.into()).await?;
                (Reply::Unit(reply), carried.payload())
            }
            Request::Cache(request) => {
                let reply = node
                    .cache
                    .serve(RequestContext { from: local, home, epoch: None, call: None }, request)
                    .await;
                if let Some(replicas) = &node.replicas {
                    replicas.wait_for_backups(home).await?;
                }
                (Reply::Cache(reply?), None)
            }
            Request::Replica(request) => {
                if self.refuses.lock().contains(&to) {
                    return Err(Fault::new(Errno::EHOSTDOWN, format!("{to} does not answer")));
                }
                (Reply::Replica(node.backups.serve(local, request, payload).await?), None)
            }
            Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation }) => {
                let held = self.held.lock().get(&(to, unit)).cloned();
                let held = held.filter(|(version, _)| *version == generation);
                let Some((_, bytes)) = held else { return Ok((Reply::Client(ClientReply::NotHeld), None)) };
                let mut frame = into.expect("the caller gives a frame");
                frame[..length as usize].copy_from_slice(&bytes[offset as usize..][..length as usize]);
                (Reply::Client(ClientReply::Read), Some(Payload::new(Arc::new(frame), 0..length)))
            }
            Request::Meta(_)
            | Request::Admin(_)
            | Request::Client(_)
            | Request::Lock(_)
            | Request::Pack(_)
            | Request::Region(_)
            | Request::Reclaim(_) => {
                return Err(Errno::ENOSYS.into());
            }
        })
    }
}

pub(super) struct NetRpc {
    net: Arc<Net>,
    local: NodeId,
}

impl Rpc for NetRpc {
    fn local(&self) -> NodeId {
        self.local
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let (net, local, destination) = (self.net.clone(), self.local, to);
        let to = destination.node(&net.cluster);
        Box::pin(async move {
            if let Request::Unit(UnitRequest::MarkClean { .. }) = &request {
                net.rounds.lock().push(to);
            }
            // Requests to different nodes overtake each other.
            net.runtime.block(|| ()).await;
            net.travel().await;
            let slow = net.slow.lock().get(&to).copied();
            if let (Some(slow), Request::Unit(UnitRequest::Flush { .. })) = (slow, &request) {
                net.runtime.sleep(slow).await;
            }
            if let Destination::Primary(_, epoch) = destination
                && !net.cluster.keeps_primaries_of(epoch)
            {
                return Err(Errno::EREMCHG.into());
            }
            if net.renewals.lock().remove(&to) {
                net.renew_map();
            }
            let node = net.nodes.lock()[to.0 as usize].clone();
            let node = node.ok_or_else(|| Fault::new(Errno::EHOSTDOWN, format!("{to} is down")))?;
            let late = net.late.lock().get(&to).copied();
            if let (Some(late), Request::Unit(UnitRequest::Flush { .. })) = (late, &request) {
                let runtime = net.runtime.clone();
                net.runtime.spawn(async move {
                    runtime.sleep(late).await;
                    let Request::Unit(request) = request else { return };
                    let served = node.unit.serve(destination.home(), request, payload, Target::Any);
                    served.await.expect("a delayed flush");
                });
                return Err(Fault::new(Errno::EHOSTDOWN, format!("{to} does not answer")));
            }
            let home = destination.home();
            let (reply, payload) = net.serve(&node, (local, to, home), request, (payload, into)).await?;
            if let Destination::Primary(_, epoch) = destination
                && !net.cluster.keeps_primaries_of(epoch)
            {
                // Like an agent, which confirms that no other node has served its homes meanwhile.
                return Err(Errno::EREMCHG.into());
            }
            net.travel().await;
            Ok(Answer { reply, payload })
        })
    }
}

impl Net {
    async fn travel(&self) {
        let latency = *self.latency.lock();
        if !latency.is_zero() {
            self.runtime.sleep(latency).await;
        }
    }
}

/// Media of a node, which survive a crash of its agent.
struct StoreMedia {
    disk: MemoryDisk,
    logs: [MemoryLog; 2],
    kv: MemoryKv,
    faults: Faults,
}

impl StoreMedia {
    fn new(size: usize) -> Self {
        let faults = Faults::default();
        Self {
            disk: MemoryDisk::new(size, faults.clone()),
            logs: [MemoryLog::new(faults.clone()), MemoryLog::new(faults.clone())],
            kv: MemoryKv::new(faults.clone()),
            faults,
        }
    }
}

/// The cluster, its shared file system and the faults to inject.
pub(super) struct Bed {
    pub(super) machine: Simulation,
    pub(super) cluster: Arc<Cluster>,
    pub(super) control: Arc<Control>,
    pub(super) root: PathBuf,
    /// The shared file system without faults.
    pub(super) shared: Arc<dyn SharedFs>,
    capacity: u64,
    /// The shared file system as each node sees it.
    trees: Vec<Arc<FaultyFs>>,
    mounts: Vec<Arc<Mount>>,
    net: Arc<Net>,
    stores: Vec<StoreMedia>,
    power_lost: AtomicBool,
    pools: [Pool; 3],
    copies: Pool,
    pub(super) client_pool: Pool,
    _dirs: tempfile::TempDir,
}

impl Bed {
    pub(super) fn new(seed: u64, nodes: u32) -> Self {
        Self::with_capacity(seed, nodes, 12 << 20)
    }

    /// `capacity`: bytes of the cache view on each node.
    pub(super) fn with_capacity(seed: u64, nodes: u32, capacity: u64) -> Self {
        Self::with_replicas(seed, nodes, capacity, 1)
    }

    /// `replicas`: of each home.
    pub(super) fn with_replicas(seed: u64, nodes: u32, capacity: u64, replicas: u32) -> Self {
        let dirs = tempfile::tempdir().expect("a temporary directory");
        let root = dirs.path().join("shared");
        std::fs::create_dir(&root).expect("the shared directory");
        let machine = Simulation::shuffled(seed);
        let shared: Arc<dyn SharedFs> = Arc::new(PosixTree::open(&root).expect("a tree"));
        let faulty = Arc::new(FaultyFs::new(shared.clone()));
        let slab = Slab::new(64).expect("a small slab");
        let infos = (0..nodes).map(|id| NodeInfo {
            id: NodeId(id),
            host: format!("host{id}"),
            address: String::new(),
            group: 0,
            device: true,
        });
        let job = JobId::new("job").expect("a name");
        let cluster = Arc::new(Cluster::new(job, infos.collect(), replicas).expect("a cluster"));
        let net = Net {
            runtime: machine.runtime(),
            cluster: cluster.clone(),
            nodes: Mutex::new((0..nodes).map(|_| None).collect()),
            late: Mutex::default(),
            slow: Mutex::default(),
            latency: Mutex::default(),
            renewals: Mutex::default(),
            rounds: Mutex::default(),
            refuses: Mutex::default(),
            held: Mutex::default(),
        };
        let bed = Self {
            cluster,
            control: faulty.control.clone(),
            root,
            shared,
            capacity,
            trees: vec![faulty; nodes as usize],
            mounts: Vec::new(),
            net: Arc::new(net),
            stores: (0..nodes).map(|_| StoreMedia::new(2 * capacity as usize)).collect(),
            power_lost: AtomicBool::new(false),
            pools: [slab.pool(12), slab.pool(12), slab.pool(12)],
            copies: slab.pool(2),
            client_pool: slab.pool(12),
            machine,
            _dirs: dirs,
        };
        (0..nodes).for_each(|id| bed.start(NodeId(id)));
        bed
    }

    /// Creates nodes of which each has a mount of its own with stale attributes. `shared` is another such mount. The one-way latency is 1
    /// ms.
    pub(super) fn with_stale_mounts(seed: u64, nodes: u32) -> Self {
        let mut bed = Self::new(seed, nodes);
        bed.stop_all();
        let server = Server::new(bed.machine.runtime());
        bed.mounts = (0..nodes).map(|_| Mount::new(server.clone())).collect();
        let outside = FaultyFs::new(bed.shared.clone());
        bed.trees = bed.mounts.iter().map(|mount| Arc::new(bed.trees[0].mounted(mount.clone()))).collect();
        bed.shared = Arc::new(outside.mounted(Mount::new(server)));
        *bed.net.latency.lock() = Duration::from_millis(1);
        (0..nodes).for_each(|id| bed.start(NodeId(id)));
        bed
    }

    pub(super) fn mount(&self, node: NodeId) -> Arc<Mount> {
        self.mounts[node.0 as usize].clone()
    }

    /// With `late`, the node does not answer flush requests, and executes them after that delay.
    pub(super) fn delay_flush_replies(&self, node: NodeId, late: Option<Duration>) {
        let mut all = self.net.late.lock();
        match late {
            Some(late) => drop(all.insert(node, late)),
            None => drop(all.remove(&node)),
        }
    }

    /// Delays the flush requests that the node receives.
    pub(super) fn delay_flushes(&self, node: NodeId, slow: Duration) {
        self.net.slow.lock().insert(node, slow);
    }

    /// Puts the first bytes of a unit into the node's memory.
    pub(super) fn put_in_memory(&self, node: NodeId, unit: UnitId, generation: Generation, bytes: Vec<u8>) {
        self.net.held.lock().insert((node, unit), (generation, bytes));
    }

    /// Returns the nodes that received the confirmation of a flush round since the last call.
    /// A new home map comes with the next request to each of these nodes, before it is executed.
    pub(super) fn renew_map_at(&self, nodes: impl IntoIterator<Item = NodeId>) {
        self.net.renewals.lock().extend(nodes);
    }

    pub(super) fn confirmed_nodes(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.net.rounds.lock())
    }

    /// Compares and repairs the copies of the homes that a running node serves.
    pub(super) fn check_copies(&self, node: NodeId) -> CopyReport {
        let running = self.net.nodes.lock()[node.0 as usize].clone().expect("the node is up");
        let check = running.check.clone().expect("homes with replicas");
        self.run(async move { check.run().await })
    }

    /// The copies that the primary of their home has found to be of no use.
    pub(super) fn failed_copies(&self, node: NodeId) -> Vec<(HomeId, NodeId)> {
        let running = self.net.nodes.lock()[node.0 as usize].clone().expect("the node is up");
        running.replicas.as_ref().expect("homes with replicas").failed_copies()
    }

    /// Log and data of a running node.
    pub(super) fn stores(&self, node: NodeId) -> (Arc<Ledger>, Arc<ExtentStore>) {
        let nodes = self.net.nodes.lock();
        nodes[node.0 as usize].as_ref().expect("the node is up").stores.clone()
    }

    /// From now on, a node does not answer requests to backups, or (`false`) does so again.
    pub(super) fn refuse_copies(&self, node: NodeId, refuses: bool) {
        let mut all = self.net.refuses.lock();
        if refuses {
            all.insert(node)
        } else {
            all.remove(&node)
        };
    }

    fn rpc(&self, local: NodeId) -> Arc<NetRpc> {
        Arc::new(NetRpc { net: self.net.clone(), local })
    }

    /// Starts a node on the content of its store.
    pub(super) fn start(&self, id: NodeId) {
        let runtime = self.machine.runtime();
        let (ledger, extents) = self.open_store(&self.stores[id.0 as usize]);
        let activity = Activity::new(runtime.clone(), QUIET);
        let rpc: Arc<dyn Rpc> = self.rpc(id);
        let replica_parts = || ReplicaParts {
            runtime: runtime.clone(),
            cluster: self.cluster.clone(),
            rpc: Arc::downgrade(&rpc),
            node: id,
        };
        let replicas = self
            .cluster
            .map()
            .is_replicated()
            .then(|| Replicas::new(replica_parts(), &ledger).expect("a ledger that can be read"));
        let copies = Copies::new(CopiesParts {
            cluster: self.cluster.clone(),
            node: id,
            replicas: replicas.clone(),
            extents: extents.clone(),
            request_pools: [self.client_pool.clone(), self.client_pool.clone()],
            pool: self.copies.clone(),
        });
        let backups = BackupService::new(replica_parts(), ledger.clone(), extents.clone());
        let stores = (ledger.clone(), extents.clone());
        let copies = Arc::new(copies);
        let check = replicas.clone().map(|replicas| {
            let (copies, activity) = (copies.clone(), activity.clone());
            let (ledger, extents) = stores.clone();
            Arc::new(CopyCheck::new(JoinsParts { replicas, copies, ledger, extents, activity }))
        });
        let unit = UnitService::new(UnitParts {
            runtime: runtime.clone(),
            cluster: self.cluster.clone(),
            extents: extents.clone(),
            copies,
            shared: self.trees[id.0 as usize].clone(),
            lease: MapLease::unlimited(runtime.clock.clone()),
            rpc: self.rpc(id),
            read_pool: self.pools[0].clone(),
            flush_pool: self.pools[1].clone(),
            activity: activity.clone(),
        });
        let cache = CacheService::new(CacheParts {
            holders: Arc::new(CacheTable::new()),
            lease: MapLease::unlimited(runtime.clock.clone()),
            runtime,
            cluster: self.cluster.clone(),
            ledger,
            extents,
            shared: self.trees[id.0 as usize].clone(),
            rpc: self.rpc(id),
            activity: activity.clone(),
            flush_parallel: 3,
        })
        .expect("a ledger that can be read");
        let node = Node { unit, cache, activity, replicas, check, backups, stores, _rpc: rpc };
        self.net.nodes.lock()[id.0 as usize] = Some(Arc::new(node));
    }

    fn open_store(&self, media: &StoreMedia) -> (Arc<Ledger>, Arc<ExtentStore>) {
        let disk: Arc<dyn Disk> = Arc::new(media.disk.clone());
        let scratch = self.pools[2].clone();
        let parts = Media {
            logs: [Arc::new(media.logs[0].clone()), Arc::new(media.logs[1].clone())],
            kv: Arc::new(media.kv.clone()),
            data: Arc::new(ExtentData::new(disk.clone(), scratch.clone())),
        };
        let after_power_loss = self.power_lost.load(Ordering::Relaxed);
        let options = LedgerOptions { checkpoint_bytes: 100_000, volatile: true, after_power_loss };
        let (runtime, capacity) = (self.machine.runtime(), [0, self.capacity / 2, self.capacity]);
        let open = async move {
            let replay = |kind: RecordKind, body: &[u8], table: &mut dyn Table| {
                tameike_store::replay(kind, body, table, &mut |_, body, table| replay(body, table))
            };
            let ledger = Ledger::open(runtime.clone(), parts, options, replay).await?;
            let extents = ExtentStore::open(runtime, ledger.clone(), disk, scratch, capacity).await?;
            Ok::<_, Fault>((ledger, extents))
        };
        self.machine.run(open).expect("the media are whole")
    }

    /// Starts the background flushers of all nodes.
    pub(super) fn start_flushers(&self) {
        let nodes: Vec<_> = self.net.nodes.lock().iter().flatten().cloned().collect();
        nodes.iter().for_each(|node| node.cache.start_flusher());
    }

    /// Crashes all agents at once, and restarts them on their stores.
    pub(super) fn crash(&self) {
        self.stop_all();
        (0..self.cluster.nodes().len() as u32).for_each(|id| self.start(NodeId(id)));
    }

    /// Simulates power loss of all machines, in which `logless` loses its whole log; then restarts the agents.
    pub(super) fn lose_power(&self, logless: NodeId) {
        self.stop_all();
        self.stores[logless.0 as usize].logs.iter().for_each(|log| log.edit(Vec::clear));
        self.power_lost.store(true, Ordering::Relaxed);
        (0..self.cluster.nodes().len() as u32).for_each(|id| self.start(NodeId(id)));
    }

    fn stop_all(&self) {
        self.machine.kill();
        let nodes: Vec<_> = self.net.nodes.lock().iter_mut().map(Option::take).collect();
        drop(nodes);
    }

    /// Stops an agent for good.
    pub(super) fn stop(&self, id: NodeId) {
        let node = self.net.nodes.lock()[id.0 as usize].take();
        drop(node);
    }

    /// A foreground request that ends when dropped.
    pub(super) fn keep_busy(&self, id: NodeId) -> crate::cache::Foreground {
        self.net.nodes.lock()[id.0 as usize].as_ref().expect("the node runs").activity.begin()
    }

    /// Number of files in the coordinators' memory.
    pub(super) fn files_in_memory(&self) -> usize {
        self.net.nodes.lock().iter().flatten().map(|node| node.cache.base.files.count()).sum()
    }

    /// Dirty bytes on all nodes.
    pub(super) fn dirty_bytes(&self) -> u64 {
        let nodes = self.net.nodes.lock();
        nodes.iter().flatten().map(|node| node.cache.extents.space(View::Cache).dirty).sum()
    }

    /// A client on this node.
    pub(super) fn client(&self, node: u32) -> Client {
        Client {
            rpc: self.rpc(NodeId(node)),
            cluster: self.cluster.clone(),
            shared: if self.mounts.is_empty() {
                self.shared.clone()
            } else {
                self.trees[node as usize].clone()
            },
            pool: self.client_pool.clone(),
            runtime: self.machine.runtime(),
        }
    }

    /// Starts a drain of all nodes, and does not wait for it.
    pub(super) fn begin_drain(&self) {
        let nodes: Vec<_> = self.net.nodes.lock().iter().flatten().cloned().collect();
        for node in nodes {
            self.machine.runtime().spawn(async move { drop(drain(&node.cache, true).await) });
        }
    }

    /// Drains all nodes, as the command line does.
    pub(super) fn drain(&self, verify: bool) -> Receipt {
        let mut receipt = Receipt::default();
        let nodes = self.net.nodes.lock().clone();
        for (id, node) in nodes.into_iter().enumerate() {
            match node.map(|node| self.machine.run(async move { drain(&node.cache, verify).await })) {
                Some(Ok(part)) => receipt.merge(part),
                Some(Err(fault)) => receipt.faults.push(fault.to_string()),
                None => receipt.faults.push(format!("{} is down", NodeId(id as u32))),
            }
        }
        receipt
    }

    /// Fault injection for the device, log and table of a node.
    pub(super) fn device_faults(&self, node: u32) -> Faults {
        self.stores[node as usize].faults.clone()
    }

    /// Fails a sync of a node's ledger, which then refuses all changes until the agent restarts.
    pub(super) fn break_ledger(&self, node: NodeId) {
        let running = self.net.nodes.lock()[node.0 as usize].clone().expect("the node runs");
        let (journal, faults) = (&running.cache.base.journal, self.device_faults(node.0));
        let digest = UnitDigest { index: 0, length: 1, root: true, value: [0; 32] };
        journal.put_digests(InodeId::cached(1, 1), &[digest]).expect("the ledger is intact");
        // The append succeeds, and the sync fails.
        faults.after(1);
        self.run(journal.sync(true)).expect_err("the sync fails");
        faults.none();
    }

    /// Flips a bit in each block with this content on the nodes' devices. Panics if no device has one.
    pub(super) fn damage(&self, block: &[u8]) {
        self.damage_on(0..self.stores.len() as u32, block);
    }

    /// The same on the devices of some nodes.
    pub(super) fn damage_on(&self, nodes: impl IntoIterator<Item = u32>, block: &[u8]) {
        let mut count = 0;
        for disk in nodes.into_iter().map(|node| &self.stores[node as usize].disk) {
            for position in (0..disk.size()).step_by(block.len()) {
                let mut found = vec![0; block.len()];
                disk.look(position, &mut found);
                if found == block {
                    disk.damage(position as usize + 1000);
                    count += 1;
                }
            }
        }
        assert!(count > 0, "no device holds this block");
    }

    /// Writes a file on the shared file system, as another program does.
    pub(super) fn write_shared(&self, path: &str, content: &[u8]) {
        std::fs::write(self.root.join(path), content).expect("write");
    }

    /// Content of a file on the shared file system.
    pub(super) fn shared_content(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.root.join(path)).expect("a file on the shared directory")
    }

    /// Runs a future to completion on the simulated machine.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.machine.run(work)
    }

    /// Creates a file with this content.
    pub(super) fn create(&self, path: &str, content: &[u8]) {
        self.run(self.client(0).create(path.as_bytes(), content)).expect("create");
    }

    /// Opens, writes and closes a file.
    pub(super) fn write(&self, path: &str, offset: u64, bytes: &[u8]) {
        self.run(self.client(0).write(path.as_bytes(), offset, bytes)).expect("write");
    }

    /// Content of a file as the job reads it on this node.
    pub(super) fn read(&self, node: u32, path: &str) -> Vec<u8> {
        self.run(self.client(node).read(path.as_bytes())).expect("read")
    }

    /// Drains all nodes, and expects that all data is on the shared file system.
    pub(super) fn drain_completely(&self, verify: bool) -> Receipt {
        let receipt = self.drain(verify);
        assert!(receipt.is_complete(), "{receipt:?}");
        receipt
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The network and the nodes reference each other.
        self.machine.kill();
        let nodes = std::mem::take(&mut *self.net.nodes.lock());
        drop(nodes);
    }
}

/// Flushes the files of a coordinator, and returns its receipt.
async fn drain(cache: &CacheService, verify: bool) -> Result<Receipt> {
    let mut receipt = Receipt { faults: cache.flush_all().await?, ..Receipt::default() };
    let mut after = None;
    loop {
        let (files, next) = cache.receipts(verify, after).await?;
        receipt.files.extend(files);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(receipt),
        }
    }
}

/// Bytes that depend on position and seed.
pub(super) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    (0..count as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 7919) >> 9) as u8).collect()
}

/// Checksum of a whole file in a receipt.
pub(super) fn checksum(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}
