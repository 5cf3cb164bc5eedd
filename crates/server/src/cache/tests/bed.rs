//! Several nodes in one process, on real directories, and a client as simple as can be.

use super::faulty::{Control, FaultyFs};
use super::late::{Mount, Server};
use crate::cache::{Activity, CacheParts, CacheService, replay};
use crate::holders::CacheTable;
use crate::unit::{UnitParts, UnitService};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::Receipt;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::unit::{Backing, SPACE_ATTEMPTS_MAX, SpaceChange, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{
    Cluster, Errno, Fault, Generation, InodeId, JobId, Layout, NodeId, NodeInfo, Result, UnitId, View,
};
use tameike_fabric::{Answer, Rpc, Target};
use tameike_io::disk::Disk;
use tameike_io::disk::memory::{Faults, MemoryDisk, MemoryLog};
use tameike_io::os::simulated::Simulation;
use tameike_io::shared::{PosixTree, SharedFs};
use tameike_io::{Frame, Payload, Pool, Runtime, Slab};
use tameike_store::extent::{ExtentData, apply};
use tameike_store::ledger::kv::MemoryKv;
use tameike_store::ledger::{LedgerOptions, Media};
use tameike_store::table::Table;
use tameike_store::{ExtentStore, Ledger, RecordKind};

pub(super) const QUIET: Duration = Duration::from_millis(50);

/// A node that runs.
struct Node {
    unit: Arc<UnitService>,
    cache: Arc<CacheService>,
    activity: Arc<Activity>,
}

/// The network: calls between nodes of this process.
struct Net {
    runtime: Runtime,
    nodes: Mutex<Vec<Option<Arc<Node>>>>,
    /// Nodes that seem dead to others, and do this long afterwards what they were asked to flush.
    late: Mutex<BTreeMap<NodeId, Duration>>,
    /// How long a call is under way, and its answer.
    latency: Mutex<Duration>,
    /// Nodes that are asked to flush this long after others.
    slow: Mutex<BTreeMap<NodeId, Duration>>,
    /// Nodes that were told that a round of flushes was good.
    rounds: Mutex<Vec<NodeId>>,
    /// What nodes have in memory of units, in which version.
    held: Mutex<BTreeMap<(NodeId, UnitId), Held>>,
}

type Held = (Generation, Vec<u8>);

struct NetRpc {
    net: Arc<Net>,
    local: NodeId,
}

impl Rpc for NetRpc {
    fn local(&self) -> NodeId {
        self.local
    }

    fn call(
        &self,
        to: NodeId,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let (net, local) = (self.net.clone(), self.local);
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
            let node = net.nodes.lock()[to.0 as usize].clone();
            let node = node.ok_or_else(|| Fault::new(Errno::EHOSTDOWN, format!("{to} is down")))?;
            let late = net.late.lock().get(&to).copied();
            if let (Some(late), Request::Unit(UnitRequest::Flush { .. })) = (late, &request) {
                let runtime = net.runtime.clone();
                net.runtime.spawn(async move {
                    runtime.sleep(late).await;
                    let Request::Unit(request) = request else { return };
                    node.unit.serve(request, payload, Target::Any).await.expect("a late flush");
                });
                return Err(Fault::new(Errno::EHOSTDOWN, format!("{to} does not answer")));
            }
            let _foreground = node.activity.of_request(&request);
            let (reply, payload) = match request {
                Request::Unit(request) => {
                    let (reply, carried) = node.unit.serve(request, payload, into.into()).await?;
                    (Reply::Unit(reply), carried.payload())
                }
                Request::Cache(request) => (Reply::Cache(node.cache.serve(local, request).await?), None),
                Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation }) => {
                    let held = net.held.lock().get(&(to, unit)).cloned();
                    let held = held.filter(|(version, _)| *version == generation);
                    let Some((_, bytes)) = held else {
                        return Ok(Answer { reply: Reply::Client(ClientReply::NotHeld), payload: None });
                    };
                    let mut frame = into.expect("the caller gives a frame");
                    frame[..length as usize].copy_from_slice(&bytes[offset as usize..][..length as usize]);
                    (Reply::Client(ClientReply::Read), Some(Payload::new(Arc::new(frame), 0..length)))
                }
                Request::Meta(_)
                | Request::Admin(_)
                | Request::Client(_)
                | Request::Lock(_)
                | Request::Pack(_) => {
                    return Err(Errno::ENOSYS.into());
                }
            };
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

/// What of a node survives the death of its agent.
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

/// All of it.
pub(super) struct Bed {
    pub(super) machine: Simulation,
    pub(super) cluster: Arc<Cluster>,
    pub(super) control: Arc<Control>,
    pub(super) root: PathBuf,
    /// The shared file system without faults.
    pub(super) shared: Arc<dyn SharedFs>,
    capacity: u64,
    /// The shared file system as each node has it.
    trees: Vec<Arc<FaultyFs>>,
    mounts: Vec<Arc<Mount>>,
    net: Arc<Net>,
    stores: Vec<StoreMedia>,
    power_lost: AtomicBool,
    pools: [Pool; 3],
    pub(super) client_pool: Pool,
    _dirs: tempfile::TempDir,
}

impl Bed {
    pub(super) fn new(seed: u64, nodes: u32) -> Self {
        Self::with_capacity(seed, nodes, 12 << 20)
    }

    /// `capacity` is that of the cache view on each node, in bytes.
    pub(super) fn with_capacity(seed: u64, nodes: u32, capacity: u64) -> Self {
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
        let cluster = Arc::new(Cluster::new(job, infos.collect()).expect("a cluster"));
        let net = Net {
            runtime: machine.runtime(),
            nodes: Mutex::new((0..nodes).map(|_| None).collect()),
            late: Mutex::default(),
            slow: Mutex::default(),
            latency: Mutex::default(),
            rounds: Mutex::default(),
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
            client_pool: slab.pool(12),
            machine,
            _dirs: dirs,
        };
        (0..nodes).for_each(|id| bed.start(NodeId(id)));
        bed
    }

    /// Nodes that have a mount each of a shared file system which shows late what was done to it, as `shared` has another one. A
    /// call takes a millisecond each way.
    pub(super) fn late(seed: u64, nodes: u32) -> Self {
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

    /// The mount of a node.
    pub(super) fn mount(&self, node: NodeId) -> Arc<Mount> {
        self.mounts[node.0 as usize].clone()
    }

    /// What a node is asked to flush from now on it does `late`, and the asker never hears of it.
    pub(super) fn answer_late(&self, node: NodeId, late: Option<Duration>) {
        let mut all = self.net.late.lock();
        match late {
            Some(late) => drop(all.insert(node, late)),
            None => drop(all.remove(&node)),
        }
    }

    /// What a node is asked to flush from now on reaches it so much later.
    pub(super) fn flush_slowly(&self, node: NodeId, slow: Duration) {
        self.net.slow.lock().insert(node, slow);
    }

    /// A node has bytes of a unit in memory, from its start on.
    pub(super) fn hold(&self, node: NodeId, unit: UnitId, generation: Generation, bytes: Vec<u8>) {
        self.net.held.lock().insert((node, unit), (generation, bytes));
    }

    /// Nodes that were told that a round of flushes was good, since the last question.
    pub(super) fn rounds(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.net.rounds.lock())
    }

    fn rpc(&self, local: NodeId) -> Arc<NetRpc> {
        Arc::new(NetRpc { net: self.net.clone(), local })
    }

    /// Starts a node on what its store holds.
    pub(super) fn start(&self, id: NodeId) {
        let runtime = self.machine.runtime();
        let (ledger, extents) = self.open_store(&self.stores[id.0 as usize]);
        let activity = Activity::new(runtime.clone(), QUIET);
        let unit = UnitService::new(UnitParts {
            runtime: runtime.clone(),
            cluster: self.cluster.clone(),
            extents: extents.clone(),
            shared: self.trees[id.0 as usize].clone(),
            rpc: self.rpc(id),
            read_pool: self.pools[0].clone(),
            flush_pool: self.pools[1].clone(),
            activity: activity.clone(),
        });
        let cache = CacheService::new(CacheParts {
            holders: Arc::new(CacheTable::new()),
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
        let node = Node { unit, cache, activity };
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
        let (runtime, capacity) = (self.machine.runtime(), [0, 0, self.capacity]);
        let open = async move {
            let replay = |kind: RecordKind, body: &[u8], table: &mut dyn Table| match kind {
                RecordKind::Cache => replay(body, table),
                RecordKind::Extents => apply(body, table),
                RecordKind::Names => Ok(()),
            };
            let ledger = Ledger::open(runtime.clone(), parts, options, replay).await?;
            let extents = ExtentStore::open(runtime, ledger.clone(), disk, scratch, capacity).await?;
            Ok::<_, Fault>((ledger, extents))
        };
        self.machine.run(open).expect("the media are whole")
    }

    /// Lets all nodes flush in the background.
    pub(super) fn start_flushers(&self) {
        let nodes: Vec<_> = self.net.nodes.lock().iter().flatten().cloned().collect();
        nodes.iter().for_each(|node| node.cache.start_flusher());
    }

    /// All agents die at once, and are started again on their stores.
    pub(super) fn crash(&self) {
        self.stop_all();
        (0..self.cluster.nodes().len() as u32).for_each(|id| self.start(NodeId(id)));
    }

    /// All machines lose power, and one its whole log; then their agents are started again.
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

    /// An agent dies for good.
    pub(super) fn stop(&self, id: NodeId) {
        let node = self.net.nodes.lock()[id.0 as usize].take();
        drop(node);
    }

    /// A foreground request that never ends, until dropped.
    pub(super) fn keep_busy(&self, id: NodeId) -> crate::cache::Foreground {
        self.net.nodes.lock()[id.0 as usize].as_ref().expect("the node runs").activity.begin()
    }

    /// Files that the coordinators have in memory.
    pub(super) fn files_in_memory(&self) -> usize {
        self.net.nodes.lock().iter().flatten().map(|node| node.cache.base.files.count()).sum()
    }

    /// Dirty bytes on all nodes.
    pub(super) fn dirty_bytes(&self) -> u64 {
        let nodes = self.net.nodes.lock();
        nodes.iter().flatten().map(|node| node.cache.extents.space(View::Cache).dirty).sum()
    }

    /// A client on a node.
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

    /// Has all nodes drain, and does not wait for it.
    pub(super) fn begin_drain(&self) {
        for node in self.cluster.nodes() {
            let (client, id) = (self.client(node.id.0), node.id);
            self.machine.runtime().spawn(async move { drop(client.drain(id, true).await) });
        }
    }

    /// Drains all nodes, as the command line does.
    pub(super) fn drain(&self, verify: bool) -> Receipt {
        let mut receipt = Receipt::default();
        for node in self.cluster.nodes() {
            let (client, id) = (self.client(node.id.0), node.id);
            let part = self.machine.run(async move { client.drain(id, verify).await });
            match part {
                Ok(part) => receipt.merge(part),
                Err(fault) => receipt.faults.push(fault.to_string()),
            }
        }
        receipt
    }

    /// What fails of the device, log and table of a node.
    pub(super) fn device_faults(&self, node: u32) -> Faults {
        self.stores[node as usize].faults.clone()
    }

    /// Turns a bit of each block on the nodes' devices with this content, of which there must be one at least.
    pub(super) fn damage(&self, block: &[u8]) {
        let mut count = 0;
        for disk in self.stores.iter().map(|store| &store.disk) {
            for place in (0..disk.size()).step_by(block.len()) {
                let mut found = vec![0; block.len()];
                disk.look(place, &mut found);
                if found == block {
                    disk.damage(place as usize + 1000);
                    count += 1;
                }
            }
        }
        assert!(count > 0, "no device holds this block");
    }

    /// What the shared file holds.
    pub(super) fn real(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.root.join(path)).expect("a file on the shared directory")
    }

    /// Runs a client's work to its end.
    pub(super) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.machine.run(work)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Nodes and network hold each other.
        self.machine.kill();
        let nodes = std::mem::take(&mut *self.net.nodes.lock());
        drop(nodes);
    }
}

/// Reads and writes as the cache view does, without any caching.
#[derive(Clone)]
pub(super) struct Client {
    rpc: Arc<NetRpc>,
    cluster: Arc<Cluster>,
    pub(super) shared: Arc<dyn SharedFs>,
    pool: Pool,
    pub(super) runtime: Runtime,
}

/// A file as a client has opened it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) inode: InodeId,
    pub(super) size: u64,
    pub(super) generation: Generation,
}

impl Client {
    pub(super) async fn ask(&self, inode: InodeId, request: CacheRequest) -> Result<CacheReply> {
        match self.rpc.call(self.cluster.inode_home(inode), Request::Cache(request), None, None).await?.reply
        {
            Reply::Cache(reply) => Ok(reply),
            other => panic!("a coordinator answered {other:?}"),
        }
    }

    pub(super) async fn state(&self, inode: InodeId, request: CacheRequest) -> Result<CacheState> {
        match self.ask(inode, request).await? {
            CacheReply::State(state) | CacheReply::Opened { state, .. } => Ok(state),
            other => panic!("a coordinator answered {other:?}"),
        }
    }

    pub(super) async fn unit(
        &self,
        to: NodeId,
        request: UnitRequest,
        payload: Option<Payload>,
    ) -> Result<Answer> {
        self.rpc.call(to, Request::Unit(request), payload, None).await
    }

    /// Opens a file, for writing as well when `write`.
    pub(super) async fn open(&self, path: &[u8], write: bool) -> Result<Opened> {
        let stat = self.shared.stat(path)?;
        let (inode, path, stamp) = (stat.inode_id(), path.to_vec(), stat.stamp());
        // Time passes between the look and the message.
        self.runtime.block(|| ()).await;
        let mut state = self
            .state(
                inode,
                CacheRequest::Open {
                    inode,
                    path: path.clone(),
                    stamp,
                    asked: Vec::new(),
                    holds: true,
                    made: false,
                },
            )
            .await?;
        if write {
            state = self
                .state(inode, CacheRequest::Dirty { inode, path, stamp, writes: true, reach: u64::MAX })
                .await?;
        }
        let size = state.newer.map_or(stat.size, |(size, _)| size);
        Ok(Opened { inode, size, generation: state.generation })
    }

    /// Writes bytes of an opened file without committing them.
    pub(super) async fn put(&self, file: Opened, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let place = offset + done as u64;
            let unit = UnitId { inode: file.inode, index: place / UNIT_SIZE as u64 };
            let count = (UNIT_SIZE - (place - unit.start()) as usize).min(bytes.len() - done);
            let piece = &bytes[done..done + count];
            let mut attempt = 0;
            while let Err(fault) = self.put_once(file, place, piece).await {
                if fault.errno != Errno::ENOSPC || attempt == SPACE_ATTEMPTS_MAX {
                    return Err(fault);
                }
                self.make_room(unit, attempt).await?;
                attempt += 1;
            }
            done += count;
        }
        Ok(())
    }

    /// Sends one message with bytes of one unit of an opened file.
    pub(super) async fn put_once(&self, file: Opened, offset: u64, bytes: &[u8]) -> Result<()> {
        let unit = UnitId { inode: file.inode, index: offset / UNIT_SIZE as u64 };
        let start = (offset - unit.start()) as u32;
        let mut frame = self.pool.take().await;
        frame[..bytes.len()].copy_from_slice(bytes);
        let payload = Payload::new(Arc::new(frame), 0..bytes.len() as u32);
        let ranges = (start..start + bytes.len() as u32).into();
        let request = UnitRequest::Write { unit, ranges, generation: file.generation };
        self.unit(self.cluster.unit_home(Layout::Striped, unit), request, Some(payload)).await.map(drop)
    }

    /// Waits until the home of a unit has room.
    pub(super) async fn make_room(&self, unit: UnitId, attempt: u32) -> Result<()> {
        let home = self.cluster.unit_home(Layout::Striped, unit);
        self.unit(home, UnitRequest::WaitForSpace { attempt }, None).await.map(drop)
    }

    /// Makes what was written up to `end` known and safe.
    pub(super) async fn close(&self, file: Opened, end: u64) -> Result<CacheState> {
        let inode = file.inode;
        for home in self.cluster.unit_homes(Layout::Striped, inode) {
            self.unit(home, UnitRequest::Sync { inode, durable: false }, None).await?;
        }
        self.state(inode, CacheRequest::Commit { inode, end, sparse: false, now: self.runtime.now() }).await
    }

    /// Opens, writes and closes.
    pub(super) async fn write(&self, path: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.open(path, true).await?;
        self.put(file, offset, bytes).await?;
        self.close(file, offset + bytes.len() as u64).await.map(|_| ())
    }

    /// Makes a file and writes it.
    pub(super) async fn create(&self, path: &[u8], bytes: &[u8]) -> Result<()> {
        self.shared.create(path, 0o644)?;
        self.write(path, 0, bytes).await
    }

    /// Opens and reads the whole file.
    pub(super) async fn read(&self, path: &[u8]) -> Result<Vec<u8>> {
        let file = self.open(path, false).await?;
        self.read_from(file, path, Vec::new()).await
    }

    /// Reads an opened file, of which others may have bytes in memory.
    pub(super) async fn read_from(&self, file: Opened, path: &[u8], holders: Vec<NodeId>) -> Result<Vec<u8>> {
        let mut content = Vec::with_capacity(file.size as usize);
        while (content.len() as u64) < file.size {
            let place = content.len() as u64;
            let unit = UnitId { inode: file.inode, index: place / UNIT_SIZE as u64 };
            let offset = (place - unit.start()) as u32;
            let length = (file.size - place).min(UNIT_SIZE as u64 - u64::from(offset)) as u32;
            let backing = Backing::Shared { path: path.to_vec(), holders: holders.clone() };
            let request = UnitRequest::Read { unit, offset, length, generation: file.generation, backing };
            let answer = self.unit(self.cluster.unit_home(Layout::Striped, unit), request, None).await?;
            let payload = answer.payload.expect("a read brings bytes");
            assert_eq!(payload.len(), length as usize);
            content.extend_from_slice(&payload);
        }
        Ok(content)
    }

    pub(super) async fn truncate(&self, path: &[u8], size: u64) -> Result<CacheState> {
        let file = self.open(path, true).await?;
        let (inode, now) = (file.inode, self.runtime.now());
        self.state(inode, CacheRequest::Truncate { inode, size, now }).await
    }

    /// The size as `stat` shows it.
    /// Changes the space of bytes of a file.
    pub(super) async fn change_space(
        &self,
        path: &[u8],
        change: SpaceChange,
        bytes: std::ops::Range<u64>,
        grows: bool,
    ) -> Result<CacheState> {
        let inode = self.open(path, true).await?.inode;
        let (start, end, now) = (bytes.start, bytes.end, self.runtime.now());
        self.state(inode, CacheRequest::Space { inode, change, start, end, grows, now }).await
    }

    pub(super) async fn size(&self, path: &[u8]) -> Result<u64> {
        let stat = self.shared.stat(path)?;
        let (inode, size, mtime) = (stat.inode_id(), stat.size, stat.mtime);
        self.runtime.block(|| ()).await;
        let state = self.state(inode, CacheRequest::State { inode, size, mtime }).await?;
        Ok(state.newer.map_or(size, |(size, _)| size))
    }

    /// Renames a file or directory, telling who must know.
    pub(super) async fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let stat = self.shared.stat(from)?;
        let inode = (stat.kind == tameike_core::FileKind::File).then(|| stat.inode_id());
        let replaced = self.shared.pin(to).ok();
        let request = CacheRequest::Renamed { inode, from: from.to_vec(), to: to.to_vec() };
        for node in self.cluster.nodes() {
            if inode.is_none_or(|inode| self.cluster.inode_home(inode) == node.id) {
                self.rpc.call(node.id, Request::Cache(request.clone()), None, None).await?;
            }
        }
        self.shared.rename(from, to, tameike_core::wire::meta::RenameMode::Replace)?;
        if let Some((stat, _pin)) = replaced {
            self.ask(stat.inode_id(), CacheRequest::Removed { inode: stat.inode_id() }).await?;
        }
        Ok(())
    }

    pub(super) async fn unlink(&self, path: &[u8]) -> Result<()> {
        let (stat, _pin) = self.shared.pin(path)?;
        self.shared.unlink(path)?;
        self.ask(stat.inode_id(), CacheRequest::Removed { inode: stat.inode_id() }).await.map(|_| ())
    }

    pub(super) async fn write_back(&self, path: &[u8]) -> Result<()> {
        let inode = self.shared.stat(path)?.inode_id();
        self.ask(inode, CacheRequest::Writeback { inode }).await.map(|_| ())
    }

    async fn drain(&self, node: NodeId, verify: bool) -> Result<Receipt> {
        let (mut receipt, mut after) = (Receipt::default(), None);
        loop {
            let request = Request::Cache(CacheRequest::Drain { verify, after });
            let reply = self.rpc.call(node, request, None, None).await?.reply;
            let Reply::Cache(CacheReply::Receipt { receipt: part, next }) = reply else {
                panic!("a drain was answered with {reply:?}");
            };
            receipt.merge(part);
            match next {
                Some(next) => after = Some(next),
                None => return Ok(receipt),
            }
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(super) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    (0..count as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 7919) >> 9) as u8).collect()
}
