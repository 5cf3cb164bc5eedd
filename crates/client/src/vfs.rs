//! The one interface between doors and views.

pub use crate::directory::Entries;
pub use crate::types::{
    FileNumber, Found, FrameBytes, HandleNumber, OpenMode, Opened, ReadBytes, ViewSpace, WriteAt, WriteBytes,
    gives_rights, without_rights,
};

use crate::data::{Lendable, Located};
use crate::locks::FileLocks;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, Generation, InodeId, Result};
use tameike_io::Frame;

/// Open directories of a view.
pub trait Directories: Send + Sync + 'static {
    /// Opens a directory that is still there (`ESTALE`).
    fn open_dir(&self, dir: FileNumber) -> impl Future<Output = Result<HandleNumber>> + Send;
    /// Entries of an open directory after a cursor (0: the first), `.` and `..` among them: some, none at the end.
    /// What is there from the first entry to the end is told once, whatever else comes and goes meanwhile.
    fn readdir(&self, dir: HandleNumber, after: u64) -> impl Future<Output = Result<Entries>> + Send;
    /// The last descriptor of the open directory is gone.
    fn release_dir(&self, dir: HandleNumber);
    /// Changes of names in the directory survive power loss.
    fn fsync_dir(&self, dir: FileNumber) -> impl Future<Output = Result<()>> + Send;
}

/// Extended attributes of a view.
pub trait Xattrs: Send + Sync + 'static {
    /// Value of an extended attribute.
    fn get_xattr(&self, file: FileNumber, name: &[u8]) -> impl Future<Output = Result<Vec<u8>>> + Send;
    /// Names of the extended attributes.
    fn list_xattr(&self, file: FileNumber) -> impl Future<Output = Result<Vec<Vec<u8>>>> + Send;
    /// Sets an extended attribute; `create` fails when it exists, `replace` when it does not.
    fn set_xattr(
        &self,
        file: FileNumber,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Removes an extended attribute.
    fn remove_xattr(&self, file: FileNumber, name: &[u8]) -> impl Future<Output = Result<()>> + Send;
}

/// Who shows names of files to programs, which then look them up without asking. Neither waits nor calls back: it is called
/// under a lock of the view.
pub trait ShownNames: Send + Sync {
    /// Whether there are programs.
    fn is_used(&self) -> bool;
    /// Shows a file under its name in a directory until that time of the monotonic clock, or until it is hidden; whether it is
    /// shown now.
    fn show(&self, dir: FileNumber, name: &[u8], found: &Found, until: Duration) -> bool;
    /// Shows the name no more. When this has returned nobody is shown what it was.
    fn hide(&self, dir: FileNumber, name: &[u8]);
}

/// Operations on a view. Names are checked by the view; permissions are checked by the door's kernel against
/// the attributes given here, and by the shared file system where operations pass through to it.
pub trait Vfs: Directories + Xattrs {
    /// Finds a name. `.` and `..` are the door's.
    fn lookup(&self, dir: FileNumber, name: &[u8]) -> impl Future<Output = Result<Found>> + Send;
    /// Finds a file that is held by its number, which counts as one look-up more: it may have no name any more.
    fn find_again(&self, file: FileNumber) -> impl Future<Output = Result<Found>> + Send;
    /// Has names of files be shown from now on, as far as this node answers for them; whether it does for any.
    fn show_names(&self, _names: Arc<dyn ShownNames>) -> bool {
        false
    }
    /// A program has been told attributes of a file by its name: it may be shown them.
    fn show(&self, _file: FileNumber) {}
    /// Takes back `count` look-ups.
    fn forget(&self, file: FileNumber, count: u64);
    /// Attributes.
    fn getattr(&self, file: FileNumber) -> impl Future<Output = Result<Attr>> + Send;
    /// Changes attributes.
    fn setattr(&self, file: FileNumber, change: AttrChange) -> impl Future<Output = Result<Attr>> + Send;
    /// Target of a symbolic link.
    fn readlink(&self, file: FileNumber) -> impl Future<Output = Result<Vec<u8>>> + Send;
    /// Makes a name with a new inode that is not to be opened.
    fn make(&self, dir: FileNumber, name: &[u8], new: NewInode)
    -> impl Future<Output = Result<Found>> + Send;
    /// Makes a regular file, or with `exclusive == false` finds it, and opens it.
    fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> impl Future<Output = Result<(Found, Opened)>> + Send;
    /// Gives a file another name.
    fn link(
        &self,
        file: FileNumber,
        dir: FileNumber,
        name: &[u8],
    ) -> impl Future<Output = Result<Found>> + Send;
    /// Removes a name of anything but a directory.
    fn unlink(&self, dir: FileNumber, name: &[u8]) -> impl Future<Output = Result<()>> + Send;
    /// Removes an empty directory.
    fn rmdir(&self, dir: FileNumber, name: &[u8]) -> impl Future<Output = Result<()>> + Send;
    /// Gives an entry another name.
    fn rename(
        &self,
        from: (FileNumber, &[u8]),
        to: (FileNumber, &[u8]),
        mode: RenameMode,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Opens a regular file.
    fn open(&self, file: FileNumber, mode: OpenMode) -> impl Future<Output = Result<Opened>> + Send;
    /// Reads at most `length` bytes; fewer only at the end of the file.
    fn read(
        &self,
        handle: HandleNumber,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<ReadBytes>> + Send;
    /// Where a program of this host can read these bytes by itself, if that is known: as [`Vfs::read`], which it stands for.
    fn place(
        &self,
        handle: HandleNumber,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<Option<Located>>> + Send {
        let _ = (handle, offset, length);
        async { Ok(None) }
    }
    /// The bytes at `offset` were not where [`Vfs::place`] has told.
    fn misplaced(&self, handle: HandleNumber, offset: u64) {
        let _ = (handle, offset);
    }
    /// Writes as much of `data` from its start as can be written without waiting; the number of bytes. What is
    /// left is [`Vfs::write`]'s: at most all of it, as for an append that must first be given its place.
    ///
    /// # Errors
    /// Those of [`Vfs::write`], if they are known at once.
    fn write_now(&self, handle: HandleNumber, at: WriteAt, data: &dyn WriteBytes) -> Result<usize>;
    /// A frame for the bytes of a write to come, if the view keeps bytes in frames and has one to spare.
    fn spare_frame(&self) -> Option<Frame> {
        None
    }
    /// Writes all of `data`. The bytes are seen by every later read on this node; other nodes see them after
    /// [`Vfs::flush`] or [`Vfs::fsync`].
    fn write(
        &self,
        handle: HandleNumber,
        at: WriteAt,
        data: &[u8],
    ) -> impl Future<Output = Result<()>> + Send;
    /// Sets space for bytes of the file aside, or gives it back; with `grows` the file is as large as they reach after.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system below cannot.
    fn change_space(
        &self,
        handle: HandleNumber,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The first data, or the first hole (the end of the file is one), at or after `offset`.
    ///
    /// # Errors
    /// `ENXIO` behind the end of the file, or when no data follows.
    fn seek(
        &self,
        handle: HandleNumber,
        sought: Sought,
        offset: u64,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// One descriptor of the file is closed: every later open on any node sees all writes. Tells what went
    /// wrong with earlier writes.
    fn flush(&self, handle: HandleNumber) -> impl Future<Output = Result<()>> + Send;
    /// As [`Vfs::flush`], and what was written survives power loss.
    fn fsync(&self, handle: HandleNumber) -> impl Future<Output = Result<()>> + Send;
    /// Where the locks of the view's files are kept; `None` leaves them to the kernel of the node, which has all of
    /// the view's programs. Locks are set by [`crate::lock_calls`].
    fn locks(&self) -> Option<&Arc<FileLocks>> {
        None
    }
    /// The file of a handle, as locks name it.
    ///
    /// # Errors
    /// `EBADF` when there is no such handle.
    fn locked_inode(&self, _handle: HandleNumber) -> Result<InodeId> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// What this node has written is at its homes, so that who has the next lock of the file reads it.
    fn publish(&self, _handle: HandleNumber) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// What this node has cached of the file is as true as after opening it. Tells a version when the kernel's pages
    /// may be of another one: they must be dropped, and that be told to [`Vfs::pages_dropped`].
    fn revalidate(&self, _handle: HandleNumber) -> impl Future<Output = Result<Option<Generation>>> + Send {
        std::future::ready(Ok(None))
    }
    /// Whether nothing that this node has written to the file is still on its way, and others may write to it too: then
    /// an fsync is there to see what they have written.
    fn awaits_others(&self, _handle: HandleNumber) -> bool {
        false
    }
    /// Whether the kernel's pages of the file may still be older than this.
    fn has_pages_before(&self, _handle: HandleNumber, _generation: Generation) -> bool {
        false
    }
    /// Bytes were written through the handle that the kernel's pages of the file may lack: what it has is not kept by the
    /// next open.
    fn pages_passed(&self, _handle: HandleNumber) {}
    /// Whether no such bytes were written since the handle was opened.
    fn keeps_pages(&self, _handle: HandleNumber) -> bool {
        true
    }
    /// The kernel has dropped the file's pages that are older than this, and its attributes.
    fn pages_dropped(&self, _handle: HandleNumber, _generation: Generation) {}
    /// What programs of this node may be lent of an open file; none where it is not in frames.
    fn lendable(&self, _handle: HandleNumber) -> Option<Lendable> {
        None
    }
    /// Size of the file of a handle as this node sees it, its own writes included.
    fn size(&self, handle: HandleNumber) -> impl Future<Output = Result<u64>> + Send;
    /// The last descriptor of the handle is gone.
    fn release(&self, handle: HandleNumber) -> impl Future<Output = ()> + Send;
    /// Space of the view.
    fn space(&self) -> impl Future<Output = Result<ViewSpace>> + Send;
}
