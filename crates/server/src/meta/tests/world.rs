//! A cluster of metadata services that call each other directly, on ledgers in memory that survive crashes.

use crate::holders::CacheTable;
use crate::meta::{MetaParts, MetaServices};
use event_listener::Event;
use futures_util::future::{BoxFuture, Either, FutureExt, ready, select};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, HomeId, InodeId, JobId, NodeId, NodeInfo, Result};
use tameike_fabric::{Answer, Destination, RequestContext, Rpc};
use tameike_io::disk::memory::{Faults, MemoryLog};
use tameike_io::os::runtime::promise;
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload, Slab};
use tameike_store::Ledger;
use tameike_store::ledger::kv::MemoryKv;
use tameike_store::ledger::{Data, LedgerOptions, Media, RecordKind};

struct NoData;

impl Data for NoData {
    fn settle(&self) -> BoxFuture<'static, Result<()>> {
        ready(Ok(())).boxed()
    }
    fn holds(&self, _: RecordKind, _: Vec<u8>) -> BoxFuture<'static, Result<bool>> {
        ready(Ok(true)).boxed()
    }
}

/// The state of a node that survives a crash.
struct Disk {
    logs: [MemoryLog; 2],
    kv: MemoryKv,
    /// Bytes of units, from the start of the file.
    units: BTreeMap<InodeId, Vec<u8>>,
}

struct Running {
    service: Arc<MetaServices>,
    ledger: Arc<Ledger>,
    _rpc: Arc<dyn Rpc>,
}

struct Site {
    disk: Disk,
    running: Option<Running>,
    incarnation: u64,
}

/// A crash of a node at a message between nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrashPoint {
    pub(super) node: usize,
    pub(super) event: u64,
}

pub(crate) struct World {
    pub(crate) machine: Simulation,
    crashes: Event,
    pub(crate) cluster: Arc<Cluster>,
    pub(super) faults: Vec<Faults>,
    sites: Mutex<Vec<Site>>,
    events: Mutex<(u64, Option<CrashPoint>)>,
    slab: Arc<Slab>,
    pub(super) revoked: Mutex<Vec<(NodeId, InodeId)>>,
}

impl World {
    /// Starts a cluster. `devices` states whether each node has a device.
    pub(crate) fn new(seed: u64, devices: &[bool]) -> Arc<Self> {
        let info = |(id, &device): (usize, &bool)| NodeInfo {
            id: NodeId(id as u32),
            host: format!("host{id}"),
            address: String::new(),
            group: 0,
            device,
        };
        let nodes = devices.iter().enumerate().map(info).collect();
        let cluster = Arc::new(Cluster::new(JobId::new("test").unwrap(), nodes, 1).unwrap());
        let faults: Vec<_> = devices.iter().map(|_| Faults::default()).collect();
        let site = |faults: &Faults| Site {
            disk: Disk {
                logs: [MemoryLog::new(faults.clone()), MemoryLog::new(faults.clone())],
                kv: MemoryKv::new(faults.clone()),
                units: BTreeMap::new(),
            },
            running: None,
            incarnation: 0,
        };
        let sites = Mutex::new(faults.iter().map(site).collect());
        let slab = Slab::new(8).unwrap();
        let world = Arc::new(Self {
            machine: Simulation::shuffled(seed),
            crashes: Event::new(),
            cluster,
            faults,
            sites,
            events: Mutex::default(),
            revoked: Mutex::default(),
            slab,
        });
        (0..devices.len()).for_each(|node| world.start(node));
        world
    }

    pub(super) fn count(&self) -> usize {
        self.sites.lock().len()
    }

    /// Starts a node's services on its disk, with recovery in the background.
    pub(super) fn start(self: &Arc<Self>, node: usize) {
        self.machine.bury();
        self.faults[node].none();
        let media = {
            let sites = self.sites.lock();
            let disk = &sites[node].disk;
            Media {
                logs: [Arc::new(disk.logs[0].clone()), Arc::new(disk.logs[1].clone())],
                kv: Arc::new(disk.kv.clone()),
                data: Arc::new(NoData),
            }
        };
        let runtime = self.machine.runtime_of(node);
        let options = LedgerOptions { checkpoint_bytes: 1 << 20, volatile: false, after_power_loss: false };
        let ledger = self
            .machine
            .run(Ledger::open(runtime.clone(), media, options, |_, body, table| {
                tameike_store::meta::replay(table, body)
            }))
            .expect("the log is whole");
        let rpc: Arc<dyn Rpc> = Arc::new(Wire { world: Arc::downgrade(self), node });
        let parts = MetaParts {
            runtime: runtime.clone(),
            cluster: self.cluster.clone(),
            ledger: ledger.clone(),
            rpc: Arc::downgrade(&rpc),
            node: NodeId(node as u32),
            pool: self.slab.pool(1),
            owner: (1000, 1000),
            holders: Arc::new(CacheTable::new()),
        };
        let service = self.machine.run(MetaServices::open(parts)).expect("the ledger is whole");
        let recovering = service.clone();
        {
            let mut sites = self.sites.lock();
            sites[node].running = Some(Running { service, ledger, _rpc: rpc });
            sites[node].incarnation += 1;
        }
        runtime.spawn(async move { recovering.recover().await });
    }

    pub(super) fn kill(&self, node: usize) {
        self.machine.kill_node(node);
        let running = self.sites.lock()[node].running.take();
        drop(running);
        self.crashes.notify(usize::MAX);
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        self.sites.lock()[node].running.is_some()
    }

    /// Starts all nodes that are down, and runs all tasks to their end.
    pub(super) fn heal(self: &Arc<Self>) {
        self.events.lock().1 = None;
        self.faults.iter().for_each(Faults::none);
        for node in 0..self.count() {
            if !self.is_up(node) {
                self.start(node);
            }
        }
        self.machine.finish();
    }

    pub(crate) fn service(&self, node: usize) -> Arc<MetaServices> {
        self.sites.lock()[node].running.as_ref().expect("the node is up").service.clone()
    }

    pub(super) fn ledger(&self, node: usize) -> Arc<Ledger> {
        self.sites.lock()[node].running.as_ref().expect("the node is up").ledger.clone()
    }

    pub(super) fn units(&self, node: usize) -> BTreeMap<InodeId, Vec<u8>> {
        self.sites.lock()[node].disk.units.clone()
    }

    /// Schedules a crash, and resets the count of messages.
    pub(super) fn crash_point(&self, crash_point: Option<CrashPoint>) {
        *self.events.lock() = (0, crash_point);
    }

    pub(super) fn events(&self) -> u64 {
        self.events.lock().0
    }

    /// Counts the delivery of a message or reply, and executes a scheduled crash.
    fn event(&self) {
        let crashed = {
            let mut events = self.events.lock();
            let crashed = events.1.filter(|crash_point| crash_point.event == events.0);
            events.0 += 1;
            crashed
        };
        if let Some(crash_point) = crashed {
            self.kill(crash_point.node);
        }
    }

    fn incarnation(&self, node: usize) -> Option<u64> {
        let sites = self.sites.lock();
        sites[node].running.as_ref().map(|_| sites[node].incarnation)
    }

    /// Delivers a request to a home, or to all homes of a node, and waits for the reply or a crash of the node.
    pub(super) async fn deliver(
        self: Arc<Self>,
        from: NodeId,
        (to, home): (NodeId, Option<HomeId>),
        request: Request,
    ) -> Result<Reply> {
        let down = || Fault::new(Errno::EHOSTDOWN, format!("{to} is down"));
        let node = to.0 as usize;
        let incarnation = self.incarnation(node).ok_or_else(down)?;
        let (resolver, mut answer) = promise();
        let world = self.clone();
        self.machine
            .runtime_of(node)
            .spawn(async move { resolver.resolve(world.serve(from, (to, home), request).await) });
        loop {
            let crash = self.crashes.listen();
            if self.incarnation(node) != Some(incarnation) {
                return Err(down());
            }
            if let Either::Left((reply, _)) = select(&mut answer, crash).await
                && self.incarnation(node) == Some(incarnation)
            {
                return reply;
            }
        }
    }

    async fn serve(
        &self,
        from: NodeId,
        (to, home): (NodeId, Option<HomeId>),
        request: Request,
    ) -> Result<Reply> {
        match request {
            Request::Meta(request) => {
                let service = self.service(to.0 as usize);
                let context = RequestContext { from, home, epoch: None, call: None };
                service.serve(context, request).await.map(Reply::Meta)
            }
            Request::Client(ClientRequest::Revoke { inodes }) => {
                self.revoked.lock().extend(inodes.into_iter().map(|inode| (to, inode)));
                Ok(Reply::Client(ClientReply::Done))
            }
            other => Err(Fault::new(Errno::EPROTO, format!("{other:?}"))),
        }
    }

    fn serve_unit(&self, node: usize, request: UnitRequest, payload: Option<Payload>) -> Result<Reply> {
        let mut sites = self.sites.lock();
        if sites[node].running.is_none() {
            return Err(Fault::new(Errno::EHOSTDOWN, "down"));
        }
        let units = &mut sites[node].disk.units;
        match request {
            UnitRequest::Write { unit, ranges, .. } => {
                let bytes = payload.expect("a write has a payload");
                assert_eq!(ranges, (0..bytes.len() as u32).into());
                let start = unit.start() as usize;
                let content = units.entry(unit.inode).or_default();
                content.resize(content.len().max(start + bytes.len()), 0);
                content[start..start + bytes.len()].copy_from_slice(&bytes);
            }
            UnitRequest::Truncate { inode, size: 0 } => {
                units.remove(&inode);
            }
            UnitRequest::Truncate { inode, size } => {
                if let Some(content) = units.get_mut(&inode) {
                    content.truncate(size as usize);
                }
            }
            _ => (),
        }
        Ok(Reply::Unit(UnitReply::Done))
    }

    /// Writes bytes to units on their home.
    pub(super) fn write_units(&self, node: NodeId, inode: InodeId, bytes: &[u8]) {
        self.sites.lock()[node.0 as usize].disk.units.insert(inode, bytes.to_vec());
    }
}

struct Wire {
    world: Weak<World>,
    node: usize,
}

impl Rpc for Wire {
    fn local(&self) -> NodeId {
        NodeId(self.node as u32)
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        _: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let Some(world) = self.world.upgrade() else {
            return ready(Err(Fault::new(Errno::EHOSTDOWN, "over"))).boxed();
        };
        let (from, home, to) = (self.node, to.home(), to.node(&world.cluster));
        if to.0 as usize == from && !matches!(request, Request::Unit(_)) {
            // An agent serves itself without a message.
            return async move {
                let reply = world.serve(to, (to, home), request).await?;
                Ok(Answer { reply, payload: None })
            }
            .boxed();
        }
        async move {
            let incarnation = world.incarnation(from);
            let travel = Duration::from_micros(world.machine.draw(200));
            world.machine.runtime_of(from).sleep(travel).await;
            world.event();
            world.stop_if_crashed(from, incarnation).await;
            let peer = world.incarnation(to.0 as usize);
            let mut reply = if let Request::Unit(request) = request {
                world.serve_unit(to.0 as usize, request, payload)
            } else {
                world.clone().deliver(NodeId(from as u32), (to, home), request).await
            };
            world.event();
            world.stop_if_crashed(from, incarnation).await;
            if world.incarnation(to.0 as usize) != peer {
                reply = Err(Fault::new(Errno::EHOSTDOWN, "the reply is lost"));
            }
            if reply.as_ref().is_err_and(|fault| fault.errno == Errno::EHOSTDOWN) {
                world.machine.runtime_of(from).sleep(Duration::from_secs(1)).await;
            }
            Ok(Answer { reply: reply?, payload: None })
        }
        .boxed()
    }
}

impl World {
    /// Blocks forever if the calling node has crashed.
    async fn stop_if_crashed(&self, node: usize, incarnation: Option<u64>) {
        if self.incarnation(node) != incarnation {
            std::future::pending::<()>().await;
        }
    }
}
