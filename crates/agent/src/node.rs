//! Dispatches requests of other agents to the services and views of a node.

use crate::control::{LeaseAnswer, LeaseMessage};
use crate::files::FILES_MAX;
use crate::measure::Meter;
use crate::neighbours::Neighbours;
use crate::packing::PackService;
use crate::reclaim::Reclaimer;
use crate::views::Views;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::wire::admin::{
    AdminReply, AdminRequest, Counter, FILES_ASKED_MAX, FileHeld, NodeStatus, Space, counters,
};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, CoreSet, Errno, Fault, InodeId, MapEpoch, NodeId, Result, View};
use tameike_fabric::{Carried, MapLease, PeerEvent, RequestContext, Rpc, Service, Target};
use tameike_io::{Payload, Runtime, Slab};
use tameike_server::cache::{Activity, CacheService};
use tameike_server::holders::CacheTable;
use tameike_server::lock::LockService;
use tameike_server::meta::MetaServices;
use tameike_server::region::RegionService;
use tameike_server::replica::{BackupService, CopyCheck, Joins, Replicas, Takeover, is_served_by_primaries};
use tameike_server::unit::UnitService;
use tameike_store::{ExtentStore, Ledger};

/// Units of one file on the device that `cache stat` counts, at most.
const UNITS_COUNTED_MAX: usize = 1 << 10;

/// The services of a node with a device.
pub struct Services {
    /// Names and inodes.
    pub meta: Arc<MetaServices>,
    /// Data of units.
    pub unit: Arc<UnitService>,
    /// Coordinator of cached files.
    pub cache: Arc<CacheService>,
    /// Locks of files.
    pub locks: Arc<LockService>,
    /// Coordinator of shared memory regions.
    pub regions: Arc<RegionService>,
    /// Cache holders of files.
    pub holders: Arc<CacheTable>,
    /// Log and table.
    pub ledger: Arc<Ledger>,
    /// Data store.
    pub extents: Arc<ExtentStore>,
    /// Tracks requests of programs.
    pub activity: Arc<Activity>,
    /// Packer of the shared directory, if this node is it or may become it.
    pub packing: Option<Arc<PackService>>,
    /// What this node repeats on backups; `None` if the homes of the job have no replicas.
    pub replicas: Option<Arc<Replicas>>,
    /// Copies of homes that other nodes serve.
    pub backups: Arc<BackupService>,
    /// The homes that this node serves or takes over; `None` if they have no replicas.
    pub takeover: Option<Arc<Takeover>>,
    /// Copies of homes that lack a replica; `None` if they have none.
    pub joins: Option<Arc<Joins>>,
    /// Compares copies of homes; `None` if they have none.
    pub copy_check: Option<Arc<CopyCheck>>,
}

/// State of a node's process, for its status.
pub struct ProcessState {
    /// Process ID.
    pub pid: u32,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Cores on which the process may run, if known.
    pub cores: Option<CoreSet>,
}

/// Parts of a node that call other agents.
pub struct PeerServices {
    /// Propagates failures.
    pub neighbours: Neighbours,
    /// Measures the network.
    pub meter: Arc<Meter>,
}

/// One node: its services, if it has a device, and its state.
pub struct Node {
    node: NodeId,
    cluster: Arc<Cluster>,
    lease: Arc<MapLease>,
    slab: Arc<Slab>,
    services: Option<Services>,
    views: Arc<Views>,
    peer_services: PeerServices,
    unreachable: Mutex<BTreeSet<NodeId>>,
    reclaimer: Mutex<Option<Arc<Reclaimer>>>,
    /// Bytes sent to other nodes, or reported to them as extent locations.
    sent: Arc<AtomicU64>,
    process: fn() -> ProcessState,
}

impl Node {
    /// Creates a node; `process` returns the state of its process.
    pub fn new(
        (node, cluster, lease): (NodeId, Arc<Cluster>, Arc<MapLease>),
        slab: Arc<Slab>,
        services: Option<Services>,
        views: Arc<Views>,
        peer_services: PeerServices,
        process: fn() -> ProcessState,
    ) -> Arc<Self> {
        let (unreachable, reclaimer, sent) = Default::default();
        Arc::new(Self {
            node,
            cluster,
            lease,
            slab,
            services,
            views,
            peer_services,
            unreachable,
            reclaimer,
            sent,
            process,
        })
    }

    /// Returns the services, if the node has a device.
    pub fn services(&self) -> Option<&Services> {
        self.services.as_ref()
    }

    /// Returns the views.
    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// Returns the network meter.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.peer_services.meter
    }

    /// Reclaims what programs of this node have open and locked, if homes move from now on.
    pub(crate) fn follow_map(&self, runtime: &Runtime, rpc: &Arc<dyn Rpc>) {
        if self.cluster.is_replicated() {
            let (cluster, views) = (self.cluster.clone(), self.views.clone());
            // Kept, since the watcher of the map does not keep it.
            *self.reclaimer.lock() = Some(Reclaimer::start(runtime.clone(), cluster, rpc.clone(), views));
        }
    }

    /// The epoch of the home map by which the sender of a request chose this node.
    fn epoch_of(&self, context: &RequestContext) -> MapEpoch {
        context.epoch.unwrap_or_else(|| self.cluster.epoch())
    }

    /// Takes a message of the authority of the home map.
    pub fn renew_lease(&self, message: LeaseMessage) -> LeaseAnswer {
        let LeaseMessage { number, acknowledged, revoked, map } = message;
        // First: the lease is one of this map.
        if let Some(map) = map
            && map.epoch > self.cluster.epoch()
            && !self.cluster.replace_map(map)
        {
            log::error!("the authority of the home map sent a map of another job");
        }
        if revoked {
            self.lease.revoke(number);
            self.views.lease_ended();
        } else {
            let continues = self.lease.renew(number, acknowledged);
            self.views.lease_renewed(continues);
        }
        let services = self.services.as_ref();
        let replicas = services.and_then(|services| services.replicas.as_ref());
        LeaseAnswer {
            number,
            epoch: self.cluster.epoch(),
            unreachable: self.unreachable.lock().iter().copied().collect(),
            failed_copies: replicas.map_or_else(Vec::new, |replicas| replicas.failed_copies()),
            copied: replicas.map_or_else(Vec::new, |replicas| replicas.copied()),
            pinned: services.map_or_else(Vec::new, |services| services.regions.homes()),
            // After the end of the lease: no other change begins.
            is_changing: self.lease.is_changing(),
            store_failed: services.is_some_and(|services| services.ledger.has_failed()),
        }
    }

    /// Returns the state of the agent.
    pub fn status(&self) -> NodeStatus {
        let ProcessState { pid, resident_bytes, cores } = (self.process)();
        NodeStatus {
            node: self.node,
            pid,
            space: View::ALL.map(|view| self.space(view)),
            resident_bytes,
            cores,
            frames: self.slab.usage(),
            unreachable: self.unreachable.lock().iter().copied().collect(),
            counters: self.counters(),
            storms: Vec::new(),
        }
    }

    /// Sums the counters of the sources of read data over both striped views.
    fn counters(&self) -> Vec<Counter> {
        let loaded = self.services.as_ref().map(|services| services.unit.counters());
        let joins = self.services.as_ref().and_then(|services| services.joins.as_ref());
        let copied = joins.map(|joins| Counter::new(counters::COPIED_UNITS, joins.units()));
        let sent = Counter::new(counters::SENT, self.sent.load(Ordering::Relaxed));
        let mut sums = BTreeMap::<String, u64>::new();
        let all =
            self.views.counters().into_iter().chain(loaded.into_iter().flatten()).chain([sent]).chain(copied);
        for Counter { name, value } in all {
            *sums.entry(name).or_default() += value;
        }
        sums.into_iter().map(|(name, value)| Counter { name, value }).collect()
    }

    fn space(&self, view: View) -> Space {
        let own = match &self.services {
            Some(services) => {
                let inodes = services.meta.inodes(view);
                Space { inodes, ..services.extents.space(view) }
            }
            None => Space::default(),
        };
        if view != View::NodeLocal {
            return own;
        }
        // Node-local files of nodes without a device are in units, those of this node in its directory.
        let local = self.views.local_usage();
        let capacity = local.capacity.max(own.capacity);
        Space { capacity, used: local.used + own.used, inodes: local.inodes + own.inodes, ..local }
    }

    fn file(&self, inode: InodeId) -> FileHeld {
        let memory_bytes = self.views.bytes_in_memory(inode);
        let Some(services) = &self.services else { return FileHeld { memory_bytes, ..FileHeld::default() } };
        // Unreadable units count as absent.
        let held = services.extents.held_bytes(inode, UNITS_COUNTED_MAX);
        let (device_bytes, is_partial) = held.unwrap_or_default();
        let table = services.holders.known(inode);
        let path = if inode.is_cached() { services.cache.path_of(inode) } else { Vec::new() };
        FileHeld { memory_bytes, device_bytes, is_partial, table, path }
    }

    fn admin(
        &self,
        from: NodeId,
        request: AdminRequest,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let reply = match request {
            AdminRequest::Exchange(exchange) => {
                return self.peer_services.meter.serve(from, exchange, payload);
            }
            AdminRequest::Space { view } => AdminReply::Space(self.space(view)),
            AdminRequest::Status => AdminReply::Status(Box::new(self.status())),
            AdminRequest::Failed { node } => {
                if !self.unreachable.lock().contains(&node) {
                    self.peer_services.neighbours.probe(node);
                }
                AdminReply::Done
            }
            AdminRequest::Files(inodes) => {
                let held = inodes.into_iter().take(FILES_ASKED_MAX).map(|inode| self.file(inode));
                AdminReply::Files(held.collect())
            }
            AdminRequest::MostRequested { count } => {
                let count = count.min(FILES_MAX) as usize;
                let table = self.services.as_ref().map(|services| services.holders.most_asked(count));
                AdminReply::MostRequested(table.unwrap_or_default())
            }
            AdminRequest::Map(map) => {
                if !self.cluster.fits(&map) {
                    let fault = Fault::new(Errno::EPROTO, format!("{from} has the home map of another job"));
                    return ready((Reply::Fault(fault), Carried::Nothing)).boxed();
                }
                // It is not newer if another agent has sent a newer one meanwhile.
                self.cluster.replace_map(map);
                AdminReply::Done
            }
        };
        ready((Reply::Admin(reply), Carried::Nothing)).boxed()
    }

    fn client(
        &self,
        request: ClientRequest,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, (ClientReply, Carried)> {
        if let ClientRequest::Window(request) = request {
            let regions = self.views.regions().clone();
            let served = async move { regions.access(request, payload).await };
            return served
                .map(|(reply, bytes)| (reply, bytes.map_or(Carried::Nothing, Carried::Payload)))
                .boxed();
        }
        if let ClientRequest::ReadHeld { unit, offset, length, generation } = request {
            let (reply, bytes) = self.views.held(unit, (offset, length), generation);
            return ready((reply, bytes.map_or(Carried::Nothing, Carried::Payload))).boxed();
        }
        self.notify(request).map(|reply| (reply, Carried::Nothing)).boxed()
    }

    /// Notifies the views of a change by another node, or queries them.
    fn notify(&self, request: ClientRequest) -> BoxFuture<'static, ClientReply> {
        match request {
            ClientRequest::Revoke { inodes } => {
                inodes.into_iter().for_each(|inode| self.views.revoke(inode));
                ready(ClientReply::Done).boxed()
            }
            ClientRequest::Moved { dir, from, to } => {
                self.views.moved(dir, from, to).map(|()| ClientReply::Done).boxed()
            }
            ClientRequest::Removing { inode } => {
                let removing = self.views.removing(inode);
                removing.map(|done| done.map_or_else(ClientReply::Held, |()| ClientReply::Done)).boxed()
            }
            ClientRequest::Kept { inode } => {
                self.views.kept(inode);
                ready(ClientReply::Done).boxed()
            }
            ClientRequest::LockWaits { owner } => {
                ready(ClientReply::Waits(self.views.lock_waits(owner))).boxed()
            }
            ClientRequest::Arrive(arrival) => {
                let regions = self.views.regions().clone();
                async move { regions.arrive(arrival).await }.boxed()
            }
            ClientRequest::RegionBroken { region, barrier, failed } => {
                self.views.regions().broken(region, barrier, failed);
                ready(ClientReply::Done).boxed()
            }
            ClientRequest::ReadHeld { .. } | ClientRequest::Window(_) => {
                unreachable!("served with a payload")
            }
        }
    }

    fn no_device(&self) -> Fault {
        Fault::new(Errno::EPROTO, format!("{} has no device and stores no data", self.node))
    }
}

/// Converts the result of a service without payload.
fn replied<T>(answer: Result<T>, wrap: impl FnOnce(T) -> Reply) -> (Reply, Carried) {
    (answer.map_or_else(Reply::Fault, wrap), Carried::Nothing)
}

impl Service for Node {
    fn admit(&self, context: &RequestContext, request: &Request) -> Option<BoxFuture<'static, Result<()>>> {
        let takeover = self.services.as_ref()?.takeover.as_ref()?;
        takeover.admit((context.home, self.epoch_of(context)), request)
    }

    fn serve(
        &self,
        context: RequestContext,
        request: Request,
        payload: Option<Payload>,
        target: Target,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let RequestContext { from, home, .. } = context;
        let sent = (from != self.node).then(|| self.sent.clone());
        let count = move |carried: &Carried| {
            if let Some(sent) = sent {
                sent.fetch_add(carried.count(), Ordering::Relaxed);
            }
        };
        let request = match request {
            Request::Admin(request) => return self.admin(from, request, payload),
            Request::Client(request) => {
                let answer = self.client(request, payload).inspect(move |(_, carried)| count(carried));
                return answer.map(|(reply, carried)| (Reply::Client(reply), carried)).boxed();
            }
            request => request,
        };
        let Some(services) = &self.services else {
            return ready((Reply::Fault(self.no_device()), Carried::Nothing)).boxed();
        };
        let foreground = services.activity.of_request(&request);
        let (meta, unit, cache) = (services.meta.clone(), services.unit.clone(), services.cache.clone());
        let (locks, regions) = (services.locks.clone(), services.regions.clone());
        let packing = services.packing.clone();
        let (replicas, backups) = (services.replicas.clone(), services.backups.clone());
        let (takeover, epoch) = (services.takeover.clone(), self.epoch_of(&context));
        let is_of_homes = is_served_by_primaries(&request);
        let is_logged = matches!(request, Request::Meta(_) | Request::Cache(_) | Request::Region(_));
        // A caller of this agent may drop its call when the primary has made a change and the backups have not.
        let changes_units = matches!(request, Request::Unit(_)) && !request.is_read_only();
        let runs_to_end = replicas.clone().filter(|_| from == self.node && changes_units);
        let no_replicas = Fault::new(Errno::EPROTO, "the homes of this job have no replicas");
        let no_packer = Fault::new(Errno::EPROTO, format!("{} is not the packer", self.node));
        let served = async move {
            let answer = match request {
                Request::Meta(request) => replied(meta.serve(context, request).await, Reply::Meta),
                Request::Lock(request) => replied(locks.serve(from, request).await, Reply::Lock),
                Request::Pack(request) => match packing {
                    Some(packing) => replied(packing.serve(from, request).await, Reply::Pack),
                    None => (Reply::Fault(no_packer), Carried::Nothing),
                },
                Request::Region(request) => replied(regions.serve(from, request).await, Reply::Region),
                Request::Cache(request) => replied(cache.serve(context, request).await, Reply::Cache),
                Request::Replica(request) => {
                    replied(backups.serve(from, request, payload).await, Reply::Replica)
                }
                Request::Unit(request) => match unit.serve(home, request, payload, target).await {
                    Ok((reply, carried)) => (Reply::Unit(reply), carried),
                    Err(fault) => (Reply::Fault(fault), Carried::Nothing),
                },
                Request::Reclaim(request) => match &takeover {
                    Some(takeover) => replied(takeover.reclaim(from, request), Reply::Reclaimed),
                    None => (Reply::Fault(no_replicas), Carried::Nothing),
                },
                Request::Admin(_) | Request::Client(_) => unreachable!("served above"),
            };
            drop(foreground);
            // The reply may show, or acknowledge, changes that the backups do not have yet.
            let mut confirmed = match replicas.filter(|_| is_logged) {
                Some(replicas) => replicas.wait_for_backups(home).await,
                None => Ok(()),
            };
            if let (Some(takeover), true, true) = (takeover, is_of_homes, confirmed.is_ok()) {
                confirmed = takeover.confirm(home, epoch).await;
            }
            count(&answer.1);
            confirmed.map_or_else(|fault| (Reply::Fault(fault), Carried::Nothing), |()| answer)
        };
        match runs_to_end {
            Some(replicas) => replicas.run_to_end(served).boxed(),
            None => served.boxed(),
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        log::info!("{peer} is {event:?}");
        self.views.peer(peer, event);
        match event {
            PeerEvent::Up => {
                self.unreachable.lock().remove(&peer);
            }
            PeerEvent::Unreachable => {
                self.unreachable.lock().insert(peer);
            }
            PeerEvent::Failed => {
                self.unreachable.lock().insert(peer);
                self.peer_services.meter.peer_failed(peer);
                if let Some(services) = &self.services {
                    services.meta.peer_failed(peer);
                    // Before the locks: their next owners learn that a process has failed.
                    services.regions.peer_failed(peer);
                    services.locks.peer_failed(peer);
                    services.holders.peer_failed(peer);
                }
                self.peer_services.neighbours.announce_failure(peer);
            }
        }
    }
}
