//! File data on the client's side: write-behind, read-ahead and the node's cache of units, for both views
//! whose data is striped (job-shared and cache).
//!
//! A file that is open on the node has one [`FileData`], shared by all its handles, so that a write is seen by
//! every later read on the node. Writes gather in frames and go to the units' homes as byte ranges, never as
//! pages. What is clean in a frame was true when the file was last opened (close-to-open).

mod counters;
mod eviction;
mod file;
mod flush;
mod frames;
mod holders;
mod home;
mod homes;
mod lend;
mod locate;
mod read;
mod serve_peer;
mod sparse;
mod write;

#[cfg(test)]
mod tests;

pub use file::{Access, AtRest, FileData, FrameLender, LendingKey, ReportedFaults};
pub use holders::Reports;
pub use home::{FileVersion, Home};
pub use lend::Lendable;
pub use locate::Placed;
pub use sparse::dense_blocks;

use crate::vfs::OpenMode;
use counters::Counters;
use frames::FrameCache;
use holders::Sources;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::limits::{HOLDER_PATIENCE, UNIT_SIZE};
use tameike_core::{Cluster, InodeId, Layout, Result};
use tameike_fabric::{Patience, Rpc};
use tameike_io::{Pool, Quota, Runtime};

/// Units read ahead of a sequential reader.
const READ_AHEAD_UNITS: u64 = 3;

/// The data of all files that the node works with in one view.
pub struct DataEngine {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    frames: FrameCache,
    files: Mutex<BTreeMap<InodeId, Arc<FileData>>>,
    /// None where no frames are lent.
    lender: Option<Arc<dyn FrameLender>>,
    sources: Sources,
    /// With holders that are asked.
    patience: Patience,
    reports: Arc<Reports>,
    /// What is on its way to nodes that have asked for it as from a holder.
    sent: Quota,
    counters: Counters,
}

impl DataEngine {
    /// An engine whose frames come from `pool`; they are lent by `lender`, if any.
    pub fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        pool: Pool,
        lender: Option<Arc<dyn FrameLender>>,
    ) -> Arc<Self> {
        let (patience, sent) =
            (Patience::new(runtime.clone(), HOLDER_PATIENCE), Quota::new(serve_peer::sent_max(pool.share())));
        let (frames, files) = (FrameCache::new(pool), Mutex::default());
        let (sources, reports, counters) = Default::default();
        Arc::new(Self {
            runtime,
            cluster,
            rpc,
            frames,
            files,
            lender,
            sources,
            patience,
            reports,
            sent,
            counters,
        })
    }

    /// What became of requests to holders of files, for the files' homes.
    pub fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }

    /// The data of a file, for one more open of it on this node. What is cached stays only if `version` is
    /// the one under which it was cached.
    pub fn open(
        &self,
        inode: InodeId,
        layout: Layout,
        home: Home,
        version: FileVersion,
        mode: OpenMode,
    ) -> (Arc<FileData>, bool) {
        let mut files = self.files.lock();
        let make = || Arc::new(FileData::new(inode, layout, home.clone()));
        let file = files.entry(inode).or_insert_with(make).clone();
        // Still under the lock: a file that somebody drops as idle just now would be there twice.
        let kept = file.opened(home, version, mode.beside_kernel);
        (file, kept)
    }

    /// The data of a file that is open on this node, or still cached.
    pub fn find(&self, inode: InodeId) -> Option<Arc<FileData>> {
        self.files.lock().get(&inode).cloned()
    }

    /// Bytes of a file in memory here.
    pub fn bytes_in_memory(&self, inode: InodeId) -> u64 {
        self.find(inode).map_or(0, |file| file.bytes_in_memory())
    }

    /// One open less. A file without opens stays cached until its frames are wanted elsewhere.
    pub fn close(&self, file: &FileData) {
        file.closed();
        self.drop_if_idle(file);
    }

    /// Forgets what is cached of a file.
    pub fn forget(&self, inode: InodeId) {
        if let Some(file) = self.find(inode) {
            file.invalidate();
            self.drop_if_idle(&file);
        }
    }

    fn drop_if_idle(&self, file: &FileData) {
        let mut files = self.files.lock();
        if file.is_idle() {
            files.remove(&file.inode);
        }
    }

    /// Truncates or extends the file: waits for writes in flight, drops what lies beyond, then has `resize` change
    /// the size at the file's home.
    ///
    /// # Errors
    /// Those of `resize`.
    pub async fn resize<T>(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        size: u64,
        resize: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if file.newer().is_some() {
            // The home truncates below the size that it knows: it must know of all that is in the units.
            self.flush(file, false).await?;
        }
        self.settle_all(file).await;
        file.truncate(size);
        let resized = resize.await?;
        // Bytes beyond the new size that were read while the home was at it go, too.
        file.truncate(size);
        file.resized(size);
        Ok(resized)
    }
}

/// Parts of `offset..offset + length` by unit: unit index, first byte in the unit, number of bytes.
fn split(offset: u64, length: u64) -> impl Iterator<Item = (u64, u32, u32)> {
    let unit_size = UNIT_SIZE as u64;
    let end = offset + length;
    let mut position = offset;
    std::iter::from_fn(move || {
        (position < end).then(|| {
            let (index, start) = (position / unit_size, position % unit_size);
            let count = (unit_size - start).min(end - position);
            position += count;
            (index, start as u32, count as u32)
        })
    })
}
