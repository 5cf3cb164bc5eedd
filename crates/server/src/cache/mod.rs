//! The coordinator of cached files: what the shared file system cannot know yet, and how it gets there.
//!
//! Names and attributes of the cache view are the shared file system's. The coordinator of a file keeps its
//! generation, the size and time that are newer than the shared file's, and a journal record that names the
//! file, safe before its first dirty byte is acknowledged. It flushes files in the background while the node
//! is quiet, and all of them at a drain, of which it gives receipts. Nothing counts as flushed without an
//! fsync that succeeded; what cannot be flushed stays dirty, and the receipt says why.
//!
//! It does not hold the bytes (the unit service does) and does not change names.

mod activity;
mod change;
pub mod check;
mod dir_syncs;
mod drain;
mod files;
mod flush;
mod flusher;
mod locate;
mod paths;
mod receipt;
mod record;
mod removal;
mod saved;
mod signs;
mod space;
#[cfg(test)]
mod tests;
mod truncate;

pub use activity::{Activity, Foreground};
pub use record::{Journaled, journaled, replay};
#[cfg(feature = "fuzz")]
pub(crate) use record::{fuzz as fuzz_record, fuzz_seeds};

use crate::holders::CacheTable;
use crate::unit::digest::unit_count;
use change::Met;
use dir_syncs::DirSyncs;
use event_listener::Event;
use files::{File, Files, fresh_generation};
use flusher::Wait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use record::{Journal, Record};
use removal::Removals;
use signs::Sign;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState, Stamp};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{
    Cluster, Errno, Fault, Generation, InodeId, Layout, NodeId, Result, Timestamp, UnitId, View,
};
use tameike_fabric::Rpc;
use tameike_io::Runtime;
use tameike_io::shared::SharedFs;
use tameike_store::{ExtentStore, Ledger};

/// The state of a file of which the job knows nothing.
const UNKNOWN: CacheState =
    CacheState { generation: Generation(0), newer: None, sparse: false, removing: false };

/// What the cache service works with.
pub struct CacheParts {
    /// Time and tasks.
    pub runtime: Runtime,
    /// The nodes of the job.
    pub cluster: Arc<Cluster>,
    /// Records of this node.
    pub ledger: Arc<Ledger>,
    /// Bytes of this node.
    pub extents: Arc<ExtentStore>,
    /// The shared file system.
    pub shared: Arc<dyn SharedFs>,
    /// Asks other agents.
    pub rpc: Arc<dyn Rpc>,
    /// Whether this node is busy; the same as the unit service's.
    pub activity: Arc<Activity>,
    /// Files flushed at the same time.
    pub flush_parallel: usize,
    /// Who may have bytes of files in memory; the same as the metadata service's.
    pub holders: Arc<CacheTable>,
}

/// Answers [`CacheRequest`]s.
pub struct CacheService {
    parts: CacheParts,
    journal: Journal,
    files: Files,
    /// Files to flush, and when to try.
    dirty: Mutex<BTreeMap<InodeId, Wait>>,
    dirtied: Arc<Event>,
    dir_syncs: DirSyncs,
    removals: Removals,
    /// When a node has last told of a name that it changes.
    named: Mutex<Option<Duration>>,
}

impl CacheService {
    /// The service of one node, with the files that its ledger knows from an earlier life.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn new(parts: CacheParts) -> Result<Arc<Self>> {
        let service = Self {
            journal: Journal::new(parts.ledger.clone()),
            parts,
            files: Files::default(),
            dirty: Mutex::new(BTreeMap::new()),
            dirtied: Arc::new(Event::new()),
            dir_syncs: DirSyncs::default(),
            removals: Removals::default(),
            named: Mutex::default(),
        };
        service.recover()?;
        Ok(Arc::new(service))
    }

    /// Takes up the files of an earlier life. Each gets a new generation: its last ones may not have been
    /// written down.
    fn recover(&self) -> Result<()> {
        let fresh = fresh_generation(&self.parts.runtime);
        let mut after = None;
        loop {
            let page = self.journal.page(after, 1024)?;
            let Some(&(last, _)) = page.last() else { return Ok(()) };
            for (inode, before) in page {
                let generation = fresh.max(before.generation.next());
                let record = Record { generation, ..before.clone() };
                self.journal.put(inode, Some(&before), &record)?;
                if record.dirty || record.removing {
                    self.dirty.lock().insert(inode, Wait::default());
                }
            }
            after = Some(last);
        }
    }

    /// Serves one request.
    ///
    /// # Errors
    /// `ESTALE` for a file that was never opened here, and what ledger, agents and shared file system say.
    pub async fn serve(&self, from: NodeId, request: CacheRequest) -> Result<CacheReply> {
        self.journal.room().await?;
        self.note_names(&request);
        Ok(match request {
            CacheRequest::State { inode, size, mtime } => {
                CacheReply::State(self.look(inode, size, mtime).await?)
            }
            CacheRequest::Open { inode, path, stamp, asked, holds, made } => {
                self.parts.holders.asked(&asked);
                let met = if made { Met::Made } else { Met::Opened };
                let (state, holders) = self.open((inode, &path, stamp, met), from, holds).await?;
                CacheReply::Opened { state, holders }
            }
            CacheRequest::Dirty { inode, path, stamp, writes, reach } => {
                CacheReply::State(self.dirty((inode, &path, stamp), writes.then_some(from), reach).await?)
            }
            CacheRequest::Writing { inode, what } => self.writing(inode, what, from).await?,
            CacheRequest::Commit { inode, end, sparse, now } => {
                CacheReply::State(self.commit(inode, (end, sparse), now, from).await?)
            }
            CacheRequest::Space { inode, change, start, end, grows, now } => {
                CacheReply::State(self.change_space(inode, (change, start..end), grows, now).await?)
            }
            CacheRequest::Reserve { inode, length, now } => {
                let (offset, state) = self.reserve(inode, length, now).await?;
                CacheReply::Reserved { offset, state }
            }
            CacheRequest::Truncate { inode, size, now } => {
                CacheReply::State(self.truncate(inode, size, now).await?)
            }
            CacheRequest::SetMtime { inode, mtime } => CacheReply::State(self.set_mtime(inode, mtime).await?),
            CacheRequest::Renamed { inode, from, to } => {
                self.renamed(inode, &from, &to).await?;
                CacheReply::Done
            }
            CacheRequest::Removing { inode } => {
                self.removing(inode, from).await?;
                CacheReply::Done
            }
            CacheRequest::Kept { inode } => {
                self.kept(inode, from).await?;
                CacheReply::Done
            }
            CacheRequest::Removed { inode } => {
                self.removed(inode).await?;
                CacheReply::Done
            }
            CacheRequest::Flush { inode } => {
                self.make_durable(inode).await?;
                CacheReply::Done
            }
            CacheRequest::Writeback { inode } => {
                self.write_back(inode).await?;
                if self.files.get(&self.journal, inode)?.is_some_and(|file| file.state().record.removed) {
                    return Err(Errno::ESTALE.into());
                }
                CacheReply::Done
            }
            CacheRequest::Drain { verify, after } => {
                let (receipt, next) = self.drain(verify, after).await?;
                CacheReply::Receipt { receipt, next }
            }
            CacheRequest::Locate { inode } => CacheReply::Located { path: self.find(inode).await? },
            CacheRequest::Progress => CacheReply::Progress {
                files: self.dirty.lock().len() as u64,
                bytes: self.parts.extents.space(View::Cache).dirty,
                flushed: self.parts.activity.flushed_bytes(),
            },
        })
    }

    /// Where a file lies below the shared directory, as far as this coordinator knows; empty else.
    pub fn path_of(&self, inode: InodeId) -> Vec<u8> {
        let known = self.files.get(&self.journal, inode).ok().flatten();
        let path = known.and_then(|file| file.state().record.paths.first().map(|path| path.to_vec()));
        path.unwrap_or_default()
    }

    /// Serves a request of this agent itself.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_own(&self, request: CacheRequest) -> Result<CacheReply> {
        self.serve(self.parts.rpc.local(), request).await
    }

    /// A file that a client must have opened before.
    fn known(&self, inode: InodeId) -> Result<Arc<File>> {
        let unknown = || Fault::new(Errno::ESTALE, format!("{inode} was not opened through its coordinator"));
        self.files.get(&self.journal, inode)?.ok_or_else(unknown)
    }

    /// What the job knows of a file that a client saw with this size and time. When the client saw something
    /// else than we know, a flush may have ended in between, or others have changed the file: it is looked at
    /// again.
    async fn look(&self, inode: InodeId, size: u64, mtime: Timestamp) -> Result<CacheState> {
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(UNKNOWN) };
        let record = file.state().record.clone();
        if record.dirty || record.removed || (record.stamp.size, record.stamp.mtime) == (size, mtime) {
            return Ok(record.state(None));
        }
        let seen = self.locate_anew(inode, &record).await.ok().map(|(_, stat)| stat.stamp());
        let now = self.parts.runtime.now();
        let state = file.state();
        let is_old = |seen: &Stamp| !state.record.has_content_of(seen) && state.sign(seen, now) == Sign::Old;
        let seen = match seen {
            // A client whose look is older than ours must be told all the same.
            Some(seen) if is_old(&seen) => Some((state.record.size, state.record.mtime)),
            other => other.map(|seen| (seen.size, seen.mtime)),
        };
        let known = state.record.state(None);
        Ok(CacheState { newer: known.newer.or(seen), ..known })
    }

    /// All nodes on which units of a cached file may lie.
    fn homes(&self, inode: InodeId) -> Vec<NodeId> {
        self.parts.cluster.unit_homes(Layout::Striped, inode)
    }

    /// The nodes that may hold bytes of a file which the shared file lacks, committed or not. Units on other nodes are clean, and an old
    /// generation makes them invalid.
    fn homes_reached(&self, inode: InodeId, record: &Record) -> Vec<NodeId> {
        self.homes_of_units(inode, self.reach(record))
    }

    /// Those of [`Self::homes_reached`] that may hold what was committed.
    fn homes_committed(&self, inode: InodeId, record: &Record) -> Vec<NodeId> {
        self.homes_of_units(inode, unit_count(record.size).min(self.reach(record)))
    }

    fn reach(&self, record: &Record) -> u64 {
        // A power failure may have lost announcements.
        if self.parts.ledger.may_lack_records() { u64::MAX } else { record.reach }
    }

    /// The nodes on which the first units of a cached file lie.
    fn homes_of_units(&self, inode: InodeId, count: u64) -> Vec<NodeId> {
        if count >= self.parts.cluster.device_nodes().len() as u64 {
            return self.homes(inode);
        }
        let mut homes: Vec<_> = (0..count).map(|index| self.home(UnitId { inode, index })).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    fn home(&self, unit: UnitId) -> NodeId {
        self.parts.cluster.unit_home(Layout::Striped, unit)
    }

    async fn ask_unit(&self, node: NodeId, request: UnitRequest) -> Result<UnitReply> {
        match self.parts.rpc.call(node, Request::Unit(request), None, None).await?.reply {
            Reply::Unit(reply) => Ok(reply),
            other => Err(Fault::new(Errno::EPROTO, format!("{node} answered a unit request with {other:?}"))),
        }
    }

    /// Sends one request to several nodes at once; the first fault is the result.
    async fn ask_units(&self, nodes: Vec<NodeId>, request: &UnitRequest) -> Result<()> {
        let asked = nodes.into_iter().map(|node| self.ask_unit(node, request.clone()));
        join_all(asked).await.into_iter().try_for_each(|answer| answer.map(|_| ()))
    }
}
