//! Attributes of the job-shared view. They come from three sources:
//!
//! - the inode's home;
//! - for a directory's times and counts, the homes of its children;
//! - for the size of a file that this node writes, the data engine.

use super::SharedView;
use super::leases::RequestStart;
use crate::data::{FileData, FileVersion, dense_blocks};
use crate::replies::unexpected_reply;
use crate::types::{FileNumber, ViewSpace};
use futures_util::future::try_join_all;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::admin::{AdminReply, AdminRequest};
use tameike_core::wire::meta::{Command, DirStat, MetaReply, MetaRequest, Node};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Attr, Errno, Fault, FileKind, HomeMap, InodeId, Layout, NodeId, Result, View};
use tameike_fabric::{Destination, under_one_map};

/// Number of replies that may be overtaken by this node's own reports before the next reply is used unconditionally.
const OVERTAKEN_MAX: u32 = 2;

impl SharedView {
    pub(super) async fn set_layout(&self, file: FileNumber, value: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(value).unwrap_or("?").trim_end_matches(['\0', '\n']);
        let layout: Layout = text.parse().map_err(|wrong: String| Fault::new(Errno::EINVAL, wrong))?;
        let inode = self.inode(file);
        let kind = self.attributes(inode).await?.kind;
        if kind != FileKind::Directory {
            let why = "set the layout on a directory: files created in it later inherit it";
            return Err(Fault::new(Errno::ENOTDIR, why));
        }
        let change = AttrChange { layout: Some(layout), ..AttrChange::default() };
        self.change(inode, change).await.map(drop)
    }

    /// Returns the complete attributes of an inode of any kind.
    pub(super) async fn attributes(&self, inode: InodeId) -> Result<Attr> {
        if let Some(attr) = self.directories.fresh_attr(inode, self.runtime.clock.monotonic()) {
            return self.with_children(attr).await;
        }
        let start = self.leases.start_request(self.runtime.clock.monotonic());
        if let Some(attr) = self.leases.attr(inode, self.runtime.clock.monotonic())
            && let Some(attr) = self.complete_newest(Node::of(attr), &start).await?
        {
            return Ok(attr);
        }
        for _ in 0..OVERTAKEN_MAX {
            let start = self.leases.start_request(self.runtime.clock.monotonic());
            let node = self.ask_node(inode, MetaRequest::GetAttr { inode }).await?;
            if let Some(attr) = self.complete_newest(node, &start).await? {
                return Ok(attr);
            }
        }
        self.complete(self.ask_node(inode, MetaRequest::GetAttr { inode }).await?).await
    }

    /// Completes attributes requested at `start` or later. Returns None if this node has reported a change to the home meanwhile: a new
    /// request returns it.
    pub(super) async fn complete_newest(&self, node: Node, start: &RequestStart) -> Result<Option<Attr>> {
        if self.is_outdated(&node.attr) {
            return Ok(None);
        }
        let attr = self.complete(node).await?;
        let is_overtaken = attr.kind == FileKind::File && self.leases.is_overtaken(attr.inode, start);
        Ok((!is_overtaken).then_some(attr))
    }

    /// Returns true if this node has reported a newer version of the file to the home: the size and times predate local writes.
    fn is_outdated(&self, attr: &Attr) -> bool {
        attr.kind == FileKind::File
            && self.engine.find(attr.inode).is_some_and(|file| file.is_beyond(attr.generation))
    }

    /// Adds local state that the home does not have.
    pub(super) async fn complete(&self, node: Node) -> Result<Attr> {
        let version = FileVersion::of_node(&node);
        let mut attr = node.attr;
        match attr.kind {
            FileKind::Directory => {
                self.directories.learn(&attr, self.runtime.clock.monotonic());
                return self.with_children(attr).await;
            }
            FileKind::File => {
                if let Some(file) = self.engine.find(attr.inode) {
                    file.refresh(version);
                    if let Some((size, time)) = file.newer() {
                        (attr.size, attr.mtime) = (size, attr.mtime.max(time));
                        attr.ctime = attr.ctime.max(time);
                    }
                    self.show_accesses(&file, &mut attr);
                } else {
                    self.closer.show_accesses(&mut attr);
                }
                attr.blocks = self.blocks(&attr).await;
            }
            _ => {}
        }
        Ok(attr)
    }

    /// Adds local accesses that the home may lack.
    pub(super) fn show_accesses(&self, file: &FileData, attr: &mut Attr) {
        // Read before the accesses of closed handles: an access that moves between the two counts twice instead of never.
        let last = file.unreported_access();
        self.closer.show_accesses(attr);
        if let Some(access) = last {
            access.show_in(attr);
        }
        file.learn_times(attr.times());
    }

    /// Returns the file's block count. If its homes are unreachable, returns the dense count, so that stat works after a loss of data.
    async fn blocks(&self, attr: &Attr) -> u64 {
        let file = self.engine.find(attr.inode);
        let has_holes = attr.sparse || file.as_ref().is_some_and(|file| file.has_holes());
        let dense = dense_blocks(attr.size);
        if attr.inline || !has_holes {
            return dense;
        }
        let unsent = file.map_or(0, |file| file.unsent_blocks());
        match self.engine.space().usage(attr.inode, attr.layout).await {
            // Unsent blocks may overwrite stored ones.
            Ok(used) => used.max((used + unsent).min(dense)),
            Err(_) => dense,
        }
    }

    /// Adds to a directory's attributes what the homes of its children know.
    async fn with_children(&self, mut attr: Attr) -> Result<Attr> {
        let stat = self.directory_stat(attr.inode).await?;
        attr.nlink = u32::try_from(2 + stat.subdirs).unwrap_or(u32::MAX);
        attr.size = (stat.entries * 64).next_multiple_of(BLOCK_SIZE as u64).max(BLOCK_SIZE as u64);
        attr.blocks = attr.size / 512;
        attr.mtime = attr.mtime.max(stat.changed);
        attr.ctime = attr.ctime.max(stat.changed);
        Ok(attr)
    }

    async fn directory_stat(&self, dir: InodeId) -> Result<DirStat> {
        let sharded = self.directories.is_sharded(dir) && dir.pinned_node().is_none();
        let nodes = self.children_nodes(&self.cluster.map(), dir, sharded);
        if let Some(stat) = self.directories.fresh_stat(dir, &nodes, self.runtime.clock.monotonic()) {
            return Ok(stat);
        }
        self.fetch_directory_stat(dir).await
    }

    /// Returns the nodes with entries of a directory.
    fn children_nodes(&self, map: &HomeMap, dir: InodeId, sharded: bool) -> Vec<NodeId> {
        match sharded {
            true => map.nodes().to_vec(),
            false => vec![map.primary(self.cluster.children_home(dir))],
        }
    }

    /// Requests a directory's times and counts from the homes of its children.
    pub(super) async fn fetch_directory_stat(&self, dir: InodeId) -> Result<DirStat> {
        under_one_map(&self.cluster, |map| self.fetch_directory_stat_under(map, dir)).await
    }

    async fn fetch_directory_stat_under(&self, map: Arc<HomeMap>, dir: InodeId) -> Result<DirStat> {
        if !self.directories.is_sharded(dir) {
            let home = self.cluster.children_home(dir);
            let stat = self.ask_directory_stat(home.into(), dir).await?;
            if !stat.sharded {
                self.directories.set_part(dir, map.primary(home), stat, self.runtime.clock.monotonic());
                return Ok(stat);
            }
            self.directories.set_sharded(dir, true);
        }
        let ask = |&node| self.ask_directory_stat(Destination::Primary(node, map.epoch), dir);
        let parts = try_join_all(map.nodes().iter().map(ask)).await?;
        let (mut all, now) = (DirStat::default(), self.runtime.clock.monotonic());
        for (&node, part) in map.nodes().iter().zip(parts) {
            self.directories.set_part(dir, node, part, now);
            all.gather(part);
        }
        Ok(all)
    }

    /// Requests the state of a directory at its home, or at all homes of a node if it is sharded.
    async fn ask_directory_stat(&self, to: Destination, dir: InodeId) -> Result<DirStat> {
        match self.ask(to, MetaRequest::DirStat { dir }).await? {
            MetaReply::DirStat(stat) => Ok(stat),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(super) async fn change(&self, inode: InodeId, change: AttrChange) -> Result<Attr> {
        let resized = change.size;
        if change.atime.is_some() {
            // The new access time overrides earlier reads.
            if let Some(file) = self.engine.find(inode) {
                file.forget_access();
            }
            self.closer.forget_accesses(inode);
        }
        let command = Command::SetAttr { inode, change, now: self.runtime.now() };
        let change_home = self.ask_node(inode, MetaRequest::Execute(command));
        let changed = match (resized, self.engine.find(inode)) {
            (Some(size), Some(file)) => self.engine.resize(&file, size, change_home).await,
            _ => {
                // A pending write must not overwrite times that a program sets.
                if let Some(file) = self.engine.find(inode).filter(|file| file.newer().is_some()) {
                    self.engine.flush(&file, false).await?;
                }
                change_home.await
            }
        };
        // New directory times must be visible before the cached state expires. A failed request may have changed something too.
        self.directories.changed(inode);
        self.leases.changed(inode);
        self.complete(changed?).await
    }

    /// Sums the view's capacity and usage over all device nodes.
    pub(super) async fn gather_space(&self) -> Result<ViewSpace> {
        let map = self.cluster.map();
        let (view, nodes) = match self.root.pinned_node() {
            Some(_) => (View::NodeLocal, vec![map.primary(self.cluster.inode_home(self.root))]),
            None => (View::JobShared, map.nodes().to_vec()),
        };
        let request = Request::Admin(AdminRequest::Space { view });
        let answers = nodes.into_iter().map(|node| self.rpc.call(node.into(), request.clone(), None, None));
        let mut space = ViewSpace::default();
        for answer in try_join_all(answers).await? {
            let Reply::Admin(AdminReply::Space(part)) = answer.reply else {
                return Err(unexpected_reply(&answer.reply));
            };
            space.capacity += part.capacity;
            space.free += part.capacity.saturating_sub(part.used);
            space.inodes += part.inodes;
        }
        // A file takes space on as many nodes.
        let replicas = self.cluster.replicas() as u64;
        (space.capacity, space.free) = (space.capacity / replicas, space.free / replicas);
        // Only free space limits the number of inodes.
        space.inodes_free = space.free / BLOCK_SIZE as u64;
        Ok(space)
    }
}
