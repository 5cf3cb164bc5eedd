//! Job-shared view: one name space over all agents. A node without a device also serves its node-local view from here, under a root pinned
//! to another node.
//!
//! The view is not authoritative for names. It sends each lookup to the entry's home, unless the node holds a lease on the name. Cached
//! directory state is a hint that replies from the homes correct.

mod attributes;
mod directory;
mod leases;
mod listing;
mod names;
mod opens;
mod shown;
#[cfg(test)]
mod tests;
mod view;
mod xattrs;

use crate::data::{DataEngine, FileData, ReportedFaults};
use crate::directory::OpenDirs;
use crate::locks::FileLocks;
use crate::replies::unexpected_reply;
use crate::types::{FileNumber, HandleNumber, OpenMode};
use directory::DirectoryCache;
use leases::NameLeases;
use opens::Closer;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::wire::meta::{MetaReply, MetaRequest, Node, OpenId};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, HomeId, InodeId, NodeId, Result};
use tameike_fabric::{Destination, MapLease, Rpc};
use tameike_io::Runtime;

#[derive(Clone)]
struct Handle {
    file: Arc<FileData>,
    mode: OpenMode,
    open: OpenId,
    reported: Arc<ReportedFaults>,
}

/// The job-shared view of one node.
pub struct SharedView {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    engine: Arc<DataEngine>,
    root: InodeId,
    directories: DirectoryCache,
    open_dirs: OpenDirs<InodeId>,
    handles: Mutex<BTreeMap<HandleNumber, Handle>>,
    next_handle: AtomicU64,
    leases: Arc<NameLeases>,
    closer: Arc<Closer>,
    /// None in the node-local view: the node's kernel sees all locks.
    locks: Option<Arc<FileLocks>>,
}

impl SharedView {
    /// Creates the view with the root directory `root`. `lease` is the node's lease of the home map.
    pub fn new(
        runtime: Runtime,
        cluster: Arc<Cluster>,
        rpc: Arc<dyn Rpc>,
        engine: Arc<DataEngine>,
        root: InodeId,
        lease: Arc<MapLease>,
    ) -> Self {
        let locks =
            (root == InodeId::ROOT).then(|| FileLocks::new(runtime.clone(), cluster.clone(), rpc.clone()));
        let (leases, reports) = (Arc::new(NameLeases::new(lease)), engine.reports().clone());
        Self {
            locks,
            closer: Arc::new(Closer::new(
                runtime.clone(),
                cluster.clone(),
                rpc.clone(),
                leases.clone(),
                reports,
            )),
            runtime,
            cluster,
            rpc,
            engine,
            root,
            directories: DirectoryCache::default(),
            open_dirs: OpenDirs::default(),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            leases,
        }
    }

    /// Drops the lease on an inode that another node has changed or renamed.
    pub fn revoke(&self, inode: InodeId) {
        self.leases.changed(inode);
    }

    /// Hides all names from programs, which then send requests: this node's lease of the home map has ended before its time.
    pub fn hide_names(&self) {
        self.leases.hide_all();
    }

    /// Takes note that this node's lease of the home map was renewed, and whether it has continued.
    pub fn lease_renewed(&self, continues: bool) {
        self.leases.map_renewed(continues);
    }

    /// Drops leases and cached state that come from homes which have moved to other nodes. Call it before the next primaries serve them.
    pub fn homes_moved(&self, moved: impl Fn(HomeId) -> bool) {
        let has_moved = |inode| moved(self.cluster.inode_home(inode));
        self.leases.homes_moved(has_moved);
        self.directories.homes_moved(|dir| has_moved(dir) || moved(self.cluster.children_home(dir)));
    }

    /// The opens of handles at homes that are `wanted`. Call it after the home map has changed: opens that a home counts under the earlier map are
    /// then either among them, or sent again.
    pub fn opens(&self, wanted: impl Fn(HomeId) -> bool) -> Vec<(InodeId, OpenId)> {
        let handles = self.handles.lock();
        let opens = handles.values().map(|handle| (handle.file.inode, handle.open));
        opens.filter(|(inode, _)| wanted(self.cluster.inode_home(*inode))).collect()
    }

    /// Sends what programs have written to open files to the homes, durably. Programs may write more meanwhile.
    ///
    /// # Errors
    /// The first fault; other files are flushed all the same.
    pub async fn flush_all(&self) -> Result<()> {
        let written: BTreeMap<_, _> = {
            let handles = self.handles.lock();
            let written = handles.values().filter(|handle| handle.mode.write);
            written.map(|handle| (handle.file.inode, handle.file.clone())).collect()
        };
        let mut outcome = Ok(());
        for (inode, file) in written {
            let flushed = self.flush_file(&file, true).await;
            outcome = outcome.and(flushed.map_err(|fault| fault.context(format_args!("flushing {inode}"))));
        }
        outcome
    }

    fn inode(&self, file: FileNumber) -> InodeId {
        if file == FileNumber::ROOT { self.root } else { InodeId(file.0) }
    }

    fn number(&self, inode: InodeId) -> FileNumber {
        shown::number(self.root, inode)
    }

    fn local(&self) -> NodeId {
        self.rpc.local()
    }

    async fn ask(&self, to: impl Into<Destination>, request: MetaRequest) -> Result<MetaReply> {
        let answer = self.rpc.call(to.into(), Request::Meta(request), None, None).await?;
        match answer.reply {
            Reply::Meta(reply) => Ok(reply),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn ask_home(&self, inode: InodeId, request: MetaRequest) -> Result<MetaReply> {
        self.ask(self.cluster.inode_home(inode), request).await
    }

    async fn ask_node(&self, inode: InodeId, request: MetaRequest) -> Result<Node> {
        match self.ask_home(inode, request).await? {
            MetaReply::Node(node) => Ok(node),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn ask_bytes(&self, inode: InodeId, request: MetaRequest) -> Result<Vec<u8>> {
        match self.ask_home(inode, request).await? {
            MetaReply::Bytes(bytes) => Ok(bytes.into_vec()),
            other => Err(unexpected_reply(&other)),
        }
    }

    fn add_handle(&self, file: Arc<FileData>, mode: OpenMode, open: OpenId) -> HandleNumber {
        let number = HandleNumber(self.next_handle.fetch_add(1, Ordering::Relaxed));
        let reported = Arc::new(file.reported_faults());
        self.handles.lock().insert(number, Handle { file, mode, open, reported });
        number
    }

    fn handle(&self, number: HandleNumber) -> Result<Handle> {
        self.handles.lock().get(&number).cloned().ok_or_else(|| Errno::EBADF.into())
    }
}
