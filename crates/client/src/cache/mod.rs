//! Cache view: the tree of the shared file system, with file content cached in the job's pool.
//!
//! Names and attributes pass through to the shared file system. Reads and writes of content use the data engine. Each file's coordinator
//! supplies what the shared file system lacks: size and time of files with dirty data.

mod content;
mod moved;
mod opens;
mod removal;
mod sparse;
#[cfg(test)]
mod tests;
mod view;
mod warm;

use crate::data::{DataEngine, FileVersion, dense_blocks};
use crate::locks::FileLocks;
use crate::passthrough::{Identity, Passthrough, Waiting};
use crate::replies::unexpected_reply;
use crate::types::{FileNumber, HandleNumber};
pub use warm::Warming;

use opens::{OpenFile, Opens};
use std::sync::Arc;
use tameike_core::wire::Reply;
use tameike_core::wire::Request;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState};
use tameike_core::wire::reclaim;
use tameike_core::{Attr, Cluster, Errno, FileKind, HomeId, InodeId, Layout, Result};
use tameike_fabric::{Destination, Rpc};
use tameike_io::Runtime;
use tameike_io::shared::{FileStat, SharedFs};

/// The cache view of one node.
pub struct CacheView {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    engine: Arc<DataEngine>,
    below: Passthrough,
    opens: Opens,
    locks: Arc<FileLocks>,
}

impl CacheView {
    /// Creates the view of the tree `fs`.
    pub fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        engine: Arc<DataEngine>,
        fs: Arc<dyn SharedFs>,
    ) -> Self {
        let below = Passthrough::new(runtime.clone(), fs, Waiting::Apart);
        let locks = FileLocks::new(runtime.clone(), cluster.clone(), rpc.clone());
        Self { runtime, cluster, rpc, engine, below, opens: Opens::default(), locks }
    }

    /// The files that programs of this node have open or are opening, and whose coordinators' homes are `wanted`. Call it after the home map has
    /// changed. Files without names are missing: this node uses the shared files itself.
    pub fn open_files(&self, wanted: impl Fn(HomeId) -> bool) -> Vec<reclaim::OpenFile> {
        self.opens.named(|inode| wanted(self.cluster.inode_home(inode)))
    }

    async fn ask(&self, to: impl Into<Destination>, request: CacheRequest) -> Result<CacheReply> {
        let answer = self.rpc.call(to.into(), Request::Cache(request), None, None).await?;
        match answer.reply {
            Reply::Cache(reply) => Ok(reply),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a change or a state request to the file's coordinator. Returns the file's state after it.
    async fn ask_state(&self, inode: InodeId, request: CacheRequest) -> Result<CacheState> {
        match self.ask(self.cluster.inode_home(inode), request).await? {
            CacheReply::State(state) | CacheReply::Reserved { state, .. } => Ok(state),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a request to the file's coordinator.
    async fn notify(&self, inode: InodeId, request: CacheRequest) -> Result<()> {
        self.ask(self.cluster.inode_home(inode), request).await.map(drop)
    }

    /// Adds the job's newer state to attributes of the shared file system.
    async fn overlay(&self, stat: &FileStat) -> Result<Attr> {
        self.overlay_file(&Identity::of(stat), stat.attr()).await
    }

    async fn overlay_file(&self, file: &Identity, attr: Attr) -> Result<Attr> {
        if let Some(stat) = self.stat_orphan(file).await? {
            return Ok(stat.attr());
        }
        let attr = self.with_newer_state(file, attr).await?;
        // Check again: if another node removed the file meanwhile, the coordinator has dropped its state, and these attributes may predate
        // the writeback.
        Ok(self.stat_orphan(file).await?.map_or(attr, |stat| stat.attr()))
    }

    async fn with_newer_state(&self, file: &Identity, mut attr: Attr) -> Result<Attr> {
        if attr.kind != FileKind::File {
            return Ok(attr);
        }
        let inode = file.inode;
        if let Some(open) = self.removed_elsewhere(file, &attr) {
            attr.size = open.data.size();
            return Ok(attr);
        }
        let request = CacheRequest::State { inode, size: attr.size, mtime: attr.mtime };
        let mut state = self.ask_state(inode, request.clone()).await?;
        if self.engine.find(inode).is_some_and(|data| data.is_beyond(state.generation)) {
            // A report of this node overtook the reply; it cannot overtake the next one.
            state = self.ask_state(inode, request).await?;
        }
        let mut newer = state.newer;
        // If the inode number was reused, the old file's data must not take these attributes.
        if let Some(open) = self.opens.of_file(file) {
            open.data.refresh(FileVersion::of_cache(state, attr.size));
            newer = open.data.newer().map(|(size, time)| (size, time.max(attr.mtime))).or(newer);
        }
        if let Some((size, time)) = newer {
            attr.blocks = self.blocks(&attr, size, state.sparse).await;
            attr.size = size;
            attr.mtime = time;
            attr.ctime = attr.ctime.max(time);
        }
        Ok(attr)
    }

    /// Returns the open handle here of a file that another node has removed. The job's state went with the last name, so this node uses its
    /// own size; the size of the shared file may be too small.
    fn removed_elsewhere(&self, file: &Identity, attr: &Attr) -> Option<Arc<OpenFile>> {
        let open = if attr.nlink == 0 { self.opens.of_file(file) } else { None };
        open.filter(|open| !open.is_orphan())
    }

    /// Returns the block count of a file of `size` bytes whose shared file, with attributes `shared`, lacks dirty data. In a sparse file
    /// the dirty data may fill holes.
    async fn blocks(&self, shared: &Attr, size: u64, sparse: bool) -> u64 {
        let file = self.engine.find(shared.inode);
        let has_holes =
            sparse || shared.blocks * 512 < shared.size || file.as_ref().is_some_and(|file| file.has_holes());
        let dense = dense_blocks(size);
        if !has_holes {
            return shared.blocks.max(dense);
        }
        let unsent = file.map_or(0, |file| file.unsent_blocks());
        match self.engine.space().usage(shared.inode, Layout::Striped).await {
            Ok(dirty) => shared.blocks.max((shared.blocks + dirty + unsent).min(dense)),
            Err(_) => shared.blocks.max(dense),
        }
    }

    /// Stats the shared file by name, or through an open handle if it has no name any more.
    async fn stat(&self, file: FileNumber) -> Result<FileStat> {
        let id = self.below.identity(file);
        if let Some(stat) = self.stat_orphan(&id).await? {
            return Ok(stat);
        }
        match (self.below.stat(file).await, self.opens.of_file(&id)) {
            // Another node has moved or removed the open file.
            (Err(fault), Some(open)) if matches!(fault.errno, Errno::ENOENT | Errno::ESTALE) => {
                self.below.run(move |_| open.shared.stat()).await
            }
            (stat, _) => stat,
        }
    }

    /// Stats an open file that has lost its last name.
    async fn stat_orphan(&self, file: &Identity) -> Result<Option<FileStat>> {
        match self.opens.of_file(file).filter(|open| open.is_orphan()) {
            Some(open) => self.below.run(move |_| open.shared.stat()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Updates the paths of open files after a file or directory gained or lost a name.
    fn refresh_paths(&self, renamed: &FileStat) {
        if renamed.kind == FileKind::Directory {
            return self.refresh_all_paths();
        }
        for open in self.opens.all_of(&Identity::of(renamed)) {
            open.refresh_path(|file| self.path_of_open(file));
        }
    }

    fn refresh_all_paths(&self) {
        self.opens.refresh_paths(|file| self.path_of_open(file));
    }

    fn path_of_open(&self, file: &Identity) -> Option<Vec<u8>> {
        self.below.path(self.below.tree.number_of(file)?).ok()
    }

    fn handle(&self, handle: HandleNumber) -> Result<Arc<OpenFile>> {
        self.opens.get(handle).ok_or_else(|| Errno::EBADF.into())
    }
}
