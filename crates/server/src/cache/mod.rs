//! The coordinator of cached files: keeps what the shared file system does not have yet, and flushes it there.
//!
//! The shared file system has the names and attributes of the cache view. The coordinator of a file keeps its generation, the size and
//! mtime that are newer than those of the shared file, and a journal record, which is persistent before the first dirty byte is
//! acknowledged. It flushes dirty files in the background while the node is quiet, and all of them at a drain, for which it makes receipts.
//! A file counts as flushed only after a successful fsync. A file that cannot be flushed stays dirty, and its receipt says why.
//!
//! The unit service holds the bytes.

mod account;
mod activity;
mod background;
mod base;
mod change_detection;
pub mod check;
mod coordinator;
mod dir_syncs;
mod dirty_queue;
mod drain;
mod file_table;
mod flush;
mod locate;
mod paths;
mod record;
mod removal;
mod renames;
mod resize;
mod save;
#[cfg(test)]
mod tests;
mod unit_homes;

pub use activity::{Activity, Foreground};
pub use record::{Journaled, entries_of_home, journaled, replay};
#[cfg(feature = "fuzz")]
pub(crate) use record::{fuzz as fuzz_record, fuzz_seeds};

use crate::holders::CacheTable;
use base::Base;
use coordinator::{Contact, Coordinator, Report};
use dirty_queue::DirtyQueue;
use drain::Drain;
use file_table::FileTable;
use flush::Flusher;
use locate::Locator;
use record::Journal;
use removal::Removals;
use resize::Resizer;
use save::Saver;
use std::path::Path;
use std::sync::Arc;
use tameike_core::receipt::{FileReceipt, Receipt};
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::wire::reclaim::OpenFile;
use tameike_core::{Cluster, HomeId, InodeId, NodeId, Result, View};
use tameike_fabric::{MapLease, RequestContext, Rpc};
use tameike_io::Runtime;
use tameike_io::shared::SharedFs;
use tameike_store::{ExtentStore, Ledger};
use unit_homes::UnitHomes;

/// The environment of the cache service.
pub struct CacheParts {
    /// Time and tasks.
    pub runtime: Runtime,
    /// The nodes of the job.
    pub cluster: Arc<Cluster>,
    /// The ledger of this node.
    pub ledger: Arc<Ledger>,
    /// The extents of this node.
    pub extents: Arc<ExtentStore>,
    /// The shared file system.
    pub shared: Arc<dyn SharedFs>,
    /// Without it, nothing is written to the shared file system.
    pub lease: Arc<MapLease>,
    /// Sends requests to other agents.
    pub rpc: Arc<dyn Rpc>,
    /// Whether programs wait for this node; the unit service has the same.
    pub activity: Arc<Activity>,
    /// Files flushed at a time.
    pub flush_parallel: usize,
    /// The cache holders of files; the metadata service has the same.
    pub holders: Arc<CacheTable>,
}

/// Serves [`CacheRequest`]s.
pub struct CacheService {
    base: Base,
    coordinator: Coordinator,
    removals: Arc<Removals>,
    resizer: Arc<Resizer>,
    flusher: Arc<Flusher>,
    drain: Drain,
    saver: Saver,
    rpc: Arc<dyn Rpc>,
    extents: Arc<ExtentStore>,
}

impl CacheService {
    /// The service of one node, with the files that its ledger has from an earlier incarnation.
    pub fn new(parts: CacheParts) -> Result<Arc<Self>> {
        let CacheParts {
            runtime,
            cluster,
            ledger,
            extents,
            shared,
            lease,
            rpc,
            activity,
            flush_parallel,
            holders,
        } = parts;
        let journal = Arc::new(Journal::new(ledger.clone(), cluster.clone(), rpc.local()));
        let files = Arc::new(FileTable::new(journal.clone()));
        let base = Base {
            locator: Arc::new(Locator::new(runtime.clone(), shared.clone(), files.clone())),
            homes: Arc::new(UnitHomes::new(cluster, rpc.clone(), ledger)),
            queue: Arc::new(DirtyQueue::new(runtime.clone())),
            runtime,
            shared,
            lease,
            journal,
            files,
        };
        let removals = Arc::new(Removals::new(base.clone(), rpc.clone(), holders.clone()));
        let resizer = Arc::new(Resizer::new(base.clone()));
        let flusher = Flusher::new(base.clone(), removals.clone(), resizer.clone(), activity, flush_parallel);
        let flusher = Arc::new(flusher);
        let coordinator = Coordinator::new(base.clone(), removals.clone(), resizer.clone(), holders);
        coordinator.recover()?;
        let (drain, saver) = (Drain::new(base.clone(), flusher.clone()), Saver::new(base.clone()));
        Ok(Arc::new(Self { base, coordinator, removals, resizer, flusher, drain, saver, rpc, extents }))
    }

    /// Flushes dirty files in the background from now on, until the service is dropped.
    pub fn start_flusher(&self) {
        background::start(&self.flusher);
    }

    /// Coordinates the files of a home that another node has coordinated until now. Nodes have these files open.
    ///
    /// # Errors
    /// Those of the ledger; `EREMCHG` if this node does not serve the home any more.
    pub fn take_over(&self, home: HomeId, open: &[(NodeId, OpenFile)]) -> Result<()> {
        self.coordinator.take_over(home, open)
    }

    /// Notes that a node has had a file open since another node coordinated it.
    ///
    /// # Errors
    /// Those of the ledger.
    pub fn reopen(&self, node: NodeId, file: &OpenFile) -> Result<()> {
        self.coordinator.reopen(node, file)
    }

    /// Forgets the files of a home that another node coordinates now.
    pub fn leave(&self, home: HomeId) {
        self.coordinator.leave(home);
    }

    /// Marks the files that programs were writing when the job failed.
    pub fn mark_interrupted_writers(&self) -> Result<()> {
        self.coordinator.mark_interrupted_writers()
    }

    /// Serves one request.
    ///
    /// # Errors
    /// `ESTALE` for a file that was never opened here, and the errors of ledger, agents and shared file system.
    pub async fn serve(&self, context: RequestContext, request: CacheRequest) -> Result<CacheReply> {
        let RequestContext { from, call, .. } = context;
        self.base.journal.wait_for_space().await?;
        if changes_name(&request) {
            self.base.locator.note_name_change();
        }
        let Self { coordinator, removals, resizer, .. } = self;
        let done = |()| CacheReply::Done;
        Ok(match request {
            CacheRequest::State { inode, size, mtime } => {
                CacheReply::State(coordinator.state(inode, size, mtime).await?)
            }
            CacheRequest::Open { inode, path, stamp, holder_outcomes, holds, made } => {
                coordinator.note_demand(&holder_outcomes);
                let contact = if made { Contact::Created } else { Contact::Opened };
                let report = Report { path: &path, stamp, contact };
                let (state, holders) = coordinator.open(inode, report, from, holds).await?;
                CacheReply::Opened { state, holders }
            }
            CacheRequest::Dirty { inode, path, stamp, writes, reach } => {
                let report = Report { path: &path, stamp, contact: Contact::Written };
                CacheReply::State(coordinator.dirty(inode, report, writes.then_some(from), reach).await?)
            }
            CacheRequest::Writing { inode, what } => coordinator.writing(inode, what, from).await?,
            CacheRequest::Commit { inode, end, sparse, now } => {
                CacheReply::State(coordinator.commit(inode, (end, sparse), now, from).await?)
            }
            CacheRequest::Space { inode, change, start, end, grows, now } => {
                CacheReply::State(resizer.change_space(inode, (change, start..end), grows, now).await?)
            }
            CacheRequest::Reserve { inode, length, now } => {
                let (offset, state) = coordinator.reserve(inode, length, now, call).await?;
                CacheReply::Reserved { offset, state }
            }
            CacheRequest::Truncate { inode, size, now } => {
                CacheReply::State(resizer.truncate(inode, size, now).await?)
            }
            CacheRequest::SetMtime { inode, mtime } => {
                CacheReply::State(coordinator.set_mtime(inode, mtime).await?)
            }
            CacheRequest::Renamed { inode, from, to } => {
                coordinator.renamed(inode, &from, &to).await.map(done)?
            }
            CacheRequest::RenameEnded { inode, from, to, is_renamed } => {
                coordinator.rename_ended(inode, (&from, &to), is_renamed).await.map(done)?
            }
            CacheRequest::Removing { inode } => removals.announce(inode, from).await.map(done)?,
            CacheRequest::Kept { inode } => removals.cancel(inode, from).await.map(done)?,
            CacheRequest::Removed { inode } => removals.removed(inode).await.map(done)?,
            CacheRequest::Flush { inode } => coordinator.make_durable(inode).await.map(done)?,
            CacheRequest::Writeback { inode } => self.flusher.write_back(inode).await.map(done)?,
            CacheRequest::Locate { inode } => CacheReply::Located { path: coordinator.find(inode).await? },
            CacheRequest::Progress => CacheReply::Progress {
                files: self.base.queue.len() as u64,
                bytes: self.extents.space(View::Cache).dirty,
                flushed: self.flusher.activity.flushed_bytes(),
            },
        })
    }

    /// Flushes all dirty files that this node coordinates to the shared file system. Returns what went wrong besides the errors of single
    /// files, which [`CacheService::receipts`] reports.
    ///
    /// # Errors
    /// Those of the ledger.
    pub async fn flush_all(&self) -> Result<Vec<String>> {
        self.base.journal.wait_for_space().await?;
        self.drain.flush_all().await
    }

    /// Returns a page of receipts of the files that this node coordinates: those behind `after`, or the first ones. With `verify`, reads
    /// each file back from the shared file system and compares. Also returns `after` for the next page; `None` after the last one.
    ///
    /// # Errors
    /// Those of the ledger.
    pub async fn receipts(
        &self,
        verify: bool,
        after: Option<InodeId>,
    ) -> Result<(Vec<FileReceipt>, Option<InodeId>)> {
        self.base.journal.wait_for_space().await?;
        self.drain.receipts(verify, after).await
    }

    /// Serves a request of this agent itself.
    pub async fn serve_own(&self, request: CacheRequest) -> Result<CacheReply> {
        self.serve(RequestContext::of_node(self.rpc.local()), request).await
    }

    /// The path of a file below the shared directory, as far as this coordinator knows; empty otherwise.
    pub fn path_of(&self, inode: InodeId) -> Vec<u8> {
        self.coordinator.path_of(inode)
    }

    /// The files that are still dirty, each with the reason.
    pub fn undrained(&self) -> Receipt {
        self.saver.undrained()
    }

    /// Writes the dirty bytes of files that are gone from the shared directory below `dir`, and drops them. The receipt has the saved files,
    /// and the errors of others.
    pub async fn save_orphaned(&self, dir: &Path) -> Receipt {
        self.saver.save_orphaned(dir).await
    }
}

/// Whether a request reports that a node changes a name.
fn changes_name(request: &CacheRequest) -> bool {
    matches!(
        request,
        CacheRequest::Renamed { .. }
            | CacheRequest::RenameEnded { .. }
            | CacheRequest::Removing { .. }
            | CacheRequest::Removed { .. }
            | CacheRequest::Open { made: true, .. }
    )
}
