//! The coordinator of shared memory regions: the home of a region's inode.
//!
//! - It knows the attached processes, the changes since the last release ([`changes`]), and the arrivals at the current barrier
//!   ([`state`]). All of this is in memory only, and ends with the last attached process.
//! - The bytes are in the units of the file, and clients have stored them before they report a change here.
//! - A barrier is complete when all processes have arrived. Each arrival may count those of several nodes.
//! - A region whose processes have ranks is a window ([`ranks`]): it has no pages.
//! - If a process detaches or ends while others are attached, barriers fail until all have detached.

mod changes;
mod heap;
mod ranks;
mod state;
#[cfg(test)]
mod tests;

use crate::meta::MetaServices;
use futures_util::future::join_all;
use parking_lot::Mutex;
use state::{Broken, Completed, End, Region};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::Request;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::region::{Arrival, RegionReply, RegionRequest, Writer};
use tameike_core::wire::window::Rank;
use tameike_core::{Cluster, Errno, Fault, HomeId, InodeId, NodeId, Result, View};
use tameike_fabric::Rpc;
use tameike_io::Runtime;
use tameike_io::os::runtime::{Resolver, promise};

/// The parts that the service needs.
pub struct RegionParts {
    /// Clock and tasks.
    pub runtime: Runtime,
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// Calls to other agents. Weak, since the agent owns both.
    pub rpc: Weak<dyn Rpc>,
    /// This node.
    pub node: NodeId,
    /// Metadata of this node's files.
    pub meta: Arc<MetaServices>,
}

/// Ends the wait of an arrival with its reply.
type Wake = Resolver<Result<RegionReply>>;

#[derive(Default)]
struct State {
    regions: BTreeMap<InodeId, Region<Wake>>,
    /// Number of the first barrier of the next region. No barrier of a region that has ended had it, so that no late message of such a
    /// barrier counts for a new region.
    barrier: u64,
}

/// The coordinator of the regions with their home on one node.
pub struct RegionService {
    parts: RegionParts,
    state: Mutex<State>,
}

impl RegionService {
    /// Creates the service of one node, without regions.
    pub fn new(parts: RegionParts) -> Arc<Self> {
        Arc::new(Self { parts, state: Mutex::default() })
    }

    /// Serves a request of `from`. An arrival returns at the end of the barrier.
    ///
    /// # Errors
    /// - `EINVAL` for an invalid request, or if `from` has no attached process; `EBUSY` if all processes have attached;
    ///   `EEXIST` if one has the same rank.
    /// - Those of [`MetaServices::move_to_units`], for the first process.
    /// - `ENOMEM` if there is no free block of bytes.
    /// - `ESTALE` for an arrival at another barrier than the current one.
    /// - `EPIPE` if a process has detached, `EOWNERDEAD` if one has ended without detaching.
    /// - `EPROTO` if this node is not the coordinator.
    pub async fn serve(&self, from: NodeId, request: RegionRequest) -> Result<RegionReply> {
        match request {
            RegionRequest::Attach { region, processes, one_writer, rank } => {
                self.attach(from, region, (processes, one_writer), rank).await
            }
            RegionRequest::Detach { region, failed } => {
                self.check(region)?;
                self.end(region, from, if failed { End::Failed } else { End::Detached })?;
                Ok(RegionReply::Done)
            }
            RegionRequest::Publish { region, memory, pages } => {
                let (changed, writer) = (!pages.is_empty(), Writer { node: from, memory });
                let sequence = self.with(region, from, |region| region.publish(writer, pages))?;
                if changed {
                    raise_generation(&self.parts.meta, region).await?;
                }
                Ok(RegionReply::Published(sequence))
            }
            RegionRequest::Changes { region, after } => self.with(region, from, |region| {
                region.check_member(from)?;
                let (sequence, changes) = (region.sequence(), region.changes_after(after));
                Ok(RegionReply::Changes { sequence, changes, failed: region.has_failed() })
            }),
            RegionRequest::Arrive(arrival) => self.arrive(from, arrival).await,
            RegionRequest::Allocate { region, pages, bytes, alignment } => {
                let size = u64::from(pages) * BLOCK_SIZE as u64;
                let allocated =
                    self.with(region, from, |region| region.allocate(from, size, bytes, alignment));
                allocated.map(RegionReply::Allocated)
            }
            RegionRequest::Free { region, offset } => {
                self.with(region, from, |region| region.free(from, offset)).map(|()| RegionReply::Done)
            }
            RegionRequest::Ranks { region } => {
                Ok(RegionReply::Ranks(self.with(region, from, |region| region.nodes_of_ranks(from))?))
            }
        }
    }

    /// The homes of regions with attached processes.
    pub fn homes(&self) -> Vec<HomeId> {
        let state = self.state.lock();
        state.regions.keys().map(|region| self.parts.cluster.inode_home(*region)).collect()
    }

    /// Number of regions with attached processes.
    pub fn count(&self) -> usize {
        self.state.lock().regions.len()
    }

    /// Ends all processes of a failed node.
    pub fn peer_failed(&self, node: NodeId) {
        let regions: Vec<InodeId> = self.state.lock().regions.keys().copied().collect();
        for region in regions {
            // An error: the node has no process in this region.
            let _ = self.end(region, node, End::NodeFailed);
        }
    }

    fn check(&self, region: InodeId) -> Result<()> {
        if self.parts.cluster.primary(self.parts.cluster.inode_home(region)) != self.parts.node {
            let problem =
                format!("{} got a request for region {region}, which it does not own", self.parts.node);
            return Err(Fault::new(Errno::EPROTO, problem));
        }
        if region.view() != View::JobShared {
            let problem = format!("{region} is not a file of the job-shared view: it cannot be a region");
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        Ok(())
    }

    /// Runs `work` on a region with attached processes, which the request of `from` expects.
    fn with<T>(
        &self,
        region: InodeId,
        from: NodeId,
        work: impl FnOnce(&mut Region<Wake>) -> Result<T>,
    ) -> Result<T> {
        self.check(region)?;
        let mut state = self.state.lock();
        work(state.regions.get_mut(&region).ok_or_else(|| not_attached(region, from))?)
    }

    async fn attach(
        &self,
        from: NodeId,
        inode: InodeId,
        terms: (u32, bool),
        rank: Option<Rank>,
    ) -> Result<RegionReply> {
        self.check(inode)?;
        match self.parts.meta.move_to_units(inode).await {
            // A removed file can still be shared.
            Err(fault) if fault.errno != Errno::ENOENT => return Err(fault),
            _ => {}
        }
        let State { regions, barrier } = &mut *self.state.lock();
        let mut new = None;
        let region = match regions.get_mut(&inode) {
            Some(region) => region,
            None => new.insert(Region::new(inode, terms, rank, *barrier)?),
        };
        region.attach(from, terms, rank)?;
        let (barrier, sequence, members) = (region.barrier(), region.sequence(), region.members().clone());
        if let Some(new) = new {
            regions.insert(inode, new);
        }
        Ok(RegionReply::Attached { barrier, sequence, members })
    }

    fn end(&self, inode: InodeId, node: NodeId, end: End) -> Result<()> {
        let broken = {
            let State { regions, barrier } = &mut *self.state.lock();
            let region = regions.get_mut(&inode).ok_or_else(|| not_attached(inode, node))?;
            let broken = region.end(node, end)?;
            if region.is_unused() {
                *barrier = (*barrier).max(region.barrier() + 1);
                regions.remove(&inode);
            }
            broken
        };
        if let Some(Broken { waiting, fault, barrier, others }) = broken {
            log::debug!("{fault}");
            let failed = fault.errno == Errno::EOWNERDEAD;
            waiting.into_iter().for_each(|wake| wake.resolve(Err(fault.clone())));
            self.notify(inode, (barrier, failed), others);
        }
        Ok(())
    }

    /// Notifies nodes that the barriers of a region fail from number `barrier` on.
    fn notify(&self, region: InodeId, (barrier, failed): (u64, bool), nodes: Vec<NodeId>) {
        let Some(rpc) = self.parts.rpc.upgrade().filter(|_| !nodes.is_empty()) else { return };
        self.parts.runtime.spawn(async move {
            let calls = nodes.into_iter().map(|node| {
                let request = Request::Client(ClientRequest::RegionBroken { region, barrier, failed });
                let call = rpc.call(node.into(), request, None, None);
                async move {
                    // The node fails as well, or will get the error from its next request.
                    if let Err(fault) = call.await {
                        log::debug!(
                            "{node} is not notified that a process of region {region} has ended: {fault}"
                        );
                    }
                }
            });
            join_all(calls).await;
        });
    }

    async fn arrive(&self, from: NodeId, arrival: Arrival) -> Result<RegionReply> {
        let inode = arrival.region;
        let (wake, woken) = promise();
        let completed = self.with(inode, from, |region| region.arrive(from, arrival, wake))?;
        if let Some(completed) = completed {
            self.release(inode, completed);
        }
        woken.await
    }

    /// Sends the release to all arrivals, once later opens of the file will see the changes.
    fn release(&self, inode: InodeId, completed: Completed<Wake>) {
        let Completed { waiting, release, changed } = completed;
        let wake = move || {
            for wake in waiting {
                wake.resolve(Ok(RegionReply::Released(release.clone())));
            }
        };
        if !changed {
            return wake();
        }
        // A separate task: the others are released even if the last arrival is cancelled.
        let meta = self.parts.meta.clone();
        self.parts.runtime.spawn(async move {
            if let Err(fault) = raise_generation(&meta, inode).await {
                log::warn!("region {inode}: files opened from now on may show old content: {fault}");
            }
            wake();
        });
    }
}

fn not_attached(region: InodeId, node: NodeId) -> Fault {
    Fault::new(Errno::EINVAL, format!("region {region}: no process of {node} is attached"))
}

/// Raises the generation of a file, unless it was removed, or truncated and therefore has no units any more.
async fn raise_generation(meta: &MetaServices, inode: InodeId) -> Result<()> {
    match meta.content_changed(inode).await {
        Err(fault) if [Errno::ENOENT, Errno::EINVAL].contains(&fault.errno) => Ok(()),
        other => other,
    }
}
