//! The cache view: the tree of the shared file system, with its data in the job's pool.
//!
//! Names and attributes pass through. Content is read and written through the data engine; what the shared
//! file system cannot know yet (size and time of files with dirty data) comes from the file's coordinator.

mod content;
mod moved;
mod opens;
mod removal;
mod sparse;
mod view;
mod warm;

use crate::data::{DataEngine, FileVersion, dense_blocks};
use crate::locks::FileLocks;
use crate::passthrough::{Identity, Passthrough, Waiting};
use crate::types::{FileNumber, HandleNumber};
pub use warm::Warming;

use opens::{OpenFile, Opens};
use std::sync::Arc;
use tameike_core::wire::Reply;
use tameike_core::wire::Request;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState};
use tameike_core::{Attr, Cluster, Errno, Fault, FileKind, InodeId, Layout, NodeId, Result};
use tameike_fabric::Rpc;
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
    /// The view of the tree `fs`.
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

    async fn ask(&self, to: NodeId, request: CacheRequest) -> Result<CacheReply> {
        let answer = self.rpc.call(to, Request::Cache(request), None, None).await?;
        match answer.reply {
            Reply::Cache(reply) => Ok(reply),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Asks the file's coordinator for a change or a look; the file's state after.
    async fn ask_state(&self, inode: InodeId, request: CacheRequest) -> Result<CacheState> {
        match self.ask(self.cluster.inode_home(inode), request).await? {
            CacheReply::State(state) | CacheReply::Reserved { state, .. } => Ok(state),
            other => Err(out_of_turn(&other)),
        }
    }

    async fn tell(&self, inode: InodeId, request: CacheRequest) -> Result<()> {
        self.ask(self.cluster.inode_home(inode), request).await.map(drop)
    }

    /// Adds to attributes what the job knows beyond the shared file system.
    async fn overlay(&self, stat: &FileStat) -> Result<Attr> {
        self.overlay_file(&Identity::of(stat), stat.attr()).await
    }

    async fn overlay_file(&self, file: &Identity, attr: Attr) -> Result<Attr> {
        if let Some(stat) = self.stat_orphan(file).await? {
            return Ok(stat.attr());
        }
        let attr = self.with_news(file, attr).await?;
        // When it was removed meanwhile, its coordinator knows nothing more of it: not that the attributes are from before its
        // content came to the shared file.
        Ok(self.stat_orphan(file).await?.map_or(attr, |stat| stat.attr()))
    }

    async fn with_news(&self, file: &Identity, mut attr: Attr) -> Result<Attr> {
        if attr.kind != FileKind::File {
            return Ok(attr);
        }
        let inode = file.inode;
        if let Some(open) = self.removed_elsewhere(file, &attr) {
            attr.size = open.data.size();
            return Ok(attr);
        }
        let look = CacheRequest::State { inode, size: attr.size, mtime: attr.mtime };
        let mut state = self.ask_state(inode, look.clone()).await?;
        if self.engine.find(inode).is_some_and(|data| data.is_beyond(state.generation)) {
            // It was overtaken by what this node has told the coordinator meanwhile; the next one cannot be.
            state = self.ask_state(inode, look).await?;
        }
        let mut newer = state.newer;
        // The attributes may be from before another file got the inode number: that one's data does not take them.
        if let Some(open) = self.opens.of_file(file) {
            open.data.refresh(version(state, attr.size));
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

    /// What is open here of a file that another node has removed. What the job knew of it is gone with its last name;
    /// this node goes by what it had: a file that was cut to nothing would be something else.
    fn removed_elsewhere(&self, file: &Identity, attr: &Attr) -> Option<Arc<OpenFile>> {
        let open = if attr.nlink == 0 { self.opens.of_file(file) } else { None };
        open.filter(|open| !open.is_orphan())
    }

    /// Space that a file of `size` bytes takes, of which the shared file, with these attributes, lacks something. Where
    /// it has holes, what the pool has of it may fill some of them.
    async fn blocks(&self, shared: &Attr, size: u64, sparse: bool) -> u64 {
        let file = self.engine.find(shared.inode);
        let has_holes =
            sparse || shared.blocks * 512 < shared.size || file.as_ref().is_some_and(|file| file.has_holes());
        let dense = dense_blocks(size);
        if !has_holes {
            return shared.blocks.max(dense);
        }
        let unsent = file.map_or(0, |file| file.unsent_blocks());
        match self.engine.usage(shared.inode, Layout::Striped).await {
            Ok(dirty) => shared.blocks.max((shared.blocks + dirty + unsent).min(dense)),
            Err(_) => shared.blocks.max(dense),
        }
    }

    /// Attributes of the shared file: by name, or of an open file that has lost its names.
    async fn stat(&self, file: FileNumber) -> Result<FileStat> {
        let id = self.below.identity(file);
        if let Some(stat) = self.stat_orphan(&id).await? {
            return Ok(stat);
        }
        match (self.below.stat(file).await, self.opens.of_file(&id)) {
            // Another node has moved or removed what is open here.
            (Err(fault), Some(open)) if matches!(fault.errno, Errno::ENOENT | Errno::ESTALE) => {
                self.below.run(move |_| open.shared.stat()).await
            }
            (stat, _) => stat,
        }
    }

    /// Attributes of an open file that has lost its last name.
    async fn stat_orphan(&self, file: &Identity) -> Result<Option<FileStat>> {
        match self.opens.of_file(file).filter(|open| open.is_orphan()) {
            Some(open) => self.below.run(move |_| open.shared.stat()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Open files follow a file or directory that has lost or got a name.
    fn refresh_paths(&self, renamed: &FileStat) {
        if renamed.kind == FileKind::Directory {
            return self.refresh_all_paths();
        }
        for open in self.opens.all_of(&Identity::of(renamed)) {
            open.refresh_path(|file| self.path_of_open(file));
        }
    }

    /// As [`Self::refresh_paths`], of whatever was renamed.
    fn refresh_all_paths(&self) {
        self.opens.refresh_paths(|file| self.path_of_open(file));
    }

    fn path_of_open(&self, file: &Identity) -> Option<Vec<u8>> {
        self.below.path(self.below.number_of(file)?).ok()
    }

    fn handle(&self, handle: HandleNumber) -> Result<Arc<OpenFile>> {
        self.opens.get(handle).ok_or_else(|| Errno::EBADF.into())
    }
}

fn out_of_turn(reply: &impl std::fmt::Debug) -> Fault {
    Fault::new(Errno::EPROTO, format!("an agent answered out of turn: {reply:?}"))
}

/// What a coordinator's answer says of the content of a file whose shared file has `size` bytes.
fn version(state: CacheState, size: u64) -> FileVersion {
    let size = state.newer.map_or(size, |(newer, _)| newer);
    FileVersion { size, generation: state.generation, ..FileVersion::default() }
}
