//! Name operations of the job-shared view. Each request goes to the home of its entry. If that home replies that the directory's sharding
//! differs from the cached state, the client corrects it and retries.

use super::SharedView;
use super::leases::RequestStart;
use super::opens::Opening;
use crate::data::{FileVersion, Home};
use crate::replies::unexpected_reply;
use crate::types::{Found, OpenMode, Opened, has_setid};
use tameike_core::attr::{AttrChange, S_ISGID};
use tameike_core::wire::meta::{
    Command, DirStat, EntryName, MetaReply, MetaRequest, NameOperation, NewInode, Node, Target,
};
use tameike_core::{Errno, Fault, FileKind, HomeId, InodeId, Result, name};

/// Most corrections of one directory's sharding within one request.
pub(super) const CORRECTIONS_MAX: u32 = 8;

/// A directory entry, as its home returned it.
pub(super) struct Entry {
    pub target: Target,
    pub node: Option<Node>,
    pub created: bool,
    start: RequestStart,
}

impl SharedView {
    /// Sends the request that `request` builds from the directory's sharding to the entry's home. Returns that home and its reply.
    pub(super) async fn ask_entry(
        &self,
        entry: &EntryName,
        mut request: impl FnMut(bool) -> MetaRequest,
    ) -> Result<(HomeId, MetaReply)> {
        for _ in 0..CORRECTIONS_MAX {
            let sharded = self.directories.is_sharded(entry.dir);
            let home = self.cluster.entry_home(entry.dir, entry.offset(), sharded);
            match self.ask(home, request(sharded)).await? {
                MetaReply::Sharding { sharded } => self.directories.set_sharded(entry.dir, sharded),
                reply => return Ok((home, reply)),
            }
        }
        Err(Fault::new(Errno::EIO, format!("the sharding of {} changes too often: retry", entry.dir)))
    }

    pub(super) async fn find(&self, entry: EntryName) -> Result<Entry> {
        name::check(&entry.name)?;
        let start = self.leases.start_request(self.runtime.clock.monotonic());
        let lookup = |sharded| MetaRequest::Lookup { entry: entry.clone(), sharded, view: true };
        let (_, reply) = self.ask_entry(&entry, lookup).await?;
        self.entry_of_reply(entry, reply, start).map(|(entry, _)| entry)
    }

    /// Returns the entry with its attributes, which may be at another home.
    pub(super) async fn found(&self, entry: Entry) -> Result<Found> {
        let replied = match entry.node {
            Some(node) => self.complete_newest(node, &entry.start).await?,
            None => None,
        };
        let attr = match replied {
            Some(attr) => attr,
            None => self.attributes(entry.target.inode).await?,
        };
        Ok(Found { file: self.number(attr.inode), attr })
    }

    /// Creates an inode and its name, or returns the existing entry. Fills in what the inode inherits from its directory. If `opening` is
    /// given and the file's home is also the name's home, the same request opens the file.
    pub(super) async fn new_entry(
        &self,
        entry: EntryName,
        mut new: NewInode,
        exclusive: bool,
        mut opening: Option<&mut Opening>,
    ) -> Result<Entry> {
        name::check(&entry.name)?;
        self.inherit(entry.dir, &mut new).await?;
        let start = self.leases.start_request(self.runtime.clock.monotonic());
        let now = self.runtime.now();
        let command = |sharded| {
            let (entry, new) = (entry.clone(), new.clone());
            let home = self.cluster.entry_home(entry.dir, entry.offset(), sharded);
            let opener = opening.as_mut().map(|opening| opening.ask(home));
            MetaRequest::Execute(Command::Create { entry, new, exclusive, opener, sharded, now })
        };
        let answer = self.ask_entry(&entry, command).await;
        if let Some(opening) = opening {
            opening.record_reply(&answer);
        }
        let ((home, reply), dir) = (answer?, entry.dir);
        let (made, part) = self.entry_of_reply(entry, reply, start)?;
        self.changed_directory(dir, home, part);
        Ok(made)
    }

    async fn inherit(&self, dir: InodeId, new: &mut NewInode) -> Result<()> {
        let parent = match self.directories.own_attr(dir) {
            Some(attr) => attr,
            None => self.attributes(dir).await?,
        };
        new.layout = match new.kind {
            FileKind::File => parent.layout.inherited_by_file(self.local()),
            _ => parent.layout,
        };
        if parent.mode & S_ISGID != 0 {
            new.gid = parent.gid;
            if new.kind == FileKind::Directory {
                new.mode |= S_ISGID;
            }
        }
        Ok(())
    }

    /// Runs a name operation at the home of its coordinating name.
    pub(super) async fn operate(&self, coordinator: &EntryName, operation: NameOperation) -> Result<()> {
        let now = self.runtime.now();
        let request = |sharded| MetaRequest::Names { operation: operation.clone(), sharded, now };
        let done = self.ask_entry(coordinator, request).await;
        // A failed operation may have changed something too.
        self.drop_leases(&operation);
        let (home, reply) = done?;
        let part = match reply {
            MetaReply::DirChanged(stat) => Some(stat),
            MetaReply::Done => None,
            other => return Err(unexpected_reply(&other)),
        };
        self.changed_directory(coordinator.dir, home, part);
        Ok(())
    }

    fn drop_leases(&self, operation: &NameOperation) {
        match operation {
            NameOperation::Unlink { entry } | NameOperation::Rmdir { entry } => self.leases.renamed(entry),
            NameOperation::Link { target, .. } => self.leases.changed(target.inode),
            NameOperation::Rename { from, to, .. } => {
                self.leases.renamed(from);
                self.leases.renamed(to);
                self.directories.renamed(self.runtime.clock.monotonic());
            }
        }
    }

    /// Converts a home's reply to an entry and the stat of the children on that home. Caches the lease if the reply grants one.
    fn entry_of_reply(
        &self,
        entry: EntryName,
        reply: MetaReply,
        start: RequestStart,
    ) -> Result<(Entry, Option<DirStat>)> {
        let MetaReply::Entry { target, node, created, dir, lease } = reply else {
            return Err(unexpected_reply(&reply));
        };
        if let (true, Some(node)) = (lease, &node) {
            self.leases.add(entry, node.attr.clone(), start);
        }
        Ok((Entry { target, node, created, start }, dir))
    }

    /// Updates cached state after this node changed a directory: `part` is the new stat of its children at `home` if the reply included it.
    fn changed_directory(&self, dir: InodeId, home: HomeId, part: Option<DirStat>) {
        match part {
            // Those of a sharded directory at the other homes of the node are unknown.
            Some(part) if !part.sharded => {
                let node = self.cluster.primary(home);
                self.directories.set_part(dir, node, part, self.runtime.clock.monotonic());
            }
            Some(_) | None => self.directories.changed(dir),
        }
    }

    /// Opens a regular file after its home has counted the open.
    pub(super) async fn open_counted(
        &self,
        node: Node,
        mode: OpenMode,
        mut opening: Opening,
    ) -> Result<Opened> {
        let inode = node.attr.inode;
        let version = FileVersion::of_node(&node);
        let (file, keep_cache) = self.engine.open(inode, node.attr.layout, Home::Inode, version, mode);
        self.leases.hide(inode);
        let mut attr = node.attr;
        self.show_accesses(&file, &mut attr);
        if keep_cache && mode.read && !mode.noatime {
            // The kernel may serve reads from its page cache without a request.
            file.accessed(self.runtime.now());
        }
        let (direct, has_setid) = (mode.is_direct(file.size()), has_setid(attr.mode));
        let handle = self.add_handle(file, mode, opening.id());
        // From now on, lists of opens have it.
        if opening.may_be_lost()
            && let Err(fault) = self.send_open(inode, &mut opening).await
        {
            self.close_handle(handle);
            return Err(fault);
        }
        opening.done();
        self.closer.reached(self.cluster.inode_home(inode));
        if mode.truncate && mode.write {
            let change = AttrChange { size: Some(0), ..AttrChange::default() };
            if let Err(fault) = self.change(inode, change).await {
                self.close_handle(handle);
                return Err(fault);
            }
            return Ok(Opened { handle, keep_cache: false, direct: mode.is_direct(0), has_setid });
        }
        Ok(Opened { handle, keep_cache, direct, has_setid })
    }

    pub(super) fn close_handle(&self, handle: crate::vfs::HandleNumber) {
        let Some(handle) = self.handles.lock().remove(&handle) else { return };
        let inode = handle.file.inode;
        let access = handle.file.take_access(|access| self.closer.keep_access(inode, access));
        let read = access.map(|access| access.time);
        self.closer.close(inode, handle.open, read);
        self.engine.close(&handle.file);
        // The home's reply to a reported access updates or ends the lease.
        if read.is_none() {
            self.show_file(inode);
        }
    }
}
