//! The interface between frontends and views: traits by concern, which [`Vfs`] joins.
//!
//! A view checks names. Permissions are checked by the kernel of a frontend against the attributes that the view returns, and by the
//! shared file system for operations that pass through to it.

pub use crate::directory::Entries;
pub use crate::types::{
    FileNumber, Found, FrameBytes, HandleNumber, Name, OpenMode, Opened, ReadBytes, ViewSpace, WriteAt,
    WriteBytes, has_setid, without_setid,
};

use crate::data::{Grantable, Located};
use crate::locks::FileLocks;
use crate::region::RegionFile;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, Generation, InodeId, Result};
use tameike_io::Frame;

/// All operations of a view.
pub trait Vfs:
    Names + Inodes + Directories + Xattrs + OpenFiles + Content + Locking + KernelPages + Usage
{
}

impl<V> Vfs for V where
    V: Names + Inodes + Directories + Xattrs + OpenFiles + Content + Locking + KernelPages + Usage
{
}

/// Names in directories.
pub trait Names: Send + Sync + 'static {
    /// Looks up a name, other than `.` and `..`. Each success counts as one lookup of the file, until [`Inodes::forget`].
    fn lookup(&self, dir: FileNumber, name: &[u8]) -> impl Future<Output = Result<Found>> + Send;
    /// Creates a name with a new inode, which is not opened.
    fn make(&self, dir: FileNumber, name: &[u8], new: NewInode)
    -> impl Future<Output = Result<Found>> + Send;
    /// Creates another name of a file.
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
    /// Renames an entry.
    fn rename(
        &self,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Adds the names whose leases this node holds to a table that programs read by themselves. Returns whether the view has such
    /// leases.
    fn set_shared_names(&self, _names: Arc<dyn SharedNames>) -> bool {
        false
    }
    /// Allows a file's name in that table: a program has looked it up.
    fn show(&self, _file: FileNumber) {}
}

/// A table of names that programs look up without a request. The view calls it under a lock: it neither blocks nor calls back.
pub trait SharedNames: Send + Sync {
    /// Whether any program reads the table.
    fn is_used(&self) -> bool;
    /// Adds a file under its name in a directory until that time of the monotonic clock, or until it is hidden. Returns whether the
    /// table has it.
    fn show(&self, dir: FileNumber, name: &[u8], found: &Found, until: Duration) -> bool;
    /// Removes the name. When this has returned, no program reads the old entry.
    fn hide(&self, dir: FileNumber, name: &[u8]);
    /// Makes all names invalid at that time of the monotonic clock, until the next call. Names that a later time must not make valid again
    /// are hidden before.
    fn limit(&self, until: Duration);
}

/// Inodes, by their numbers.
pub trait Inodes: Send + Sync + 'static {
    /// Counts one more lookup of a file whose number the caller has. The file may have lost all its names.
    fn lookup_again(&self, file: FileNumber) -> impl Future<Output = Result<Found>> + Send;
    /// Undoes `count` lookups.
    fn forget(&self, file: FileNumber, count: u64);
    /// Returns the attributes.
    fn getattr(&self, file: FileNumber) -> impl Future<Output = Result<Attr>> + Send;
    /// Changes attributes, and returns all.
    fn setattr(&self, file: FileNumber, change: AttrChange) -> impl Future<Output = Result<Attr>> + Send;
    /// Returns the target of a symbolic link.
    fn readlink(&self, file: FileNumber) -> impl Future<Output = Result<Vec<u8>>> + Send;
}

/// Open directories.
pub trait Directories: Send + Sync + 'static {
    /// Opens a directory; `ESTALE` if it was removed.
    fn open_dir(&self, dir: FileNumber) -> impl Future<Output = Result<HandleNumber>> + Send;
    /// Returns entries of an open directory after a cursor (0: from the first), `.` and `..` among them; none at the end. An entry that
    /// exists from the first call to the last is returned once, whatever else is created and removed meanwhile.
    fn readdir(&self, dir: HandleNumber, after: u64) -> impl Future<Output = Result<Entries>> + Send;
    /// Ends an open directory: its last descriptor is closed.
    fn release_dir(&self, dir: HandleNumber);
    /// Makes changes of names in the directory durable.
    fn fsync_dir(&self, dir: FileNumber) -> impl Future<Output = Result<()>> + Send;
}

/// Extended attributes.
pub trait Xattrs: Send + Sync + 'static {
    /// Returns the value of an extended attribute.
    fn get_xattr(&self, file: FileNumber, name: &[u8]) -> impl Future<Output = Result<Vec<u8>>> + Send;
    /// Returns the names of the extended attributes.
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

/// Open regular files.
pub trait OpenFiles: Send + Sync + 'static {
    /// Creates a regular file, or with `exclusive == false` looks it up, and opens it.
    fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> impl Future<Output = Result<(Found, Opened)>> + Send;
    /// Opens a regular file.
    fn open(&self, file: FileNumber, mode: OpenMode) -> impl Future<Output = Result<Opened>> + Send;
    /// Ends one descriptor of the file: every later open on any node sees all writes. Reports the errors of earlier writes.
    fn flush(&self, handle: HandleNumber) -> impl Future<Output = Result<()>> + Send;
    /// As [`OpenFiles::flush`], and makes all writes durable.
    fn fsync(&self, handle: HandleNumber) -> impl Future<Output = Result<()>> + Send;
    /// Whether this node has no write to the file in flight while other nodes may have: then an fsync only serves to see their writes.
    fn only_awaits_others(&self, _handle: HandleNumber) -> bool {
        false
    }
    /// Returns the size as this node sees it, its own writes included.
    fn size(&self, handle: HandleNumber) -> impl Future<Output = Result<u64>> + Send;
    /// Ends a handle: its last descriptor is closed.
    fn release(&self, handle: HandleNumber) -> impl Future<Output = ()> + Send;
}

/// Content of open files.
pub trait Content: Send + Sync + 'static {
    /// Reads `length` bytes; fewer only at the end of the file.
    fn read(
        &self,
        handle: HandleNumber,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<ReadBytes>> + Send;
    /// Returns the location of these bytes on a device that programs of this host can read, if the view knows it: such a read replaces
    /// [`Content::read`].
    fn locate(
        &self,
        _handle: HandleNumber,
        _offset: u64,
        _length: u32,
    ) -> impl Future<Output = Result<Option<Located>>> + Send {
        std::future::ready(Ok(None))
    }
    /// Drops a stale location that [`Content::locate`] has returned.
    fn drop_location(&self, _handle: HandleNumber, _offset: u64) {}
    /// Returns what programs of this node can be granted of an open file: nothing where the file is not in frames.
    fn grantable(&self, _handle: HandleNumber) -> Option<Grantable> {
        None
    }
    /// Returns the file as one of a shared memory region, if the view has regions and the file is not too large for one.
    fn region_file(&self, _handle: HandleNumber) -> Option<RegionFile> {
        None
    }
    /// Writes as much of `data`, from its start, as needs no wait, and returns the number of bytes. The caller passes the rest to
    /// [`Content::write`]: all of it for an append, whose offset only the file's home knows.
    fn write_now(&self, handle: HandleNumber, at: WriteAt, data: &dyn WriteBytes) -> Result<usize>;
    /// Returns a free frame for the bytes of a later write, if the view keeps data in frames.
    fn spare_frame(&self) -> Option<Frame> {
        None
    }
    /// Writes all of `data`. Every later read on this node sees the bytes; reads on other nodes see them after
    /// [`OpenFiles::flush`] or [`OpenFiles::fsync`].
    fn write(
        &self,
        handle: HandleNumber,
        at: WriteAt,
        data: &[u8],
    ) -> impl Future<Output = Result<()>> + Send;
    /// Allocates or frees space of a byte range. With `grows` the file grows to the end of the range. Fails with
    /// `EOPNOTSUPP` if the file system below cannot.
    fn change_space(
        &self,
        handle: HandleNumber,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Returns the offset of the first data, or of the first hole (the end of the file is one), at or after `offset`. Fails with
    /// `ENXIO` behind the end of the file, or if no data follows.
    fn seek(
        &self,
        handle: HandleNumber,
        sought: Sought,
        offset: u64,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// What locks need of a view. [`crate::lock_calls`] takes and releases locks.
pub trait Locking: Send + Sync + 'static {
    /// The locks of the view's files. None leaves locks to the kernel of the node, if all programs of the view run on it.
    fn locks(&self) -> Option<&Arc<FileLocks>> {
        None
    }
    /// Returns the inode of a handle, by which homes keep locks, or `EBADF`.
    fn locked_inode(&self, _handle: HandleNumber) -> Result<InodeId> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Whether the programs of the view are gone, so that no request may wait for a lock any longer.
    fn is_over(&self) -> bool {
        false
    }
    /// Sends this node's writes to their homes, so that the next lock owner reads them.
    fn publish(&self, _handle: HandleNumber) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// Revalidates this node's cache of the file, as an open does. Returns a generation if the kernel's pages may be older: the caller
    /// drops them, and then calls [`KernelPages::pages_dropped`].
    fn revalidate(&self, _handle: HandleNumber) -> impl Future<Output = Result<Option<Generation>>> + Send {
        std::future::ready(Ok(None))
    }
}

/// The kernel's pages of open files.
pub trait KernelPages: Send + Sync + 'static {
    /// Whether the kernel may have pages of the file that are older than this.
    fn has_pages_before(&self, _handle: HandleNumber, _generation: Generation) -> bool {
        false
    }
    /// The kernel has dropped the file's attributes, and its pages that are older than this.
    fn pages_dropped(&self, _handle: HandleNumber, _generation: Generation) {}
    /// A write has bypassed the kernel's pages: the next open drops them.
    fn mark_pages_stale(&self, _handle: HandleNumber) {}
    /// Whether no such write was made since the handle was opened.
    fn keeps_pages(&self, _handle: HandleNumber) -> bool {
        true
    }
}

/// Space of a view.
pub trait Usage: Send + Sync + 'static {
    /// Returns the capacity, the free space, and the counts of inodes.
    fn space(&self) -> impl Future<Output = Result<ViewSpace>> + Send;
}
