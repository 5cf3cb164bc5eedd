//! The shared file system as a trait: a tree of files below one directory.
//!
//! The cache view passes names and attributes to [`SharedFs`] and flushes data to it. The node-local view uses the same trait
//! over a directory of the node's disk. [`PosixTree`] is the real implementation; tests wrap it to inject faults, and the
//! simulated cluster has its own.
//!
//! Every call blocks; asynchronous callers use [`crate::Runtime::block`], with several calls in one job. Paths are bytes relative
//! to the root, components joined by `/`; the root is empty. No path leaves the root, and symbolic links are never followed.

mod attributes;
mod change_log;
mod directory;
mod exact;
mod file;
mod hooked;
mod ids;
mod open_file_cache;
mod posix;
mod recorded;
#[cfg(test)]
mod tests;
mod translate;
mod whole;

pub use change_log::ChangeLog;
pub use hooked::{Change, Hooked, Hooks, Written};
pub use open_file_cache::{CacheToken, CachedFile, ContentChange, OpenFileCache, open_same};
pub use posix::PosixTree;
pub use recorded::Recorded;
pub use whole::{NamedXattr, WholeFile, xattrs_of};

use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, Errno, FaultKind, FileKind, Generation, InodeId, Layout, Result, Timestamp};

/// Attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Device: 0 on the file system of the root, so that nodes that mount it under different numbers agree; the system's number
    /// on file systems mounted below the root.
    pub device: u64,
    /// Inode number on the device.
    pub inode: u64,
    /// Hash of the file handle, which distinguishes successive files of one inode number; 0 if the file system has no handles.
    /// Comparable only within one process.
    pub handle_hash: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub mode: u16,
    /// Number of hard links.
    pub nlink: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Device number of a device file, as FUSE encodes it.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

impl FileStat {
    /// The file's inode number in the job.
    pub fn inode_id(&self) -> InodeId {
        InodeId::cached(self.device, self.inode)
    }

    /// The attributes that reveal a change of the content by another node.
    pub fn stamp(&self) -> Stamp {
        Stamp {
            device: self.device,
            inode: self.inode,
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }

    /// The attributes as views return them.
    pub fn attr(&self) -> Attr {
        Attr {
            inode: self.inode_id(),
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            generation: Generation(0),
            layout: Layout::Striped,
            inline: false,
            sparse: false,
        }
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The name.
    pub name: Vec<u8>,
    /// The inode number, as [`FileStat::inode_id`]; for a mount point, that of the directory below the mount.
    pub inode: InodeId,
    /// The kind of the file.
    pub kind: FileKind,
    /// The cursor after this entry; never 0.
    pub next: u64,
}

/// A file to create that is not regular.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    /// A directory with these permission bits.
    Directory(u16),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A named pipe, socket or device file.
    Node {
        /// The kind of the node.
        kind: FileKind,
        /// Permission bits.
        mode: u16,
        /// Device number of a device file, as FUSE encodes it.
        rdev: u32,
    },
}

/// Access mode of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

/// Space and inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSpace {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes free to this user.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
}

/// The mode of setting an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// `EEXIST` if it exists.
    Create,
    /// `ENODATA` if it does not exist.
    Replace,
}

/// The operation of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Allocates the range; the file grows to its end.
    Extend,
    /// Allocates the range; the size stays.
    Keep,
    /// Frees the range, which then reads as zeros.
    Punch,
    /// The range reads as zeros; the file grows to its end.
    Zero,
}

/// The target of `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data.
    Data,
    /// The next hole.
    Hole,
}

/// An open regular file.
pub trait SharedFile: Send + Sync {
    /// The current attributes.
    fn stat(&self) -> Result<FileStat>;
    /// Reads at `offset` until `buffer` is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Reads at least one byte at `offset`, or none at the end of the file. Saves the read that would confirm the end.
    fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at(buffer, offset)
    }
    /// A hint that reads request exactly the bytes they need, so that readahead is useless.
    fn advise_exact(&self, is_exact: bool) {
        let _ = is_exact;
    }
    /// A hint to read a range into the page cache.
    fn prefetch(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Announces the final size of the file before writes, for the choice of its storage. Changes nothing.
    fn expect_size(&self, size: u64) -> Result<()> {
        let _ = size;
        Ok(())
    }
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Appends all of `bytes`. As far as the file system can prevent it, concurrent appends of several descriptors on any nodes
    /// do not overlap.
    fn append(&self, bytes: &[u8]) -> Result<()>;
    /// Sets the size.
    fn truncate(&self, size: u64) -> Result<()>;
    /// Allocates or frees space.
    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()>;
    /// Returns the next data or hole at or after `offset`; `ENXIO` beyond the end.
    fn seek(&self, what: Seek, offset: u64) -> Result<u64>;
    /// Makes content and attributes durable, as `fsync` does.
    fn sync(&self) -> Result<()>;
    /// A hint to start writing dirty pages, so that a later [`SharedFile::sync`] takes less time.
    fn start_write_back(&self) {}
    /// Drops the file's clean pages from the page cache, if possible, so that reads fetch from the file system.
    fn forget_pages(&self) -> Result<()>;
    /// Revalidates the attributes, the size and the identity of the file that this node has cached.
    fn revalidate(&self) -> Result<()>;
    /// Revalidates the file so that reads return what other nodes have written.
    fn revalidate_content(&self) -> Result<()> {
        self.revalidate()?;
        self.forget_pages()
    }
    /// Changes owner, permissions and times. [`SharedFile::truncate`] changes the size.
    fn change(&self, change: &AttrChange) -> Result<()>;
    /// Creates or replaces an extended attribute. `EOPNOTSUPP` if the tree supports it only by path.
    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let _ = (name, value);
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Fails if the file system denies writes, whatever the shown permissions are.
    fn check_write(&self) -> Result<()> {
        Ok(())
    }
    /// True if the writer may set size and times by its own descriptor. On other file systems the close may overwrite the times,
    /// and other nodes may see old ones for a while.
    fn writer_sets_times(&self) -> bool {
        false
    }
    /// Locks a range for this open file until its close. False if another open file has locked it, on any node if the file system
    /// supports locks between nodes. `EOPNOTSUPP` without support for locks.
    fn try_lock(&self, offset: u64, length: u64) -> Result<bool> {
        let _ = (offset, length);
        Err(Errno::EOPNOTSUPP.into())
    }
    /// True if another open file that may write has locked a part of the range by [`SharedFile::try_lock`]. Fails as that does.
    fn is_locked(&self, offset: u64, length: u64) -> Result<bool> {
        let _ = (offset, length);
        Err(Errno::EOPNOTSUPP.into())
    }
}

/// An open directory.
pub trait SharedDir: Send + Sync {
    /// The current attributes.
    fn stat(&self) -> Result<FileStat>;
    /// Reads the next entries after a cursor (0: the start), including `.` and `..`, in the order of the file system. Returns as
    /// many as the file system returns at once, none at the end. The file system defines cursors and their validity.
    fn read(&self, after: u64) -> Result<Vec<NamedFile>>;
}

/// Keeps the inode number of a file in use until its drop.
pub type Pin = Box<dyn Send + Sync>;

/// A tree of files below one directory.
pub trait SharedFs: Send + Sync {
    /// Attributes of a file; symbolic links are not followed.
    fn stat(&self, path: &[u8]) -> Result<FileStat>;
    /// Attributes of a file, with a pin: its inode number is not reused while the pin exists, even after the last unlink.
    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)>;
    /// Opens a directory.
    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>>;
    /// Target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Opens a regular file. The owner's permission bits are ignored, since a program may have made a file read-only after it
    /// opened it for writing.
    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>>;
    /// Opens a regular file for reading, as [`SharedFs::open`], with all attributes except [`FileStat::handle_hash`].
    fn open_whole(&self, path: &[u8]) -> Result<WholeFile> {
        let file = self.open(path, Access::Read)?;
        Ok(WholeFile { stat: file.stat()?, xattrs: xattrs_of(self, path)?, file })
    }
    /// The tree below a directory, which saves path lookups. It stays with that directory if its name changes. `EOPNOTSUPP`
    /// without support.
    fn below(&self, dir: &[u8]) -> Result<Arc<dyn SharedFs>> {
        let _ = dir;
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Creates a regular file, which must not exist, with exactly these permissions, and opens it for writing.
    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>>;
    /// As [`SharedFs::create`], with the permissions that the umask or the default access list leaves; only for the owner if
    /// these are unknown.
    fn create_by_umask(&self, path: &[u8]) -> Result<Arc<dyn SharedFile>> {
        self.create(path, 0o600)
    }
    /// Creates a file that is not regular and must not exist. Returns its attributes.
    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat>;
    /// Removes a name of a file that is not a directory.
    fn unlink(&self, path: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &[u8]) -> Result<()>;
    /// Renames a file.
    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()>;
    /// Creates a hard link.
    fn link(&self, from: &[u8], to: &[u8]) -> Result<()>;
    /// The cache of open files for sequential readers, if the tree has one.
    fn open_file_cache(&self) -> Option<&OpenFileCache> {
        None
    }
    /// Fails if the file system denies changes of names in a directory, whatever the shown permissions are.
    fn check_names(&self, dir: &[u8]) -> Result<()> {
        let _ = dir;
        Ok(())
    }
    /// Fails if the file system denies writes to a file, whatever the shown permissions are.
    fn check_write(&self, path: &[u8]) -> Result<()> {
        let _ = path;
        Ok(())
    }
    /// The group to show for a file of this owner and group.
    fn shown_group(&self, (_uid, gid): (u32, u32)) -> u32 {
        gid
    }
    /// Changes owner, permissions and times. [`SharedFile::truncate`] changes the size.
    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()>;
    /// As [`SharedFs::change`], for a file of this kind that [`SharedFs::make`] has just created. `EPERM` if it was replaced.
    fn change_made(&self, path: &[u8], kind: FileKind, change: &AttrChange) -> Result<()> {
        let _ = kind;
        self.change(path, change)
    }
    /// Value of an extended attribute.
    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>>;
    /// Names of all extended attributes.
    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Sets an extended attribute.
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()>;
    /// Space of the file system.
    fn space(&self) -> Result<TreeSpace>;
    /// Revalidates a cached name, so that the next lookup asks the file system.
    fn revalidate(&self, path: &[u8]) {
        let _ = path;
    }
    /// Makes the names in a directory durable (`fsync` of the directory).
    fn sync_dir(&self, path: &[u8]) -> Result<()>;
    /// True if a sync of this file makes its name durable too. Otherwise that requires a sync of its directory.
    fn syncs_name_of(&self, stat: &FileStat) -> bool {
        let _ = stat;
        false
    }
    /// True if concurrent syncs share one operation, so that many at a time are faster.
    fn shares_syncs(&self) -> bool {
        false
    }
    /// Persists the name of a file beyond this node, for trees that keep names outside of a file system.
    fn sync_name(&self, path: &[u8]) -> Result<()> {
        let _ = path;
        Ok(())
    }
}

/// Splits a path into directory and last name; `None` for the root.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => Some((&path[..slash], &path[slash + 1..])),
        None if path.is_empty() => None,
        None => Some((b"", path)),
    }
}

/// The path and its ancestors, the root last.
pub fn self_and_ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |path| split(path).map(|(dir, _)| dir))
}

/// The path of `name` in the directory at `path`.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Runs `act`. If the file is missing, the cached names on the path may be stale: revalidates them and retries once.
pub fn retry_revalidated<T>(fs: &dyn SharedFs, path: &[u8], act: impl Fn() -> Result<T>) -> Result<T> {
    match act() {
        Err(fault) if fault.kind() == FaultKind::Missing => {
            revalidate_path(fs, path);
            act()
        }
        done => done,
    }
}

/// Revalidates all cached names on a path.
pub fn revalidate_path(fs: &dyn SharedFs, path: &[u8]) {
    let names: Vec<_> = self_and_ancestors(path).collect();
    names.iter().rev().for_each(|path| fs.revalidate(path));
}
