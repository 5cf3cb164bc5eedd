//! Requests of the data engine to files' homes.

use super::file::FileData;
use super::home::{FileVersion, Home};
use crate::replies::unexpected_reply;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Attr, Cluster, HomeId, HomeMap, InodeId, NodeId, Result, Timestamp, UnitId};
use tameike_fabric::{Answer, Destination, Rpc};
use tameike_io::{Frame, Payload, Runtime};

/// Client of the nodes that store files and their units.
pub(super) struct HomeClient {
    pub(super) runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    /// The epoch of the last map that excluded this node.
    excluded_in: Arc<AtomicU64>,
}

impl HomeClient {
    pub(super) fn new(runtime: Runtime, cluster: Arc<Cluster>, rpc: Arc<dyn Rpc>) -> Self {
        let excluded_in = Arc::new(AtomicU64::new(0));
        let (last, weak, node) = (excluded_in.clone(), Arc::downgrade(&cluster), rpc.local());
        cluster.watch(move || {
            let map = weak.upgrade().map(|cluster| cluster.map());
            if let Some(map) = map.filter(|map| map.excludes(node)) {
                last.fetch_max(map.epoch.0, Ordering::AcqRel);
            }
        });
        Self { runtime, cluster, rpc, excluded_in }
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn rpc(&self) -> &dyn Rpc {
        &*self.rpc
    }

    pub(super) fn of_unit(&self, file: &FileData, index: u64) -> HomeId {
        self.cluster.unit_home(file.layout, UnitId { inode: file.inode, index })
    }

    /// The homes of units with bytes of this range.
    pub(super) fn of_bytes(&self, file: &FileData, bytes: Range<u64>) -> Vec<HomeId> {
        let most = self.cluster.map().count() as usize;
        let units = bytes.start / UNIT_SIZE as u64..bytes.end.div_ceil(UNIT_SIZE as u64);
        units.take(most).map(|index| self.of_unit(file, index)).collect()
    }

    /// The node that serves a unit now.
    pub(super) fn node_of_unit(&self, file: &FileData, index: u64) -> NodeId {
        self.cluster.primary(self.of_unit(file, index))
    }

    /// The node that serves the home of an inode now.
    pub(super) fn node_of_inode(&self, inode: InodeId) -> NodeId {
        self.cluster.primary(self.cluster.inode_home(inode))
    }

    pub(super) fn is_local(&self, file: &FileData, index: u64) -> bool {
        self.node_of_unit(file, index) == self.rpc.local()
    }

    /// Returns the nodes of a file's units with bytes of this range, each with its first byte of the range.
    pub(super) fn nodes(&self, map: &HomeMap, file: &FileData, bytes: Range<u64>) -> Vec<(NodeId, u64)> {
        let unit_size = UNIT_SIZE as u64;
        let units = bytes.start / unit_size..bytes.end.div_ceil(unit_size);
        let nodes = self.cluster.nodes_of_units(map, file.layout, file.inode, units);
        nodes.into_iter().map(|(node, index)| (node, bytes.start.max(index * unit_size))).collect()
    }

    /// Sends a request that has a payload, or whose reply has one.
    pub(super) async fn call(
        &self,
        to: HomeId,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> Result<Answer> {
        self.rpc.call(to.into(), request, payload, into).await
    }

    /// Sends a request without payload.
    pub(super) async fn ask(&self, to: impl Into<Destination>, request: Request) -> Result<Answer> {
        self.rpc.call(to.into(), request, None, None).await
    }

    /// Commits the size `end` to the home, after the units have the data, and whether the file may have holes. An inode's home returns its
    /// attributes.
    pub(super) async fn commit(
        &self,
        home: &Home,
        inode: InodeId,
        (end, sparse): (u64, bool),
        now: Timestamp,
    ) -> Result<(FileVersion, Option<Attr>)> {
        let to = self.cluster.inode_home(inode);
        let request = match home {
            Home::Inode => Request::Meta(MetaRequest::Execute(Command::Commit { inode, end, sparse, now })),
            Home::Shared(_) => Request::Cache(CacheRequest::Commit { inode, end, sparse, now }),
        };
        let answer = self.ask(to, request).await?;
        match answer.reply {
            Reply::Meta(MetaReply::Node(node)) => Ok((FileVersion::of_node(&node), Some(node.attr))),
            Reply::Cache(CacheReply::State(state)) => Ok((FileVersion::of_cache(state, end), None)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Checks that a file was not removed before a read of its units has ended, which reads zeros then: homes drop the opens of an excluded
    /// node.
    ///
    /// # Errors
    /// `ESTALE` if it was.
    pub(super) async fn check_exists(&self, file: &FileData) -> Result<()> {
        let may_be_gone = file.opened_in.0 <= self.excluded_in.load(Ordering::Acquire);
        if may_be_gone { self.version(file.inode).await.map(drop) } else { Ok(()) }
    }

    pub(super) async fn version(&self, inode: InodeId) -> Result<FileVersion> {
        let request = Request::Meta(MetaRequest::GetAttr { inode });
        let answer = self.ask(self.cluster.inode_home(inode), request).await?;
        match answer.reply {
            Reply::Meta(MetaReply::Node(node)) => Ok(FileVersion::of_node(&node)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Reserves the next `length` bytes at the file's end and returns their offset.
    pub(super) async fn reserve(&self, home: &Home, inode: InodeId, length: u64) -> Result<u64> {
        let now = self.runtime.now();
        let request = match home {
            Home::Inode => Request::Meta(MetaRequest::Execute(Command::Reserve { inode, length, now })),
            Home::Shared(_) => Request::Cache(CacheRequest::Reserve { inode, length, now }),
        };
        let answer = self.ask(self.cluster.inode_home(inode), request).await?;
        match answer.reply {
            Reply::Meta(MetaReply::Reserved { offset, .. })
            | Reply::Cache(CacheReply::Reserved { offset, .. }) => Ok(offset),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Has the coordinator search for a file of the shared file system that was not at its path, and stores its new path.
    pub(super) async fn locate_again(&self, path: &Mutex<Vec<u8>>, inode: InodeId) -> Result<()> {
        let request = Request::Cache(CacheRequest::Locate { inode });
        let answer = self.ask(self.cluster.inode_home(inode), request).await?;
        match answer.reply {
            Reply::Cache(CacheReply::Located { path: found }) => *path.lock() = found,
            other => return Err(unexpected_reply(&other)),
        }
        Ok(())
    }

    /// Makes the data that the home has acknowledged durable.
    pub(super) async fn sync_home(&self, home: &Home, inode: InodeId) -> Result<()> {
        let to = self.cluster.inode_home(inode);
        let request = match home {
            Home::Inode => Request::Meta(MetaRequest::Sync { durable: true }),
            Home::Shared(_) => Request::Cache(CacheRequest::Flush { inode }),
        };
        self.ask(to, request).await.map(drop)
    }
}
