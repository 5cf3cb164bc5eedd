//! File data on the client's side: write-behind, read-ahead and the node's cache of units, for both views
//! whose data is striped (job-shared and cache).
//!
//! A file that is open on the node has one [`FileData`], shared by all its handles, so that a write is seen by
//! every later read on the node. Writes gather in frames and go to the units' homes as byte ranges, never as
//! pages. What is clean in a frame was valid when the file was last opened (close-to-open).
//!
//! [`DataEngine`] puts together the objects that do the work: the writer, the flusher, the reader with its locator and peers, the
//! server of peers, the lender and the space client, over the frames, the files and the client of the homes.

mod counters;
mod eviction;
mod file;
mod file_table;
mod flush;
mod frames;
mod grant;
mod holder_reports;
mod home;
mod homes;
mod locate;
mod read;
mod read_peer;
mod response_times;
mod serve_peer;
mod sparse;
mod write;

#[cfg(test)]
mod tests;

pub use file::{Access, AtRest, FileData, FrameGranter, GrantKey, ReportedFaults};
pub use grant::Grantable;
pub use holder_reports::HolderReports;
pub use home::{FileVersion, Home};
pub use locate::Located;
pub use sparse::dense_blocks;

use crate::types::{OpenMode, ReadBytes, WriteBytes};
use counters::Counters;
use file_table::FileTable;
use flush::Flusher;
use frames::FrameCache;
use grant::FileGranter;
use homes::HomeClient;
use locate::Locator;
use read::Reader;
use read_peer::PeerReader;
use serve_peer::PeerServer;
use sparse::SpaceClient;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::Counter;
use tameike_core::wire::client::ClientReply;
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Cluster, Generation, InodeId, Layout, Result, UnitId};
use tameike_fabric::Rpc;
use tameike_io::{Frame, Payload, Pool, Runtime};
use write::Writer;

/// The data of all files that the node works with in one view.
pub struct DataEngine {
    homes: Arc<HomeClient>,
    files: Arc<FileTable>,
    frames: Arc<FrameCache>,
    writer: Arc<Writer>,
    flusher: Arc<Flusher>,
    locator: Arc<Locator>,
    peers: Arc<PeerReader>,
    reader: Arc<Reader>,
    peer_server: PeerServer,
    space: SpaceClient,
    lender: Arc<FileGranter>,
    counters: Arc<Counters>,
}

impl DataEngine {
    /// An engine whose frames come from `pool`; they are lent by `lender`, if any.
    pub fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        pool: Pool,
        lender: Option<Arc<dyn FrameGranter>>,
    ) -> Arc<Self> {
        let (counters, files) = (Arc::new(Counters::default()), Arc::new(FileTable::default()));
        let homes = Arc::new(HomeClient::new(runtime.clone(), cluster, rpc));
        let frames = Arc::new(FrameCache::new(pool, files.clone()));
        let writer = Arc::new(Writer::new(homes.clone(), frames.clone()));
        let flusher = Arc::new(Flusher::new(homes.clone(), writer.clone()));
        let locator = Arc::new(Locator::new(homes.clone()));
        let peers = Arc::new(PeerReader::new(homes.clone(), writer.clone(), counters.clone()));
        let (units, elsewhere) = ((frames.clone(), writer.clone()), (locator.clone(), peers.clone()));
        Arc::new(Self {
            reader: Arc::new(Reader::new(homes.clone(), units, elsewhere, counters.clone())),
            peer_server: PeerServer::new(files.clone(), frames.clone(), counters.clone()),
            space: SpaceClient::new(homes.clone(), writer.clone(), flusher.clone()),
            lender: Arc::new(FileGranter::new(runtime, frames.clone(), lender)),
            homes,
            files,
            frames,
            writer,
            flusher,
            locator,
            peers,
            counters,
        })
    }

    /// Outcomes of requests to holders of files, for the files' homes.
    pub fn reports(&self) -> &Arc<HolderReports> {
        self.peers.reports()
    }

    /// The view's counters.
    pub fn counters(&self) -> Vec<Counter> {
        self.counters.report()
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
        self.files.open(inode, layout, home, version, mode.beside_kernel)
    }

    /// The data of a file that is open on this node, or still cached.
    pub fn find(&self, inode: InodeId) -> Option<Arc<FileData>> {
        self.files.find(inode)
    }

    /// Bytes of a file in memory here.
    pub fn bytes_in_memory(&self, inode: InodeId) -> u64 {
        self.find(inode).map_or(0, |file| file.bytes_in_memory())
    }

    /// One open less. A file without opens stays cached until its frames are wanted elsewhere.
    pub fn close(&self, file: &FileData) {
        file.closed();
        self.files.drop_if_idle(file);
    }

    /// Forgets what is cached of a file.
    pub fn forget(&self, inode: InodeId) {
        if let Some(file) = self.find(inode) {
            file.invalidate();
            self.files.drop_if_idle(&file);
        }
    }

    /// Reads at most `length` bytes (at most a unit's size) at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// Those of the unit's home.
    pub async fn read(&self, file: &Arc<FileData>, offset: u64, length: u32) -> Result<ReadBytes> {
        self.reader.read(file, offset, length).await
    }

    /// Where a program of this host can read `length` bytes at `offset` by itself. None where they are not all of one unit that
    /// its home holds whole and this node not at all.
    pub async fn locate(&self, file: &Arc<FileData>, offset: u64, length: u32) -> Option<Located> {
        self.locator.locate(file, offset, length, None).await
    }

    /// Writes `data` at `offset`; every later read on this node sees it.
    ///
    /// # Errors
    /// `EFBIG` beyond the largest file. The next flush reports failures on the way to the homes.
    pub async fn write(&self, file: &Arc<FileData>, offset: u64, data: &[u8]) -> Result<()> {
        self.writer.write(file, offset, data).await
    }

    /// Writes as much of `data` from its start as needs no waiting for frames; the number of bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_now(&self, file: &Arc<FileData>, offset: u64, data: &dyn WriteBytes) -> Result<usize> {
        self.writer.write_now(file, offset, data)
    }

    /// Writes `data` at the end of the file, wherever other nodes have moved it.
    ///
    /// # Errors
    /// Those of the home, which reserves the bytes.
    pub async fn append(&self, file: &Arc<FileData>, data: &[u8]) -> Result<()> {
        self.flusher.flush_new(file).await?;
        let offset = self.homes.reserve(&file.home(), file.inode, data.len() as u64).await?;
        // The file ends there: what other nodes have appended before is no hole.
        file.grown(offset);
        self.write(file, offset, data).await
    }

    /// A frame, if one is free or clean.
    pub fn frame_now(&self) -> Option<Frame> {
        self.frames.take_now()
    }

    /// Sends all writes acknowledged so far and commits them to the home; every later open on any node sees them.
    /// `durable`: they survive power loss, too. Failures of single writes are reported by [`FileData::report_faults`]; the
    /// others reach their homes all the same.
    ///
    /// # Errors
    /// When the homes cannot be reached; the next flush retries.
    pub async fn flush(&self, file: &Arc<FileData>, durable: bool) -> Result<()> {
        self.flusher.flush(file, durable).await
    }

    /// Flushes what came through a mapping after the last close: no later close commits such bytes. A failure is logged, as no
    /// program is left to report it to.
    pub async fn flush_mapped(&self, file: &Arc<FileData>, mode: OpenMode) {
        if mode.write && !file.is_flushed() {
            self.flusher.flush_or_log(file).await;
        }
    }

    /// Truncates or extends the file: waits for writes in flight, drops what lies beyond, then has `resize` change
    /// the size at the file's home.
    ///
    /// # Errors
    /// Those of `resize`.
    pub async fn resize<T>(
        &self,
        file: &Arc<FileData>,
        size: u64,
        resize: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // The home truncates below the size that it knows: it must know of all that is in the units.
        self.flusher.flush_new(file).await?;
        self.flusher.settle_all(file).await;
        file.truncate(size);
        let resized = resize.await?;
        // Bytes beyond the new size that were read while the home was at it go, too.
        file.truncate(size);
        file.resized(size);
        Ok(resized)
    }

    /// Sets space aside or gives it back: sends what was written before, has `change_homes` change it at the homes, and drops what
    /// this node has of bytes that are zeros then.
    ///
    /// # Errors
    /// Those of `change_homes`.
    pub async fn change_space<T>(
        &self,
        file: &Arc<FileData>,
        change: SpaceChange,
        bytes: Range<u64>,
        change_homes: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.space.change(file, change, bytes, change_homes).await
    }

    /// Changes space at the homes of a file's units, then at the home of its inode.
    ///
    /// # Errors
    /// `ENOSPC` when a home is full.
    pub async fn change_space_at_homes(
        &self,
        file: &Arc<FileData>,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        self.space.change_at_homes(file, change, bytes, grows).await
    }

    /// The first byte of its kind from `start` on and before `end` that the homes of the file's units know of. What this
    /// node has written is sent first.
    ///
    /// # Errors
    /// When a home cannot be asked.
    pub async fn seek(
        &self,
        file: &Arc<FileData>,
        sought: Sought,
        start: u64,
        end: u64,
    ) -> Result<Option<u64>> {
        self.space.seek(file, sought, start, end).await
    }

    /// Space that the file takes, in blocks of `st_blocks`: what its homes say, and what waits here to be sent. Of a
    /// cached file, that of its dirty bytes.
    ///
    /// # Errors
    /// When a home cannot be asked.
    pub async fn usage(&self, inode: InodeId, layout: Layout) -> Result<u64> {
        self.space.usage(inode, layout).await
    }

    /// What the home of an inode knows of it.
    pub(crate) async fn version(&self, inode: InodeId) -> Result<FileVersion> {
        self.homes.version(inode).await
    }

    /// Answers another node's request: bytes of a unit, if this node has them in memory as their home has them in this version of
    /// the file.
    pub fn serve_peer(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> (ClientReply, Option<Payload>) {
        self.peer_server.serve(unit, range, generation)
    }

    /// All bytes in memory that their homes have, too, for an examination of memory.
    pub fn at_rest(&self) -> Vec<AtRest> {
        self.peer_server.at_rest()
    }

    /// What programs of this node may be lent of a file.
    pub(crate) fn grantable(&self, file: &Arc<FileData>) -> Grantable {
        Grantable::new(&self.lender, file)
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
