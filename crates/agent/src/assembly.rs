//! Assembles the services and views of a node from their parts.
//!
//! Real agents and those of a simulated cluster use the same code. [`crate::Agent`] owns the parts of a real machine: process,
//! sockets, mounts.

use crate::control::{AgentMode, AgentStart, AggregateChoice, Progress};
use crate::measure::Meter;
use crate::memory::Memory;
use crate::neighbours::Neighbours;
use crate::node::{Node, PeerServices, ProcessState, Services};
use crate::packing::PackService;
use crate::views::{LocalFiles, Views};
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::receipt::Receipt;
use tameike_core::wire::Request;
use tameike_core::wire::admin::AdminRequest;
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::{Cluster, Errno, NodeId, NodeInfo, Result};
use tameike_fabric::socket::{CONNECTIONS_DEFAULT, connections_max};
use tameike_fabric::{Fabric, MapLease, Rpc};
use tameike_io::Runtime;
use tameike_io::os::process;
use tameike_io::shared::SharedFs;
use tameike_server::cache::{Activity, CacheParts, CacheService};
use tameike_server::holders::CacheTable;
use tameike_server::lock::LockService;
use tameike_server::meta::{MetaParts, MetaServices};
use tameike_server::region::{RegionParts, RegionService};
use tameike_server::replica::{
    BackupService, Copies, CopiesParts, CopyCheck, Joins, JoinsParts, ReplicaParts, Replicas, Takeover,
    TakeoverParts,
};
use tameike_server::unit::{UnitParts, UnitService};
use tameike_store::{ExtentStore, Ledger};

/// Time without requests of programs after which a node counts as idle, and flushes in the background.
const QUIET: Duration = Duration::from_millis(50);
/// Files that a node flushes concurrently if each needs separate syncs, which take most of the time.
const FLUSH_PARALLEL: usize = 16;
/// The same if one sync covers all files that wait for it.
const FLUSH_TOGETHER: usize = 64;

/// Time for which a start with replicas waits for a peer, whatever the time limit for silent peers: hosts are busy then. And its pause.
const GREET_TIME_MAX: Duration = Duration::from_secs(10);
const GREET_PAUSE: Duration = Duration::from_millis(200);

/// Time between the syncs of a volume that no program asks for.
const VOLUME_SYNC_INTERVAL: Duration = Duration::from_secs(4);

/// Threads for blocking calls, in addition to those of flushes.
const BLOCKING_THREADS_MAX: usize = 8;

/// Returns the largest number of threads in blocking calls.
pub fn blocking_threads_max(start: &AgentStart) -> usize {
    let flushing = match start.aggregate.choice {
        AggregateChoice::Off => FLUSH_PARALLEL,
        AggregateChoice::On | AggregateChoice::Auto => FLUSH_TOGETHER,
    };
    BLOCKING_THREADS_MAX + flushing
}

/// Parts of a node.
pub struct Parts<'a> {
    /// Number of the node.
    pub node: NodeId,
    /// All nodes of the job.
    pub cluster: Arc<Cluster>,
    /// Clock, randomness, tasks.
    pub runtime: Runtime,
    /// Frames of the node.
    pub memory: &'a Memory,
    /// The lease of the home map.
    pub lease: Arc<MapLease>,
    /// Calls to other agents.
    pub rpc: Arc<dyn Rpc>,
    /// Transport below `rpc`.
    pub fabric: Arc<dyn Fabric>,
    /// Store, if the node has a device.
    pub store: Option<StoreParts>,
    /// The shared file system, if there is a cache view.
    pub shared: Option<Arc<dyn SharedFs>>,
    /// Files of the node-local view.
    pub local: LocalFiles,
    /// Owner and group of the roots of the views.
    pub owner: (u32, u32),
    /// Returns the state of the node's process.
    pub process: fn() -> ProcessState,
    /// Whether homes report cache holders to readers.
    pub holders: bool,
    /// Packer of the shared directory, if this node is it or may become it.
    pub packing: Option<Arc<PackService>>,
}

/// Parts of the services of a node with a device.
pub struct StoreParts {
    /// Metadata store.
    pub ledger: Arc<Ledger>,
    /// Data store.
    pub extents: Arc<ExtentStore>,
    /// Shared file system, or an empty directory if the job has none.
    pub shared: Arc<dyn SharedFs>,
}

/// Assembles a node. The caller then attaches it to the network, and calls [`greet`] and [`begin`].
pub async fn assemble(parts: Parts<'_>) -> Result<Arc<Node>> {
    let services = match &parts.store {
        Some(store) => Some(services(&parts, store).await?),
        None => None,
    };
    let activity = services.as_ref().map(|services| services.activity.clone());
    let views = Views::new(
        &parts.runtime,
        (&parts.cluster, &parts.lease),
        &parts.rpc,
        parts.memory,
        parts.local,
        parts.shared,
        activity,
    );
    let neighbours = Neighbours::new(parts.node, parts.cluster.clone(), parts.runtime.clone(), &parts.rpc);
    let meter = Meter::new(parts.runtime, parts.rpc, parts.fabric, parts.memory.reads.clone());
    let peer_services = PeerServices { neighbours, meter };
    let (slab, views) = (parts.memory.slab.clone(), Arc::new(views));
    Ok(Node::new(
        (parts.node, parts.cluster, parts.lease),
        slab,
        services,
        views,
        peer_services,
        parts.process,
    ))
}

async fn services(parts: &Parts<'_>, store: &StoreParts) -> Result<Services> {
    let (runtime, cluster) = (parts.runtime.clone(), parts.cluster.clone());
    let activity = Activity::new(runtime.clone(), QUIET);
    let table = if parts.holders { CacheTable::new } else { CacheTable::unused };
    let holders = Arc::new(table());
    // Before the first record of a home.
    let (replicas, copies) = replicas(parts, store)?;
    let copies = Arc::new(copies);
    let copying = replicas.as_ref().map(|replicas| {
        let (ledger, extents) = (store.ledger.clone(), store.extents.clone());
        let (replicas, copies, activity) = (replicas.clone(), copies.clone(), activity.clone());
        JoinsParts { replicas, copies, ledger, extents, activity }
    });
    let copy_check = copying.clone().map(|parts| Arc::new(CopyCheck::new(parts)));
    let joins = copying.map(Joins::start);
    let backups = BackupService::new(replica_parts(parts), store.ledger.clone(), store.extents.clone());
    let backups = Arc::new(backups);
    let meta = MetaServices::open(MetaParts {
        runtime: runtime.clone(),
        cluster: cluster.clone(),
        ledger: store.ledger.clone(),
        rpc: Arc::downgrade(&parts.rpc),
        node: parts.node,
        // Not the scratch pool: the content of a small file may be written to another node, where writes wait for scratch frames.
        pool: parts.memory.reads.clone(),
        owner: parts.owner,
        holders: holders.clone(),
    })
    .await?;
    let unit = UnitService::new(UnitParts {
        runtime: runtime.clone(),
        cluster: cluster.clone(),
        extents: store.extents.clone(),
        copies,
        shared: store.shared.clone(),
        lease: parts.lease.clone(),
        rpc: parts.rpc.clone(),
        read_pool: parts.memory.reads.clone(),
        flush_pool: parts.memory.flushes.clone(),
        activity: activity.clone(),
    });
    let cache = cache(parts, store, &activity, &holders)?;
    let regions = RegionService::new(RegionParts {
        runtime,
        cluster: cluster.clone(),
        rpc: Arc::downgrade(&parts.rpc),
        node: parts.node,
        meta: meta.clone(),
    });
    let locks = Arc::new(LockService::new(parts.node, cluster.clone()));
    let (ledger, extents, packing) = (store.ledger.clone(), store.extents.clone(), parts.packing.clone());
    let mut services = Services {
        meta,
        unit,
        cache,
        locks,
        regions,
        holders,
        ledger,
        extents,
        activity,
        packing,
        replicas,
        backups,
        takeover: None,
        joins,
        copy_check,
    };
    services.takeover = takeover(parts, &services).await;
    Ok(services)
}

/// The coordinator of cached files.
fn cache(
    parts: &Parts<'_>,
    store: &StoreParts,
    activity: &Arc<Activity>,
    holders: &Arc<CacheTable>,
) -> Result<Arc<CacheService>> {
    CacheService::new(CacheParts {
        runtime: parts.runtime.clone(),
        cluster: parts.cluster.clone(),
        ledger: store.ledger.clone(),
        extents: store.extents.clone(),
        shared: store.shared.clone(),
        lease: parts.lease.clone(),
        rpc: parts.rpc.clone(),
        activity: activity.clone(),
        flush_parallel: if store.shared.shares_syncs() { FLUSH_TOGETHER } else { FLUSH_PARALLEL },
        holders: holders.clone(),
    })
}

/// The takeover of homes with replicas. Old copies in the store are gone when it returns.
async fn takeover(parts: &Parts<'_>, services: &Services) -> Option<Arc<Takeover>> {
    let takeover = Takeover::new(TakeoverParts {
        runtime: parts.runtime.clone(),
        cluster: parts.cluster.clone(),
        node: parts.node,
        lease: parts.lease.clone(),
        ledger: services.ledger.clone(),
        replicas: services.replicas.clone()?,
        backups: services.backups.clone(),
        meta: services.meta.clone(),
        cache: services.cache.clone(),
        locks: services.locks.clone(),
    });
    takeover.discard_old_copies().await;
    Some(takeover)
}

fn replica_parts(parts: &Parts<'_>) -> ReplicaParts {
    ReplicaParts {
        runtime: parts.runtime.clone(),
        cluster: parts.cluster.clone(),
        rpc: Arc::downgrade(&parts.rpc),
        node: parts.node,
    }
}

/// The primary's side of replicas, if homes have some, and the changes of units.
fn replicas(parts: &Parts<'_>, store: &StoreParts) -> Result<(Option<Arc<Replicas>>, Copies)> {
    let replicas = match parts.cluster.map().is_replicated() {
        true => Some(Replicas::new(replica_parts(parts), &store.ledger)?),
        false => None,
    };
    let copies = Copies::new(CopiesParts {
        cluster: parts.cluster.clone(),
        node: parts.node,
        replicas: replicas.clone(),
        extents: store.extents.clone(),
        request_pools: [parts.memory.requests.clone(), parts.memory.replies.clone()],
        pool: parts.memory.copies.clone(),
    });
    Ok((replicas, copies))
}

/// Verifies that the neighbours of this node, which watch it for failures, are reachable and know the secret. The
/// error names the first one that is not.
pub async fn greet(runtime: &Runtime, rpc: &Arc<dyn Rpc>, cluster: &Cluster) -> Result<()> {
    let deadline = runtime.clock.monotonic() + GREET_TIME_MAX;
    let (node, neighbours) = (rpc.local(), cluster.neighbours(rpc.local()));
    let map = cluster.map();
    let greeted =
        |info: &&NodeInfo| info.id == node || neighbours.contains(&info.id) && !map.excludes(info.id);
    let nodes = cluster.nodes();
    let greet = nodes.iter().filter(greeted).map(|info| {
        async move {
            loop {
                let call = rpc.call(info.id.into(), Request::Admin(AdminRequest::Status), None, None);
                return match call.await {
                    // The peer has not joined yet, but its handshake has proven the secret.
                    Err(fault) if fault.errno == Errno::EAGAIN => Ok(()),
                    Err(fault)
                        if cluster.is_replicated()
                            && [Errno::EHOSTDOWN, Errno::ETIMEDOUT].contains(&fault.errno)
                            && runtime.clock.monotonic() < deadline =>
                    {
                        runtime.sleep(GREET_PAUSE).await;
                        continue;
                    }
                    Err(fault) => Err(fault.context(format_args!("reaching {} on {}", info.id, info.host))),
                    Ok(_) => Ok(()),
                };
            }
        }
    });
    try_join_all(greet).await.map(drop)
}

/// Completes operations that an earlier incarnation of the node left, starts background flushes, and follows the home map. Call it once peers
/// are reachable.
pub fn begin(node: &Node, runtime: &Runtime, mode: AgentMode, rpc: &Arc<dyn Rpc>) -> Result<()> {
    node.follow_map(runtime, rpc);
    let Some(services) = node.services() else { return Ok(()) };
    let meta = services.meta.clone();
    runtime.spawn(async move { meta.recover().await });
    match mode {
        AgentMode::Serve => services.cache.start_flusher(),
        AgentMode::Recover => services.cache.mark_interrupted_writers()?,
        AgentMode::Volume => runtime.spawn(sync_regularly(runtime.clone(), services.ledger.clone())),
    }
    Ok(())
}

/// Makes durable what a node of a volume has stored, also what no program syncs.
async fn sync_regularly(runtime: Runtime, ledger: Arc<Ledger>) {
    loop {
        runtime.sleep(VOLUME_SYNC_INTERVAL).await;
        if let Err(fault) = ledger.sync_own(true).await {
            log::error!("the regular sync: {fault}");
            return;
        }
    }
}

/// Flushes every file that a node coordinates, and returns its receipt. The replicas of the node's homes know then what is drained.
pub async fn drain(cache: Arc<CacheService>, replicas: Option<Arc<Replicas>>, verify: bool) -> Receipt {
    let mut receipt = receipt_of(&cache, verify).await;
    if let Some(replicas) = replicas
        && let Err(fault) = replicas.wait_for_backups(None).await
    {
        receipt.faults.push(fault.to_string());
    }
    receipt
}

async fn receipt_of(cache: &CacheService, verify: bool) -> Receipt {
    let mut receipt = Receipt::default();
    match cache.flush_all().await {
        Ok(faults) => receipt.faults = faults,
        Err(fault) => receipt.faults.push(fault.to_string()),
    }
    let mut after = None;
    loop {
        match cache.receipts(verify, after).await {
            Ok((files, next)) => {
                receipt.files.extend(files);
                if next.is_none() {
                    return receipt;
                }
                after = next;
            }
            Err(fault) => {
                receipt.faults.push(fault.to_string());
                return receipt;
            }
        }
    }
}

/// Returns the progress of a node's flushes.
pub async fn progress_of(cache: &CacheService) -> Progress {
    match cache.serve_own(CacheRequest::Progress).await {
        Ok(CacheReply::Progress { files, bytes, flushed }) => {
            Progress { files_left: files, bytes_left: bytes, bytes_flushed: flushed }
        }
        _ => Progress::default(),
    }
}

/// Returns the number of connections to keep: `wanted`, as far as the open-file limit allows.
pub fn connections(wanted: Option<u32>) -> usize {
    let (most, wanted) = (connections_max(), wanted.map(|wanted| wanted as usize));
    if wanted.is_some_and(|wanted| wanted > most) {
        log::warn!(
            "the agent keeps at most {most} connections: raise the open-file limit (ulimit -n) for more"
        );
    }
    wanted.unwrap_or(CONNECTIONS_DEFAULT).min(most)
}

/// Returns the state of this process for the node's status.
pub fn own_process() -> ProcessState {
    ProcessState {
        pid: std::process::id(),
        resident_bytes: process::resident_bytes(),
        cores: process::own_cores(),
    }
}
