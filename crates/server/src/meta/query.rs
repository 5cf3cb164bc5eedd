//! Read requests: lookups, attributes, directories.

use super::MetaService;
use serde_bytes::ByteBuf;
use tameike_core::limits::READDIR_ENTRIES_MAX;
use tameike_core::wire::meta::{DirStat, EntryName, MetaReply, Node, Opener};
use tameike_core::{Attr, DirOffset, Errno, FileKind, InodeId, NodeId, Result};
use tameike_store::meta::query as table;
use tameike_store::table::ReadTable;

impl MetaService {
    /// Looks up a name. `view` is the node whose view sent the request, which may get a lease.
    pub(super) async fn lookup(
        &self,
        entry: &EntryName,
        sharded: bool,
        view: Option<NodeId>,
    ) -> Result<MetaReply> {
        self.when_free(&[entry], |state| {
            if let Some(sharded) = self.correct_sharding(entry.dir, Some(entry.offset()), sharded)? {
                return Ok(MetaReply::Sharding { sharded });
            }
            let (target, node) = self.query(|names| {
                let Some(target) = table::entry(names, entry)? else {
                    return Err(missing(names, entry.dir)?.into());
                };
                Ok((target, node(names, target.inode, false)?))
            })?;
            let lease = view.is_some_and(|view| self.lease(state, entry.dir, target, node.as_ref(), view));
            Ok(MetaReply::Entry { target, node, created: false, dir: None, lease })
        })
        .await
    }

    /// Returns attributes. If the inode is a directory, `from` may cache them for a while.
    pub(super) fn get_attr(&self, inode: InodeId, from: NodeId) -> Result<MetaReply> {
        let mut state = self.state.lock();
        let reply = self.get_inode(inode, false)?;
        if let MetaReply::Node(Node { attr: Attr { kind: FileKind::Directory, .. }, .. }) = reply {
            state.leases.cached(inode, from, self.parts.runtime.clock.monotonic());
        }
        Ok(reply)
    }

    pub(super) fn get_content(&self, inode: InodeId) -> Result<MetaReply> {
        self.get_inode(inode, true)
    }

    fn get_inode(&self, inode: InodeId, with_content: bool) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let node = self.query(|names| node(names, inode, with_content))?;
        node.map(MetaReply::Node).ok_or(Errno::ESTALE.into())
    }

    pub(super) async fn dir_stat(&self, dir: InodeId) -> Result<DirStat> {
        self.when_free_dir(dir).await?;
        if self.query(|names| table::is_removed(names, dir))? {
            return Err(Errno::ESTALE.into());
        }
        self.children_stat(dir)
    }

    pub(super) async fn read_dir(
        &self,
        dir: InodeId,
        after: DirOffset,
        limit: u32,
        sharded: bool,
    ) -> Result<MetaReply> {
        self.when_free_dir(dir).await?;
        if let Some(sharded) = self.correct_sharding(dir, None, sharded)? {
            return Ok(MetaReply::Sharding { sharded });
        }
        let limit = limit.clamp(1, READDIR_ENTRIES_MAX) as usize;
        let (entries, end) = self.query(|names| table::entries(names, dir, after, limit))?;
        Ok(MetaReply::Entries { entries, end })
    }

    pub(super) fn parent(&self, inode: InodeId) -> Result<MetaReply> {
        self.check_inode(inode)?;
        match self.query(|names| table::inode(names, inode))? {
            Some(record) if record.kind == FileKind::Directory => Ok(MetaReply::Parent(record.parent)),
            Some(_) => Err(Errno::ENOTDIR.into()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    pub(super) fn read_link(&self, inode: InodeId) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let target = self.query(|names| table::symlink(names, inode))?;
        Ok(MetaReply::Bytes(ByteBuf::from(target)))
    }

    pub(super) fn open_inode(&self, inode: InodeId, opener: Opener) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let mut state = self.state.lock();
        state.check_opener(opener)?;
        let node = self.query(|names| node(names, inode, true))?;
        let mut node = node.ok_or(Errno::ESTALE)?;
        state.open(inode, opener);
        drop(state);
        self.add_holders(&mut node, opener.node);
        Ok(MetaReply::Node(node))
    }

    /// Adds the cache holders of a file to the reply to an open.
    pub(super) fn add_holders(&self, node: &mut Node, opener: NodeId) {
        let attr = &node.attr;
        if attr.kind == FileKind::File && !attr.inline {
            node.holders = self.parts.holders.opened(attr.inode, attr.generation, opener);
        }
    }

    pub(super) fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let value = self.query(|names| table::xattr(names, inode, name))?;
        Ok(MetaReply::Bytes(ByteBuf::from(value)))
    }

    pub(super) fn list_xattr(&self, inode: InodeId) -> Result<MetaReply> {
        self.check_inode(inode)?;
        let names = self.query(|names| table::xattr_names(names, inode))?;
        Ok(MetaReply::Names(names.into_iter().map(ByteBuf::from).collect()))
    }
}

/// Returns the errno for a missing name: ESTALE in a removed directory, so that the client looks it up again.
fn missing(names: &dyn ReadTable, dir: InodeId) -> Result<Errno> {
    Ok(if table::is_removed(names, dir)? { Errno::ESTALE } else { Errno::ENOENT })
}

/// Reads an inode, with its inline content if `opened`.
pub(super) fn node(names: &dyn ReadTable, inode: InodeId, opened: bool) -> Result<Option<Node>> {
    let Some(record) = table::inode(names, inode)? else { return Ok(None) };
    let content = if opened && record.inline { Some(table::content(names, inode)?.into()) } else { None };
    Ok(Some(Node { content, ..Node::of(record.attr(inode)) }))
}
