//! Server and client of one node, put together from their parts.
//!
//! The same for the agent of this machine, whose parts are real, and for one of a simulated cluster. The parts that
//! are of the machine alone (process, sockets, mounts) are [`crate::Agent`]'s.

use crate::control::{AgentMode, AgentStart, AggregateChoice, Progress};
use crate::doors::{LocalFiles, Views};
use crate::measure::Meter;
use crate::memory::Memory;
use crate::neighbours::Neighbours;
use crate::node::{Company, Node, ProcessState, Services};
use crate::packing::PackService;
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::receipt::Receipt;
use tameike_core::wire::Request;
use tameike_core::wire::admin::AdminRequest;
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::{Cluster, Errno, InodeId, NodeId, NodeInfo, Result};
use tameike_fabric::socket::{CONNECTIONS_DEFAULT, connections_max};
use tameike_fabric::{Fabric, Rpc};
use tameike_io::Runtime;
use tameike_io::os::process;
use tameike_io::shared::SharedFs;
use tameike_server::cache::{Activity, CacheParts, CacheService};
use tameike_server::holders::CacheTable;
use tameike_server::lock::LockService;
use tameike_server::meta::{MetaParts, MetaService};
use tameike_server::unit::{UnitParts, UnitService};
use tameike_store::{ExtentStore, Ledger};

/// Time without a request of a program after which a node counts as quiet, and flushes in the background.
const QUIET: Duration = Duration::from_millis(50);
/// Files that one node flushes at the same time, each with syncs of its own, for which it waits most of the time.
const FLUSH_PARALLEL: usize = 16;
/// The same where one sync is for all that ask meanwhile.
const FLUSH_TOGETHER: usize = 64;

/// Threads for calls that may block, beside those of files that are flushed.
const BLOCKING_THREADS_MAX: usize = 8;

/// Most threads of an agent that wait in calls that block.
pub fn blocking_threads_max(start: &AgentStart) -> usize {
    let flushing = match start.aggregate.choice {
        AggregateChoice::Off => FLUSH_PARALLEL,
        AggregateChoice::On | AggregateChoice::Auto => FLUSH_TOGETHER,
    };
    BLOCKING_THREADS_MAX + flushing
}

/// What a node is made of.
pub struct Parts<'a> {
    /// Which node.
    pub node: NodeId,
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// Clock, randomness, tasks.
    pub runtime: Runtime,
    /// Its frames.
    pub memory: &'a Memory,
    /// To ask other agents.
    pub rpc: Arc<dyn Rpc>,
    /// What is below that.
    pub fabric: Arc<dyn Fabric>,
    /// Its store, if it has a device.
    pub store: Option<StoreParts>,
    /// The shared file system, if there is a cache view.
    pub shared: Option<Arc<dyn SharedFs>>,
    /// The files of the node-local view.
    pub local: LocalFiles,
    /// Owner and group of the roots of the views.
    pub owner: (u32, u32),
    /// Tells of the process that the node is in.
    pub process: fn() -> ProcessState,
    /// Whether readers are told which nodes may have bytes in memory.
    pub holders: bool,
    /// What is packed of the shared directory, if this node keeps that.
    pub packing: Option<Arc<PackService>>,
}

/// What the services of a node with a device are made of.
pub struct StoreParts {
    /// Metadata.
    pub ledger: Arc<Ledger>,
    /// Bytes.
    pub extents: Arc<ExtentStore>,
    /// The shared file system, or whatever stands for it where there is none.
    pub shared: Arc<dyn SharedFs>,
}

/// Puts a node together. It serves once it is attached to the network; then [`greet`] and [`begin`].
///
/// # Errors
/// When the ledger fails or holds damaged records.
pub async fn assemble(parts: Parts<'_>) -> Result<Arc<Node>> {
    let services = match &parts.store {
        Some(store) => Some(services(&parts, store).await?),
        None => None,
    };
    let activity = services.as_ref().map(|services| services.activity.clone());
    let views = Views::new(
        &parts.runtime,
        &parts.cluster,
        &parts.rpc,
        parts.memory,
        parts.local,
        parts.shared,
        activity,
    );
    let neighbours = Neighbours::new(parts.node, parts.cluster.clone(), parts.runtime.clone(), &parts.rpc);
    let meter = Meter::new(parts.runtime, parts.rpc, parts.fabric, parts.memory.reads.clone());
    let company = Company { neighbours, meter };
    let (slab, views) = (parts.memory.slab.clone(), Arc::new(views));
    Ok(Node::new(parts.node, slab, services, views, company, parts.process))
}

async fn services(parts: &Parts<'_>, store: &StoreParts) -> Result<Services> {
    let (runtime, cluster) = (parts.runtime.clone(), parts.cluster.clone());
    let activity = Activity::new(runtime.clone(), QUIET);
    let table = if parts.holders { CacheTable::new } else { CacheTable::unused };
    let holders = Arc::new(table());
    let meta = MetaService::open(MetaParts {
        runtime: runtime.clone(),
        cluster: cluster.clone(),
        ledger: store.ledger.clone(),
        rpc: Arc::downgrade(&parts.rpc),
        node: parts.node,
        // No scratch frame: the content of a small file is written to another node, where a write may wait for scratch frames.
        pool: parts.memory.reads.clone(),
        owner: parts.owner,
        holders: holders.clone(),
    })
    .await?;
    let unit = UnitService::new(UnitParts {
        runtime: runtime.clone(),
        cluster: cluster.clone(),
        extents: store.extents.clone(),
        shared: store.shared.clone(),
        rpc: parts.rpc.clone(),
        read_pool: parts.memory.reads.clone(),
        flush_pool: parts.memory.flushes.clone(),
        activity: activity.clone(),
    });
    let cache = CacheService::new(CacheParts {
        runtime,
        cluster: cluster.clone(),
        ledger: store.ledger.clone(),
        extents: store.extents.clone(),
        shared: store.shared.clone(),
        rpc: parts.rpc.clone(),
        activity: activity.clone(),
        flush_parallel: if store.shared.shares_syncs() { FLUSH_TOGETHER } else { FLUSH_PARALLEL },
        holders: holders.clone(),
    })?;
    let locks = Arc::new(LockService::new(parts.node, cluster));
    let (extents, packing) = (store.extents.clone(), parts.packing.clone());
    Ok(Services { meta, unit, cache, locks, holders, extents, activity, packing })
}

/// Makes sure that the neighbours of this node are there and know the secret: each node has some, which look after it.
///
/// # Errors
/// Which one was not reached.
pub async fn greet(rpc: &Arc<dyn Rpc>, cluster: &Cluster) -> Result<()> {
    let (node, neighbours) = (rpc.local(), cluster.neighbours(rpc.local()));
    let greeted = |info: &&NodeInfo| info.id == node || neighbours.contains(&info.id);
    let greet = cluster.nodes().iter().filter(greeted).map(|info| {
        let call = rpc.call(info.id, Request::Admin(AdminRequest::Status), None, None);
        async move {
            match call.await {
                // It has not been told of its peers yet, but it has proven that it belongs to the job.
                Err(fault) if fault.errno == Errno::EAGAIN => Ok(()),
                Err(fault) => Err(fault.context(format_args!("reaching {} on {}", info.id, info.host))),
                Ok(_) => Ok(()),
            }
        }
    });
    try_join_all(greet).await.map(drop)
}

/// Has a node that can reach its peers finish what an earlier life has left, and flush in the background.
///
/// # Errors
/// The journal of a job that is recovered cannot be read or written.
pub fn begin(node: &Node, runtime: &Runtime, mode: AgentMode) -> Result<()> {
    let Some(services) = node.services() else { return Ok(()) };
    let meta = services.meta.clone();
    runtime.spawn(async move { meta.recover().await });
    match mode {
        AgentMode::Serve => services.cache.start_flusher(),
        AgentMode::Recover => services.cache.mark_interrupted_writers()?,
    }
    Ok(())
}

/// Flushes every file that a node coordinates, and gathers its receipt.
pub async fn drain(cache: Arc<CacheService>, verify: bool) -> Receipt {
    let mut receipt = Receipt::default();
    let mut after: Option<InodeId> = None;
    loop {
        match cache.serve_own(CacheRequest::Drain { verify, after }).await {
            Ok(CacheReply::Receipt { receipt: part, next }) => {
                receipt.merge(part);
                if next.is_none() {
                    return receipt;
                }
                after = next;
            }
            Ok(other) => receipt.faults.push(format!("the coordinator answered a drain with {other:?}")),
            Err(fault) => receipt.faults.push(fault.to_string()),
        }
        if !receipt.faults.is_empty() {
            return receipt;
        }
    }
}

/// How far a node is with its flushes.
pub async fn progress_of(cache: &CacheService) -> Progress {
    match cache.serve_own(CacheRequest::Progress).await {
        Ok(CacheReply::Progress { files, bytes, flushed }) => {
            Progress { files_left: files, bytes_left: bytes, bytes_flushed: flushed }
        }
        _ => Progress::default(),
    }
}

/// Peers to stay connected with, of those that are wanted.
pub fn connections(wanted: Option<u32>) -> usize {
    let (most, wanted) = (connections_max(), wanted.map(|wanted| wanted as usize));
    if wanted.is_some_and(|wanted| wanted > most) {
        log::warn!("at most {most} connections are kept: raise the limit of open files (ulimit -n) for more");
    }
    wanted.unwrap_or(CONNECTIONS_DEFAULT).min(most)
}

/// This process, as its node's status tells it.
pub fn own_process() -> ProcessState {
    ProcessState {
        pid: std::process::id(),
        resident_bytes: process::resident_bytes(),
        cores: process::own_cores(),
    }
}
