//! A client of the service: selects the home of a request, and merges the parts of sharded directories.

use super::world::World;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::*;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Attr, DirOffset, FileKind, HomeId, InodeId, Layout, NodeId, Result, Timestamp};
use tameike_fabric::Destination;

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) node: NodeId,
}

pub(super) fn name(dir: InodeId, name: &str) -> EntryName {
    EntryName { dir, name: name.as_bytes().to_vec() }
}

pub(super) fn new(kind: FileKind) -> NewInode {
    let symlink = if kind == FileKind::Symlink { b"target".to_vec() } else { Vec::new() };
    NewInode { kind, mode: 0o644, uid: 1000, gid: 1000, rdev: 0, layout: Layout::Striped, symlink }
}

fn node(reply: MetaReply) -> Node {
    match reply {
        MetaReply::Node(node) => node,
        other => panic!("{other:?}"),
    }
}

impl Client {
    pub(super) fn now(&self) -> Timestamp {
        self.world.machine.runtime_of(0).now()
    }

    pub(super) async fn pass_time(&self) {
        self.world.machine.runtime_of(0).sleep(std::time::Duration::from_millis(1)).await;
    }

    pub(super) async fn request(
        &self,
        to: impl Into<Destination>,
        request: MetaRequest,
    ) -> Result<MetaReply> {
        let to = to.into();
        let to = (to.node(&self.world.cluster), to.home());
        match self.world.clone().deliver(self.node, to, Request::Meta(request)).await? {
            Reply::Meta(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request to the home of an entry. Assumes that directories are not sharded until a reply says otherwise.
    pub(super) async fn request_at_home(
        &self,
        entry: &EntryName,
        request: impl Fn(bool) -> MetaRequest,
    ) -> Result<MetaReply> {
        let mut sharded = false;
        loop {
            let home = self.world.cluster.entry_home(entry.dir, entry.offset(), sharded);
            match self.request(home, request(sharded)).await? {
                MetaReply::Sharding { sharded: actual } => {
                    assert_ne!(actual, sharded, "the reply repeats the sender's value");
                    sharded = actual;
                }
                reply => return Ok(reply),
            }
        }
    }

    pub(super) async fn lookup(&self, dir: InodeId, entry: &str) -> Result<Target> {
        let entry = name(dir, entry);
        let request = |sharded| MetaRequest::Lookup { entry: entry.clone(), sharded, view: false };
        match self.request_at_home(&entry, request).await? {
            MetaReply::Entry { target, .. } => Ok(target),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn create_as(
        &self,
        dir: InodeId,
        entry: &str,
        new: NewInode,
        exclusive: bool,
        opener: Option<Opener>,
    ) -> Result<(Target, Option<Node>, bool)> {
        let entry = name(dir, entry);
        let now = self.now();
        let request = |sharded| {
            let (entry, new) = (entry.clone(), new.clone());
            MetaRequest::Execute(Command::Create { entry, new, exclusive, opener, sharded, now })
        };
        match self.request_at_home(&entry, request).await? {
            MetaReply::Entry { target, node, created, .. } => Ok((target, node, created)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn create(&self, dir: InodeId, entry: &str, kind: FileKind) -> Result<InodeId> {
        self.create_as(dir, entry, new(kind), true, None).await.map(|(target, ..)| target.inode)
    }

    pub(super) async fn names(&self, entry: &EntryName, operation: NameOperation) -> Result<()> {
        let now = self.now();
        let request = |sharded| MetaRequest::Names { operation: operation.clone(), sharded, now };
        match self.request_at_home(entry, request).await? {
            MetaReply::Done | MetaReply::DirChanged(_) => Ok(()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn unlink(&self, dir: InodeId, entry: &str) -> Result<()> {
        let entry = name(dir, entry);
        self.names(&entry, NameOperation::Unlink { entry: entry.clone() }).await
    }

    pub(super) async fn rmdir(&self, dir: InodeId, entry: &str) -> Result<()> {
        let entry = name(dir, entry);
        self.names(&entry, NameOperation::Rmdir { entry: entry.clone() }).await
    }

    pub(super) async fn link(&self, target: Target, dir: InodeId, entry: &str) -> Result<()> {
        let entry = name(dir, entry);
        self.names(&entry, NameOperation::Link { entry: entry.clone(), target }).await
    }

    pub(super) async fn rename(
        &self,
        (from_dir, from): (InodeId, &str),
        (to_dir, to): (InodeId, &str),
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (name(from_dir, from), name(to_dir, to));
        self.names(&from, NameOperation::Rename { from: from.clone(), to: to.clone(), mode }).await
    }

    pub(super) async fn on_inode(&self, inode: InodeId, request: MetaRequest) -> Result<MetaReply> {
        self.request(self.world.cluster.inode_home(inode), request).await
    }

    pub(super) async fn change(&self, inode: InodeId, command: Command) -> Result<MetaReply> {
        self.on_inode(inode, MetaRequest::Execute(command)).await
    }

    pub(super) async fn set_attr(&self, inode: InodeId, change: AttrChange) -> Result<Attr> {
        let command = Command::SetAttr { inode, change, now: self.now() };
        self.change(inode, command).await.map(|reply| node(reply).attr)
    }

    pub(super) async fn write_inline(&self, inode: InodeId, offset: u32, data: &[u8]) -> Result<Attr> {
        let command = Command::WriteInline { inode, offset, data: data.to_vec(), now: self.now() };
        self.change(inode, command).await.map(|reply| node(reply).attr)
    }

    pub(super) async fn content(&self, inode: InodeId) -> Result<Vec<u8>> {
        let reply = self.on_inode(inode, MetaRequest::GetContent { inode }).await?;
        Ok(node(reply).content.expect("the content is inline").into_vec())
    }

    pub(super) fn opener(&self, open: u64) -> Opener {
        Opener { node: self.node, open: OpenId(open) }
    }

    pub(super) async fn open(&self, inode: InodeId, open: u64) -> Result<Node> {
        self.on_inode(inode, MetaRequest::Open { inode, opener: self.opener(open) }).await.map(node)
    }

    pub(super) async fn close(&self, inode: InodeId, open: u64) -> Result<()> {
        self.send_closes(inode, &[open], &[]).await
    }

    /// Sends closes and cancelled opens to the home of an inode.
    pub(super) async fn send_closes(&self, inode: InodeId, opens: &[u64], undone: &[u64]) -> Result<()> {
        let opens = opens.iter().map(|&open| Closed { open: OpenId(open), read: None }).collect();
        let undone = undone.iter().copied().map(OpenId).collect();
        self.close_at_home(self.world.cluster.inode_home(inode), opens, undone).await
    }

    /// Closes a file, with the time of its last read.
    pub(super) async fn close_read(&self, inode: InodeId, open: u64, time: Timestamp) -> Result<()> {
        let opens = vec![Closed { open: OpenId(open), read: Some(time) }];
        self.close_at_home(self.world.cluster.inode_home(inode), opens, Vec::new()).await
    }

    pub(super) async fn close_at_home(
        &self,
        home: HomeId,
        opens: Vec<Closed>,
        undone: Vec<OpenId>,
    ) -> Result<()> {
        let homes = vec![Closes { home, opens, undone }];
        let close = MetaRequest::Close { node: self.node, homes, holder_outcomes: Vec::new() };
        self.request(self.world.cluster.primary(home), close).await.map(drop)
    }

    async fn part(&self, to: impl Into<Destination>, dir: InodeId) -> Result<DirStat> {
        match self.request(to, MetaRequest::DirStat { dir }).await? {
            MetaReply::DirStat(stat) => Ok(stat),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn dir_stat(&self, dir: InodeId) -> Result<DirStat> {
        let mut stat = self.part(self.world.cluster.children_home(dir), dir).await?;
        if stat.sharded {
            stat = DirStat::default();
            for &node in self.world.cluster.device_nodes() {
                stat.gather(self.part(node, dir).await?);
            }
        }
        Ok(stat)
    }

    /// Returns attributes as a program sees them.
    pub(crate) async fn stat(&self, inode: InodeId) -> Result<Attr> {
        let mut attr = node(self.on_inode(inode, MetaRequest::GetAttr { inode }).await?).attr;
        if attr.kind == FileKind::Directory {
            let stat = self.dir_stat(inode).await?;
            attr.nlink += stat.subdirs as u32;
            attr.mtime = attr.mtime.max(stat.changed);
            attr.ctime = attr.ctime.max(stat.changed);
        }
        Ok(attr)
    }

    /// Reads all names of a directory, `limit` per request, ordered by offset.
    pub(super) async fn read_dir(&self, dir: InodeId, limit: u32) -> Result<Vec<DirEntry>> {
        let home = self.world.cluster.children_home(dir);
        let sharded = self.part(home, dir).await?.sharded;
        let nodes = self.world.cluster.device_nodes().iter();
        let parts: Vec<Destination> =
            if sharded { nodes.map(|&node| node.into()).collect() } else { vec![home.into()] };
        let mut all = Vec::new();
        for part in parts {
            let mut after = DirOffset::START;
            loop {
                let request = MetaRequest::ReadDir { dir, after, limit, sharded };
                match self.request(part, request).await? {
                    MetaReply::Entries { entries, end } => {
                        after = entries.last().map_or(after, |entry| entry.offset);
                        all.extend(entries);
                        if end {
                            break;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        all.sort_by_key(|entry| entry.offset);
        Ok(all)
    }
}
