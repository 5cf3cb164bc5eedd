//! File data on the client: write-behind, readahead and the node's cache of units, for both views with striped data (job-shared and cache).
//!
//! All handles of a file on the node share one [`FileData`], so that every later read on the node sees a write. Writes gather in frames.
//! The client sends them to the units' homes as byte ranges, never as pages. Clean bytes in a frame were valid at the last open
//! (close-to-open).
//!
//! [`DataEngine`] connects the writer, the flusher, the reader with its locator and peers, the peer server, the granter and the space
//! client. They share the frames, the file table and the client of the homes.

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
use tameike_core::{Cluster, Generation, InodeId, Layout, Result, UnitId};
use tameike_fabric::Rpc;
use tameike_io::{Frame, Payload, Pool, Runtime};
use write::Writer;

/// The data of all files that the node uses in one view.
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
    granter: Arc<FileGranter>,
    counters: Arc<Counters>,
}

impl DataEngine {
    /// Creates an engine whose frames come from `pool`; `table`, if any, grants them to programs.
    pub fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        pool: Pool,
        table: Option<Arc<dyn FrameGranter>>,
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
            granter: Arc::new(FileGranter::new(runtime, frames.clone(), table)),
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

    /// Outcomes of peer requests, for the files' homes.
    pub fn reports(&self) -> &Arc<HolderReports> {
        self.peers.reports()
    }

    /// Returns the view's counters.
    pub fn counters(&self) -> Vec<Counter> {
        self.counters.report()
    }

    /// Opens a file and returns its data, and true if the kernel's cached pages are still valid. Cached bytes of a version other than
    /// `version` are dropped.
    pub fn open(
        &self,
        inode: InodeId,
        layout: Layout,
        home: Home,
        version: FileVersion,
        mode: OpenMode,
    ) -> (Arc<FileData>, bool) {
        let epoch = self.homes.cluster().epoch();
        self.files.open(inode, (layout, epoch), home, version, mode.beside_kernel)
    }

    /// Returns the data of a file that is open on this node or still cached.
    pub fn find(&self, inode: InodeId) -> Option<Arc<FileData>> {
        self.files.find(inode)
    }

    /// Returns the number of the file's bytes in this node's memory.
    pub fn bytes_in_memory(&self, inode: InodeId) -> u64 {
        self.find(inode).map_or(0, |file| file.bytes_in_memory())
    }

    /// Closes one handle. A file without handles stays cached until its frames are needed.
    pub fn close(&self, file: &FileData) {
        file.closed();
        self.files.drop_if_idle(file);
    }

    /// Drops the file's cached bytes.
    pub fn forget(&self, inode: InodeId) {
        if let Some(file) = self.find(inode) {
            file.invalidate();
            self.files.drop_if_idle(&file);
        }
    }

    /// Reads at most `length` bytes (at most a unit's size) at `offset`; fewer only at the end of the file.
    pub async fn read(&self, file: &Arc<FileData>, offset: u64, length: u32) -> Result<ReadBytes> {
        self.reader.read(file, offset, length).await
    }

    /// Returns the location at which a program of this host can read `length` bytes at `offset` directly. `None` unless they all belong to
    /// one unit that its home holds whole and this node has no bytes of.
    pub async fn locate(&self, file: &Arc<FileData>, offset: u64, length: u32) -> Option<Located> {
        self.locator.locate(file, offset, length, None).await
    }

    /// Writes `data` at `offset`; every later read on this node sees it.
    ///
    /// # Errors
    /// `EFBIG` beyond the largest file. The next flush reports failures to send to the homes.
    pub async fn write(&self, file: &Arc<FileData>, offset: u64, data: &[u8]) -> Result<()> {
        self.writer.write(file, offset, data).await
    }

    /// Writes as much of `data`, from its start, as it can without waiting for frames; returns the number of bytes.
    pub fn write_now(&self, file: &Arc<FileData>, offset: u64, data: &dyn WriteBytes) -> Result<usize> {
        self.writer.write_now(file, offset, data)
    }

    /// Appends `data` at the end of the file, after the appends of other nodes.
    pub async fn append(&self, file: &Arc<FileData>, data: &[u8]) -> Result<()> {
        self.flusher.flush_new(file).await?;
        let offset = self.homes.reserve(&file.home(), file.inode, data.len() as u64).await?;
        // The end of the file is now `offset`: bytes that other nodes appended before it are no hole.
        file.grown(offset);
        self.write(file, offset, data).await
    }

    /// Takes a frame, and waits until one is free or clean.
    pub(crate) async fn take_frame(&self) -> Frame {
        self.writer.take_frame().await
    }

    /// Returns a frame, if one is free or clean.
    pub fn frame_now(&self) -> Option<Frame> {
        self.frames.take_now()
    }

    /// Sends all acknowledged writes and commits them to the home; every later open on any node sees them. With `durable` they also survive
    /// power loss. [`FileData::report_faults`] reports failures of single writes; the other writes still reach their homes. If a home is
    /// unreachable, the flush fails, and the next one retries.
    pub async fn flush(&self, file: &Arc<FileData>, durable: bool) -> Result<()> {
        self.flusher.flush(file, durable).await
    }

    /// Flushes writes made through a mapping after the last close, since no later close commits them. It logs a failure, as no program is
    /// left to receive it.
    pub async fn flush_mapped(&self, file: &Arc<FileData>, mode: OpenMode) {
        if mode.write
            && !file.is_flushed()
            && let Err(fault) = self.flush(file, false).await
        {
            log::error!("bytes written through a mapping of {} are not flushed: {fault}", file.inode);
        }
    }

    /// Truncates or extends the file: waits for writes in flight, drops bytes beyond `size`, then has `resize` change the size at the
    /// file's home.
    pub async fn resize<T>(
        &self,
        file: &Arc<FileData>,
        size: u64,
        resize: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // The home truncates only up to the size that it knows, so it must first know all writes in the units.
        self.flusher.flush_new(file).await?;
        self.flusher.settle_all(file).await;
        file.truncate(size);
        let resized = resize.await?;
        // Also drop bytes beyond the new size that were read during the resize.
        file.truncate(size);
        file.resized(size);
        Ok(resized)
    }

    /// Returns the client that allocates, punches and seeks space of files.
    pub(crate) fn space(&self) -> &SpaceClient {
        &self.space
    }

    /// Asks the home of an inode for its version.
    pub(crate) async fn version(&self, inode: InodeId) -> Result<FileVersion> {
        self.homes.version(inode).await
    }

    /// Serves a peer request: returns bytes of a unit if this node has them in memory, in this version and as the home has them.
    pub fn serve_peer(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> (ClientReply, Option<Payload>) {
        self.peer_server.serve(unit, range, generation)
    }

    /// Returns all bytes in memory that their homes also have.
    pub fn at_rest(&self) -> Vec<AtRest> {
        self.peer_server.at_rest()
    }

    pub(crate) fn grantable(&self, file: &Arc<FileData>) -> Grantable {
        Grantable::new(&self.granter, file)
    }
}

/// Splits `offset..offset + length` by unit: unit index, first byte in the unit, number of bytes.
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
