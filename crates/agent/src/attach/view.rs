//! The view as one attachment sees it.
//!
//! Requests of a user whom the agent does not trust are checked here as the kernel checks them for a local file system: the permissions of the
//! file or directory, and that the attachment got the numbers of files and handles from the agent.
//!
//! The view keeps one record per file of what the kernel has cached, and an attachment has a kernel cache of its own. So each open drops the
//! kernel's pages of the file, and so does each point at which the caller revalidates them. The record stays as it is.

use super::numbers::{Left, Numbers, OpenFile};
use super::peer::{Peer, READ, SEARCH, WRITE};
use crate::arbiter::OneMount;
use std::ops::Range;
use std::sync::Arc;
use tameike_client::lock_calls;
use tameike_client::locks::FileLocks;
use tameike_client::vfs::{
    Content, Directories, Entries, FileNumber, Found, HandleNumber, Inodes, KernelPages, Locking, Name,
    Names, OpenFiles, OpenMode, Opened, ReadBytes, Usage, Vfs, ViewSpace, WriteAt, WriteBytes, Xattrs,
};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, FileKind, Generation, InodeId, Result};
use tameike_io::Frame;

/// Extended attributes that programs may use by the permissions of the file; all others need privileges.
const USER_XATTRS: &[u8] = b"user.";
/// The access control lists, which the kernel requests because it checks permissions. No file has one.
const ACL_XATTRS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// A view for one attachment.
pub(super) struct AttachedView<V> {
    view: Arc<V>,
    peer: Peer,
    mount: Arc<OneMount>,
    numbers: Numbers,
    /// Threads may hold frames for writes that have not arrived yet.
    has_frames: bool,
}

impl<V: Vfs> AttachedView<V> {
    pub(super) fn new(view: Arc<V>, peer: Peer, mount: Arc<OneMount>, has_frames: bool) -> Self {
        Self { view, peer, mount, numbers: Numbers::default(), has_frames }
    }

    /// Opens nothing from now on, and ends waits for locks.
    pub(super) fn end(&self) {
        self.numbers.end();
    }

    /// Closes what the attachment has open, with its locks. No request is in flight any more.
    pub(super) async fn close_all(&self) {
        let Left { files, handles, directories } = self.numbers.take();
        for handle in handles {
            lock_calls::release(&*self.view, handle).await;
        }
        directories.into_iter().for_each(|handle| self.view.release_dir(handle));
        files.into_iter().for_each(|(file, lookups)| self.view.forget(file, lookups));
    }

    fn is_checked(&self) -> bool {
        self.peer.is_checked()
    }

    /// Returns the attributes of a file if the peer may access it so.
    async fn accessed(&self, file: FileNumber, bits: u16) -> Result<Attr> {
        self.numbers.check_file(file)?;
        let attr = self.view.getattr(file).await?;
        self.peer.may(&attr, bits)?;
        Ok(attr)
    }

    /// Checks an access to a file, if the peer is checked.
    async fn check(&self, file: FileNumber, bits: u16) -> Result<()> {
        if self.is_checked() { self.accessed(file, bits).await.map(drop) } else { Ok(()) }
    }

    fn check_known(&self, file: FileNumber) -> Result<()> {
        if self.is_checked() { self.numbers.check_file(file) } else { Ok(()) }
    }

    /// Checks that the attachment has a handle which allows an access.
    fn check_handle(&self, handle: HandleNumber, allows: impl FnOnce(OpenMode) -> bool) -> Result<()> {
        if !self.is_checked() || allows(self.numbers.open_file(handle)?.mode) {
            return Ok(());
        }
        Err(Errno::EBADF.into())
    }

    /// Looks up a name without a lookup for the kernel.
    async fn peek(&self, (dir, name): Name<'_>) -> Result<Found> {
        let found = self.view.lookup(dir, name).await?;
        self.view.forget(found.file, 1);
        Ok(found)
    }

    /// Returns the directory of a name that is about to change, if other mounts may cache it.
    async fn cached_directory(&self, name: Name<'_>) -> Option<FileNumber> {
        if self.mount.is_alone() {
            return None;
        }
        let found = self.peek(name).await.ok()?;
        (found.attr.kind == FileKind::Directory).then_some(found.file)
    }

    /// Waits until no other mount shows these directories as they were. A call that has failed may have changed them, too.
    async fn changed(&self, directories: impl IntoIterator<Item = FileNumber, IntoIter: Send> + Send) {
        for dir in directories {
            self.mount.changed(dir).await;
        }
    }

    /// Checks that the peer may remove a name, if it exists. With `leaves` a directory under the name moves to another one, which changes it.
    async fn check_removal(&self, name: Name<'_>, leaves: bool) -> Result<()> {
        if !self.is_checked() {
            return Ok(());
        }
        let dir = self.accessed(name.0, WRITE | SEARCH).await?;
        let needs_own = self.peer.needs_own_file(&dir);
        if !needs_own && !leaves {
            return Ok(());
        }
        let attr = match self.peek(name).await {
            Ok(found) => found.attr,
            Err(fault) if fault.errno == Errno::ENOENT => return Ok(()),
            Err(fault) => return Err(fault),
        };
        if needs_own && !self.peer.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
        if leaves && attr.kind == FileKind::Directory { self.peer.may(&attr, WRITE) } else { Ok(()) }
    }

    async fn new_inode(&self, dir: FileNumber, new: NewInode) -> Result<NewInode> {
        let new = self.peer.own(new);
        if !self.is_checked() {
            return Ok(new);
        }
        let dir = self.accessed(dir, WRITE | SEARCH).await?;
        self.peer.may_make(&dir, new)
    }

    /// Registers a file that the kernel gets.
    fn found(&self, found: Found) -> Found {
        // Of others, only a check needs the number.
        if self.is_checked() || found.attr.kind == FileKind::Directory {
            self.numbers.found(found.file);
        }
        found
    }

    /// Registers an open file. Its kernel keeps no pages.
    async fn opened(&self, file: FileNumber, mode: OpenMode, opened: Opened) -> Result<Opened> {
        if !self.numbers.opened(opened.handle, OpenFile { file, mode }) {
            lock_calls::release(&*self.view, opened.handle).await;
            return Err(Errno::ENFILE.into());
        }
        Ok(Opened { keep_cache: false, ..opened })
    }

    async fn check_open(&self, file: FileNumber, mode: OpenMode) -> Result<()> {
        if !self.is_checked() {
            return Ok(());
        }
        let bits = if mode.read { READ } else { 0 } | if mode.write || mode.truncate { WRITE } else { 0 };
        let attr = self.accessed(file, bits).await?;
        if mode.noatime && !self.peer.owns(&attr) { Err(Errno::EPERM.into()) } else { Ok(()) }
    }
}

impl<V: Vfs> Names for AttachedView<V> {
    async fn lookup(&self, dir: FileNumber, name: &[u8]) -> Result<Found> {
        self.check(dir, SEARCH).await?;
        Ok(self.found(self.view.lookup(dir, name).await?))
    }

    async fn make(&self, dir: FileNumber, name: &[u8], new: NewInode) -> Result<Found> {
        let new = self.new_inode(dir, new).await?;
        Ok(self.found(self.view.make(dir, name, new).await?))
    }

    async fn link(&self, file: FileNumber, dir: FileNumber, name: &[u8]) -> Result<Found> {
        self.check_known(file)?;
        self.check(dir, WRITE | SEARCH).await?;
        if self.is_checked() {
            self.peer.may_link(&self.view.getattr(file).await?)?;
        }
        Ok(self.found(self.view.link(file, dir, name).await?))
    }

    async fn unlink(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        self.check_removal((dir, name), false).await?;
        self.view.unlink(dir, name).await
    }

    async fn rmdir(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        self.check_removal((dir, name), false).await?;
        let cached = self.cached_directory((dir, name)).await;
        let removed = self.view.rmdir(dir, name).await;
        self.changed(cached).await;
        removed
    }

    async fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        let leaves = from.0 != to.0;
        self.check_removal(from, leaves).await?;
        self.check_removal(to, leaves && mode == RenameMode::Exchange).await?;
        let cached = [self.cached_directory(from).await, self.cached_directory(to).await];
        let renamed = self.view.rename(from, to, mode).await;
        self.changed(cached.into_iter().flatten()).await;
        renamed
    }
}

impl<V: Vfs> Inodes for AttachedView<V> {
    async fn lookup_again(&self, file: FileNumber) -> Result<Found> {
        self.check_known(file)?;
        Ok(self.found(self.view.lookup_again(file).await?))
    }

    fn forget(&self, file: FileNumber, count: u64) {
        let removed = self.numbers.forget(file, count);
        if removed > 0 {
            self.view.forget(file, removed);
        }
    }

    async fn getattr(&self, file: FileNumber) -> Result<Attr> {
        self.check_known(file)?;
        self.view.getattr(file).await
    }

    async fn setattr(&self, file: FileNumber, change: AttrChange) -> Result<Attr> {
        self.check_known(file)?;
        let change = match self.peer.checks_change(&change) {
            true => {
                let is_writing = self.is_checked() && self.numbers.is_writing(file);
                self.peer.may_change(&self.view.getattr(file).await?, change, is_writing)?
            }
            false => change,
        };
        let is_access = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
        let attr = self.view.setattr(file, change).await?;
        if is_access && attr.kind == FileKind::Directory {
            self.mount.changed(file).await;
        }
        Ok(attr)
    }

    async fn readlink(&self, file: FileNumber) -> Result<Vec<u8>> {
        self.check_known(file)?;
        self.view.readlink(file).await
    }
}

impl<V: Vfs> Directories for AttachedView<V> {
    async fn open_dir(&self, dir: FileNumber) -> Result<HandleNumber> {
        self.check(dir, READ).await?;
        let handle = self.view.open_dir(dir).await?;
        if !self.numbers.opened_directory(handle) {
            self.view.release_dir(handle);
            return Err(Errno::ENFILE.into());
        }
        Ok(handle)
    }

    async fn readdir(&self, dir: HandleNumber, after: u64) -> Result<Entries> {
        self.numbers.check_directory(dir)?;
        self.view.readdir(dir, after).await
    }

    fn release_dir(&self, dir: HandleNumber) {
        if self.numbers.closed_directory(dir) {
            self.view.release_dir(dir);
        }
    }

    async fn fsync_dir(&self, dir: FileNumber) -> Result<()> {
        self.check_known(dir)?;
        self.view.fsync_dir(dir).await
    }
}

impl<V: Vfs> AttachedView<V> {
    /// Checks an access to an extended attribute. `refusal` answers for those that need privileges.
    async fn check_xattr(&self, file: FileNumber, (name, bits): (&[u8], u16), refusal: Errno) -> Result<()> {
        if self.is_checked() && !name.starts_with(USER_XATTRS) {
            self.numbers.check_file(file)?;
            return Err(refusal.into());
        }
        self.check(file, bits).await
    }
}

impl<V: Vfs> Xattrs for AttachedView<V> {
    async fn get_xattr(&self, file: FileNumber, name: &[u8]) -> Result<Vec<u8>> {
        if ACL_XATTRS.contains(&name) {
            return Err(Errno::ENODATA.into());
        }
        self.check_xattr(file, (name, READ), Errno::ENODATA).await?;
        self.view.get_xattr(file, name).await
    }

    async fn list_xattr(&self, file: FileNumber) -> Result<Vec<Vec<u8>>> {
        self.check_known(file)?;
        self.view.list_xattr(file).await
    }

    async fn set_xattr(
        &self,
        file: FileNumber,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        if ACL_XATTRS.contains(&name) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        self.check_xattr(file, (name, WRITE), Errno::EPERM).await?;
        self.view.set_xattr(file, name, value, create, replace).await
    }

    async fn remove_xattr(&self, file: FileNumber, name: &[u8]) -> Result<()> {
        // As on a file system with access control lists, removing none succeeds.
        if ACL_XATTRS.contains(&name) {
            return Ok(());
        }
        self.check_xattr(file, (name, WRITE), Errno::EPERM).await?;
        self.view.remove_xattr(file, name).await
    }
}

impl<V: Vfs> OpenFiles for AttachedView<V> {
    async fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> Result<(Found, Opened)> {
        let new = self.new_inode(dir, new).await?;
        let created = self.view.create(dir, name, new, exclusive || self.is_checked(), mode).await;
        let (found, opened) = match created {
            // Another program created it after the kernel's lookup: the kernel retries, and its open is checked.
            Err(fault) if fault.errno == Errno::EEXIST && !exclusive => return Err(Errno::ESTALE.into()),
            created => created?,
        };
        let opened = self.opened(found.file, mode, opened).await?;
        Ok((self.found(found), opened))
    }

    async fn open(&self, file: FileNumber, mode: OpenMode) -> Result<Opened> {
        self.check_open(file, mode).await?;
        let opened = self.view.open(file, mode).await?;
        self.opened(file, mode, opened).await
    }

    async fn flush(&self, handle: HandleNumber) -> Result<()> {
        self.check_handle(handle, |_| true)?;
        self.view.flush(handle).await
    }

    async fn fsync(&self, handle: HandleNumber) -> Result<()> {
        self.check_handle(handle, |_| true)?;
        self.view.fsync(handle).await
    }

    fn only_awaits_others(&self, handle: HandleNumber) -> bool {
        self.view.only_awaits_others(handle)
    }

    async fn size(&self, handle: HandleNumber) -> Result<u64> {
        self.check_handle(handle, |_| true)?;
        self.view.size(handle).await
    }

    async fn release(&self, handle: HandleNumber) {
        if self.numbers.closed(handle) {
            self.view.release(handle).await;
        }
    }
}

impl<V: Vfs> Content for AttachedView<V> {
    async fn read(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<ReadBytes> {
        self.check_handle(handle, |mode| mode.read)?;
        self.view.read(handle, offset, length).await
    }

    fn write_now(&self, handle: HandleNumber, at: WriteAt, data: &dyn WriteBytes) -> Result<usize> {
        self.check_handle(handle, |mode| mode.write)?;
        self.view.write_now(handle, at, data)
    }

    fn spare_frame(&self) -> Option<Frame> {
        if self.has_frames { self.view.spare_frame() } else { None }
    }

    async fn write(&self, handle: HandleNumber, at: WriteAt, data: &[u8]) -> Result<()> {
        self.check_handle(handle, |mode| mode.write)?;
        self.view.write(handle, at, data).await
    }

    async fn change_space(
        &self,
        handle: HandleNumber,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        self.check_handle(handle, |mode| mode.write)?;
        self.view.change_space(handle, change, bytes, grows).await
    }

    async fn seek(&self, handle: HandleNumber, sought: Sought, offset: u64) -> Result<u64> {
        self.check_handle(handle, |mode| mode.read)?;
        self.view.seek(handle, sought, offset).await
    }
}

impl<V: Vfs> Locking for AttachedView<V> {
    fn locks(&self) -> Option<&Arc<FileLocks>> {
        self.view.locks()
    }

    fn locked_inode(&self, handle: HandleNumber) -> Result<InodeId> {
        self.check_handle(handle, |_| true)?;
        self.view.locked_inode(handle)
    }

    fn is_over(&self) -> bool {
        self.numbers.is_over()
    }

    async fn publish(&self, handle: HandleNumber) -> Result<()> {
        self.check_handle(handle, |_| true)?;
        self.view.publish(handle).await
    }

    async fn revalidate(&self, handle: HandleNumber) -> Result<Option<Generation>> {
        self.check_handle(handle, |_| true)?;
        // The view may know that another kernel has no older pages.
        Ok(Some(self.view.revalidate(handle).await?.unwrap_or_default()))
    }
}

impl<V: Vfs> KernelPages for AttachedView<V> {
    fn has_pages_before(&self, _handle: HandleNumber, _generation: Generation) -> bool {
        true
    }

    fn mark_pages_stale(&self, handle: HandleNumber) {
        self.view.mark_pages_stale(handle);
    }

    fn keeps_pages(&self, _handle: HandleNumber) -> bool {
        false
    }
}

impl<V: Vfs> Usage for AttachedView<V> {
    async fn space(&self) -> Result<ViewSpace> {
        self.view.space().await
    }
}
