//! Shared memory regions on one node ([decision 0090](../../../../docs/decisions/0090-shared-memory-regions.md)).
//!
//! A region is a file of the job-shared view whose bytes processes access by loads and stores. [`Regions`] has the regions of the node
//! that processes have attached to. Per region there is one memory that the processes share ([`Memory`]), or one for each process
//! whose kernel cannot report page faults of shared memory ([`Tracking`]). The parts of a memory:
//!
//! - [`fetch`] fetches absent pages from the units' homes;
//! - [`flush`] sends what processes have stored to the homes;
//! - [`closing`] takes pages back that processes no longer store to;
//! - [`update`] drops or merges pages that others have changed;
//! - [`written`] has the pages that the kernel has recorded as written, instead of comparing pages;
//! - [`space`] evicts pages of regions that exceed a limit;
//! - [`barrier`] does both for all processes of the node at once;
//! - [`lock`] has the locks that a process holds.
//!
//! A region without pages is a remote memory window ([`window`]).

mod attachment;
mod barrier;
mod closing;
mod fetch;
mod flush;
mod lock;
mod memory;
mod space;
#[cfg(test)]
mod tests;
mod update;
mod window;
mod written;

pub use attachment::Attachment;
pub use memory::ProcessMapping;
pub use tameike_dsm::window::Shape;
pub use window::AttachedWindow;

use crate::data::DataEngine;
use crate::locks::FileLocks;
use crate::replies::unexpected_reply;
use barrier::NodeBarrier;
use memory::Memory;
use parking_lot::Mutex;
use space::Space;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::region::{Terms, Tracking};
use tameike_core::wire::client::ClientReply;
use tameike_core::wire::region::{Arrival, RegionReply, RegionRequest};
use tameike_core::wire::window::WindowRequest;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, InodeId, Layout, NodeId, Result};
use tameike_dsm::memory::RegionMemory;
use tameike_fabric::{Answer, Destination, PeerEvent, Rpc};
use tameike_io::{Payload, Runtime};
use window::NodeWindow;

/// Bit of the numbers of owners and handles of locks, and first byte of their ranges: behind the largest file, so that locks of regions
/// never conflict with those of `fcntl`.
const REGION_NUMBERS: u64 = 1 << 63;

/// The file of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionFile {
    /// Its inode.
    pub inode: InodeId,
    /// Placement of its units.
    pub layout: Layout,
    /// Size in pages; 0 if the file is empty, as that of a window.
    pub pages: u32,
}

/// What all regions of a node need.
struct Parts {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    /// Source of frames.
    engine: Arc<DataEngine>,
    /// Locks of the job-shared view.
    locks: Arc<FileLocks>,
    /// Memory of all regions.
    space: Space,
    /// Number of the last lock, and of the last process, on this node.
    last_number: AtomicU64,
}

/// A region on this node.
struct NodeRegion {
    file: RegionFile,
    /// Memory of the processes that share one.
    shared: Weak<Memory>,
    barrier: Arc<NodeBarrier>,
    /// Number of the last memory.
    last_memory: u32,
}

#[derive(Default)]
struct Table {
    regions: BTreeMap<InodeId, NodeRegion>,
    /// Regions to which processes are attaching.
    attaching: BTreeMap<InodeId, Attaching>,
}

/// Processes that the coordinator may have attached to a region already.
#[derive(Default)]
struct Attaching {
    count: u32,
    /// The last barrier from which on barriers fail, and whether a process has ended without detaching.
    broken: Option<(u64, bool)>,
}

/// A process that attaches to a region, until it is dropped.
struct AttachingProcess<'a> {
    regions: &'a Regions,
    region: InodeId,
}

/// The regions of a node.
pub struct Regions {
    parts: Arc<Parts>,
    table: Mutex<Table>,
}

impl Drop for AttachingProcess<'_> {
    fn drop(&mut self) {
        let mut table = self.regions.table.lock();
        if let Some(attaching) = table.attaching.get_mut(&self.region) {
            attaching.count -= 1;
            if attaching.count == 0 {
                table.attaching.remove(&self.region);
            }
        }
    }
}

/// The error of barriers after a process has detached, or has ended without.
fn ended(failed: bool) -> Fault {
    match failed {
        true => Fault::new(Errno::EOWNERDEAD, "a process of the region has ended without detaching"),
        false => Fault::new(Errno::EPIPE, "a process of the region has detached"),
    }
}

impl Parts {
    /// A number that no owner of a lock in the kernel has, and no other lock or process of regions on this node.
    fn number(&self) -> u64 {
        REGION_NUMBERS | self.last_number.fetch_add(1, Ordering::Relaxed)
    }

    async fn call(
        &self,
        to: impl Into<Destination>,
        request: Request,
        payload: Option<Payload>,
    ) -> Result<Answer> {
        self.rpc.call(to.into(), request, payload, None).await
    }

    /// Asks the coordinator of a region.
    async fn ask(&self, region: InodeId, request: RegionRequest) -> Result<RegionReply> {
        let coordinator = self.cluster.inode_home(region);
        match self.call(coordinator, Request::Region(request), None).await?.reply {
            Reply::Region(reply) => Ok(reply),
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl Regions {
    /// Creates the table of a node without regions, which may take `memory` bytes; frames come from `engine`, and locks from those of
    /// the job-shared view.
    pub fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        engine: Arc<DataEngine>,
        locks: Arc<FileLocks>,
        memory: u64,
    ) -> Arc<Self> {
        let (space, last_number) = (Space::new(memory), AtomicU64::new(0));
        let parts = Arc::new(Parts { runtime, cluster, rpc, engine, locks, space, last_number });
        Arc::new(Self { parts, table: Mutex::default() })
    }

    /// Attaches a process of this node to a region.
    ///
    /// # Errors
    /// `EINVAL` if other processes have attached on other terms or with another size; `EPIPE` after a process of the region has ended;
    /// `ENOMEM`.
    pub async fn attach(self: &Arc<Self>, file: RegionFile, terms: Terms) -> Result<Arc<Attachment>> {
        self.attach_as(file, terms, None).await
    }

    /// Attaches a process of this node to a window, as one of its ranks.
    ///
    /// # Errors
    /// `EEXIST` if another process has attached as this rank, or the file is not empty; those of [`Self::attach`].
    pub async fn attach_window(
        self: &Arc<Self>,
        file: RegionFile,
        shape: Shape,
        rank: u32,
    ) -> Result<Arc<Attachment>> {
        if file.pages > 0 {
            return Err(Fault::new(Errno::EEXIST, format!("the file of window {} is not empty", file.inode)));
        }
        let terms = Terms { processes: shape.ranks(), one_writer: false, tracking: Tracking::Twins };
        self.attach_as(file, terms, Some((shape, rank))).await
    }

    async fn attach_as(
        self: &Arc<Self>,
        file: RegionFile,
        terms: Terms,
        window: Option<(Shape, u32)>,
    ) -> Result<Arc<Attachment>> {
        let region = file.inode;
        let Terms { processes, one_writer, tracking } = terms;
        let _attaching = self.begin_attach(region);
        let rank = window.map(|(shape, rank)| shape.rank(rank));
        let attached =
            self.parts.ask(region, RegionRequest::Attach { region, processes, one_writer, rank }).await?;
        let RegionReply::Attached { barrier: number, sequence, members: _ } = attached else {
            return Err(unexpected_reply(&attached));
        };
        let joined = self.join(file, tracking, (number, sequence), window);
        if joined.is_err() {
            // The process has not seen the region: it leaves as it came.
            let left = self.parts.ask(region, RegionRequest::Detach { region, failed: false }).await;
            left.inspect_err(|fault| log::warn!("detaching from region {region}: {fault}")).ok();
        }
        joined
    }

    fn begin_attach(&self, region: InodeId) -> AttachingProcess<'_> {
        self.table.lock().attaching.entry(region).or_default().count += 1;
        AttachingProcess { regions: self, region }
    }

    fn join(
        self: &Arc<Self>,
        file: RegionFile,
        tracking: Tracking,
        (number, sequence): (u64, u64),
        window: Option<(Shape, u32)>,
    ) -> Result<Arc<Attachment>> {
        let Table { regions, attaching } = &mut *self.table.lock();
        let region = match regions.entry(file.inode) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(self.new_region(file, number, window)?),
        };
        if region.file.pages != file.pages {
            let why = format!(
                "region {} has {} pages in other processes of this node, and the file {} pages now",
                file.inode, region.file.pages, file.pages
            );
            return Err(Fault::new(Errno::EINVAL, why));
        }
        let shared = if tracking == Tracking::OwnTwins { None } else { region.shared.upgrade() };
        let memory = match shared {
            Some(memory) if memory.tracking != tracking => {
                let why =
                    "the kernel reports written pages to some processes of this node, and not to others";
                return Err(Fault::new(Errno::EINVAL, format!("region {}: {why}", file.inode)));
            }
            Some(memory) => memory,
            None => {
                // A window has no pages, and empty memory cannot be mapped.
                let created = RegionMemory::create(file.pages.max(1));
                let created =
                    created.map_err(|error| Fault::from_os("creating the memory of a region", &error))?;
                region.last_memory += 1;
                let memory =
                    Memory::new(self.parts.clone(), file, (region.last_memory, tracking), created, sequence);
                if tracking != Tracking::OwnTwins {
                    region.shared = Arc::downgrade(&memory);
                }
                memory
            }
        };
        region.barrier.joined(&memory);
        if let Some((barrier, failed)) = attaching.get(&file.inode).and_then(|attaching| attaching.broken) {
            region.barrier.fail(Some(barrier), ended(failed));
        }
        Attachment::new(self.clone(), memory, region.barrier.clone(), window.map(|(_, rank)| rank))
    }

    /// A region without processes yet.
    fn new_region(&self, file: RegionFile, number: u64, window: Option<(Shape, u32)>) -> Result<NodeRegion> {
        let create = |(shape, _)| NodeWindow::create(self.parts.clone(), file.inode, shape);
        let window = window.map(create).transpose()?;
        let barrier = NodeBarrier::new(self.parts.clone(), file.inode, number, window);
        Ok(NodeRegion { file, shared: Weak::new(), barrier, last_memory: 0 })
    }

    /// Number of regions to which processes of this node are attached.
    pub fn count(&self) -> usize {
        self.table.lock().regions.len()
    }

    /// Removes a region to which no process of this node is attached any more.
    fn remove_unused(&self, region: InodeId) {
        let regions = &mut self.table.lock().regions;
        if regions.get(&region).is_some_and(|region| region.barrier.is_unused()) {
            regions.remove(&region);
        }
    }

    fn barrier_of(&self, region: InodeId) -> Option<Arc<NodeBarrier>> {
        self.table.lock().regions.get(&region).map(|region| region.barrier.clone())
    }

    /// Serves the arrival of another node, which is below this one in the barrier tree. The reply is the release.
    pub async fn arrive(&self, arrival: Arrival) -> ClientReply {
        match self.barrier_of(arrival.region) {
            Some(barrier) => match barrier.child_arrived(arrival).await {
                Ok(release) => ClientReply::Released(release),
                Err(fault) => ClientReply::Failed(fault),
            },
            None => ClientReply::Redirected,
        }
    }

    /// Serves an access of another node to the memory of a rank of this node. A get has the bytes as its payload.
    pub async fn access(
        &self,
        request: WindowRequest,
        payload: Option<Payload>,
    ) -> (ClientReply, Option<Payload>) {
        let WindowRequest { window, rank, access } = request;
        let barrier = self.barrier_of(window);
        let applied = match barrier.as_ref().and_then(|barrier| barrier.window()) {
            Some(window) => window.apply(rank, &access, payload).await,
            None => Err(Fault::new(Errno::EPIPE, format!("no rank of window {window} is attached here"))),
        };
        match applied {
            Ok((reply, bytes)) => (ClientReply::Window(reply), bytes),
            Err(fault) => (ClientReply::Failed(fault), None),
        }
    }

    /// A process of the region has detached, or `failed`: it has ended, or its node. Barriers fail from number `barrier` on.
    pub fn broken(&self, region: InodeId, barrier: u64, failed: bool) {
        if let Some(attaching) = self.table.lock().attaching.get_mut(&region) {
            attaching.broken = attaching.broken.max(Some((barrier, failed)));
        }
        if let Some(node) = self.barrier_of(region) {
            node.fail(Some(barrier), ended(failed));
        }
    }

    /// Another node has failed, is unreachable, or has come up: without the coordinator of a region, its barriers fail. They may wait
    /// for other nodes, which only the coordinator could report as failed.
    pub fn peer(&self, node: NodeId, event: PeerEvent) {
        if event == PeerEvent::Up {
            return;
        }
        let of_region = |(inode, region): (&InodeId, &NodeRegion)| {
            let cluster = &self.parts.cluster;
            (cluster.primary(cluster.inode_home(*inode)) == node).then(|| region.barrier.clone())
        };
        let barriers: Vec<_> = self.table.lock().regions.iter().filter_map(of_region).collect();
        for barrier in barriers {
            let why = format!("{node}, the coordinator of the region, has failed or is unreachable");
            barrier.fail(None, Fault::new(Errno::EHOSTDOWN, why));
        }
    }
}
