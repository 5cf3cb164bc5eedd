//! The shared file system as a parameter: a tree of files below one directory.
//!
//! [`SharedFs`] is what the cache view passes names and attributes to and what its data is flushed to; the
//! node-local view is the same trait over a directory of the node's own disk. [`PosixTree`] is the real one;
//! tests put one in between that fails on purpose, a simulated cluster has its own.
//!
//! Every call blocks: who must not wait runs it with [`crate::Runtime::block`], several calls in one job.
//! Paths are bytes relative to the root, names joined by `/`, the root itself is empty. No path leaves the
//! root, and no symbolic link is followed: a link is a thing with a target, never a way to somewhere else.

mod directory;
mod exact;
mod file;
mod ids;
mod kept;
mod look;
mod posix;
#[cfg(test)]
mod tests;
mod translate;
mod whole;

pub use kept::{Changing, KeptFile, KeptFiles, Moment, open_same};
pub use posix::PosixTree;
pub use whole::{NamedXattr, WholeFile, xattrs_of};

use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, Errno, FaultKind, FileKind, Generation, InodeId, Layout, Result, Timestamp};

/// What `stat` says of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Device: 0 on the file system of the root, so that nodes which mount it under different numbers agree;
    /// the system's number on file systems mounted below the root.
    pub device: u64,
    /// Inode number on the device.
    pub inode: u64,
    /// Differs from that of another file which had the inode number before; 0 where the file system does not tell.
    /// To be compared with what the same process was told.
    pub birth: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub mode: u16,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, as FUSE encodes it.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

impl FileStat {
    /// The number by which the job knows the file.
    pub fn inode_id(&self) -> InodeId {
        InodeId::cached(self.device, self.inode)
    }

    /// What tells that the content was changed by somebody else.
    pub fn stamp(&self) -> Stamp {
        Stamp {
            device: self.device,
            inode: self.inode,
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }

    /// The attributes as the views give them.
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

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The name.
    pub name: Vec<u8>,
    /// The file's number, as in [`FileStat::inode_id`]; of a mount point, that of the directory below it.
    pub inode: InodeId,
    /// Its kind.
    pub kind: FileKind,
    /// Cursor after it; never 0.
    pub next: u64,
}

/// Something to make that is not a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    /// A directory with these permission bits.
    Directory(u16),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A named pipe, socket or device file.
    Node {
        /// Which of them.
        kind: FileKind,
        /// Permission bits.
        mode: u16,
        /// Device number of a device file, as FUSE encodes it.
        rdev: u32,
    },
}

/// For what a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// Space of the file system below a tree.
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

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Whether it exists or not.
    Any,
    /// `EEXIST` when it exists.
    Create,
    /// `ENODATA` when it does not.
    Replace,
}

/// What `fallocate` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Space for the range; the file grows to its end.
    Extend,
    /// Space for the range; the size stays.
    Keep,
    /// No space for the range: it reads as zeros.
    Punch,
    /// The range reads as zeros; the file grows to its end.
    Zero,
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data.
    Data,
    /// The next hole.
    Hole,
}

/// An open regular file.
pub trait SharedFile: Send + Sync {
    /// Its attributes now.
    fn stat(&self) -> Result<FileStat>;
    /// Reads at `offset` until `buffer` is full or the file ends; the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Reads some bytes at `offset`: none at the end alone. Who knows where that is need not ask once more.
    fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at(buffer, offset)
    }
    /// Whether each read to come is of just what is wanted, so that the system had better read that at once, and nothing ahead of it. Nothing is promised.
    fn advise_exact(&self, is_exact: bool) {
        let _ = is_exact;
    }
    /// Has a range be on its way to this machine's memory, where a read to come finds it. Nothing is promised.
    fn prefetch(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Who is about to write says how large the file will be then: where it is kept may go by that. Nothing is changed.
    fn expect_size(&self, size: u64) -> Result<()> {
        let _ = size;
        Ok(())
    }
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Writes all of `bytes` at the end of the file, which the file system finds: what several descriptors append, on
    /// any machines, does not overlap as far as it can prevent that.
    fn append(&self, bytes: &[u8]) -> Result<()>;
    /// Sets the size.
    fn truncate(&self, size: u64) -> Result<()>;
    /// Allocates or frees space.
    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()>;
    /// The next data or hole at or after `offset`; `ENXIO` beyond the end.
    fn seek(&self, what: Seek, offset: u64) -> Result<u64>;
    /// Makes content and attributes safe on the file system's own terms (`fsync`).
    fn sync(&self) -> Result<()>;
    /// Has what was written be on its way to where [`SharedFile::sync`] brings it, which waits less then. Nothing is promised.
    fn start_write_back(&self) {}
    /// Makes the next reads come from the file system, not from this machine's memory, where it can be told.
    fn forget_pages(&self) -> Result<()>;
    /// Has the next look at it, and reads up to its end, go by how the file is now, and by which file it is, where this machine may remember it
    /// otherwise.
    fn look_anew(&self) -> Result<()>;
    /// Has the next reads be of what other machines have written to it.
    fn read_anew(&self) -> Result<()> {
        self.look_anew()?;
        self.forget_pages()
    }
    /// Changes owner, permissions and times (the size is [`SharedFile::truncate`]'s).
    fn change(&self, change: &AttrChange) -> Result<()>;
    /// Sets an extended attribute, whether it exists or not. `EOPNOTSUPP` where that goes by paths alone.
    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let _ = (name, value);
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Refuses whom the file system lets not write to it, where the permissions that are shown of it may say otherwise.
    fn check_write(&self) -> Result<()> {
        Ok(())
    }
    /// Whether who has written to it may give it its size and time by the same open. Elsewhere its close may give the file another time than
    /// was set before, and other machines may show for a while what was before.
    fn is_ended_by_writer(&self) -> bool {
        false
    }
    /// Has a range for this open file alone, until it is closed: whether nobody else has it, on any machine where the file
    /// system knows of other machines' locks. `EOPNOTSUPP` where it knows of none.
    fn try_lock(&self, offset: u64, length: u64) -> Result<bool> {
        let _ = (offset, length);
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Whether another open file has some of a range by [`SharedFile::try_lock`]. Locks of who may only read the file are none. `EOPNOTSUPP` as there.
    fn is_locked(&self, offset: u64, length: u64) -> Result<bool> {
        let _ = (offset, length);
        Err(Errno::EOPNOTSUPP.into())
    }
}

/// An open directory.
pub trait SharedDir: Send + Sync {
    /// Its attributes now.
    fn stat(&self) -> Result<FileStat>;
    /// The next names after a cursor (0: the first), `.` and `..` among them, in the file system's order: as many
    /// as it gives at once, none at the end. Cursors are the file system's own, and hold as long as it says.
    fn read(&self, after: u64) -> Result<Vec<NamedFile>>;
}

/// A hold on a file, until dropped.
pub type Pin = Box<dyn Send + Sync>;

/// A tree of files below one directory.
pub trait SharedFs: Send + Sync {
    /// Attributes of a file; of a symbolic link itself.
    fn stat(&self, path: &[u8]) -> Result<FileStat>;
    /// Attributes of a file, and a hold on it: while held, its number is not given to another file, even when it
    /// loses its last name.
    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)>;
    /// Opens a directory.
    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>>;
    /// Target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Opens a regular file. The owner's own permission bits do not stand in the way: a program that may write
    /// a file it has open may have made it read-only since.
    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>>;
    /// Opens a regular file for reading, as [`SharedFs::open`], and tells all of it, but for its [birth](FileStat::birth).
    fn open_whole(&self, path: &[u8]) -> Result<WholeFile> {
        let file = self.open(path, Access::Read)?;
        Ok(WholeFile { stat: file.stat()?, xattrs: xattrs_of(self, path)?, file })
    }
    /// The tree below a directory, for who does much there: no way is looked for once more. It stays that directory, whatever becomes of its name.
    /// `EOPNOTSUPP` where there is none.
    fn below(&self, dir: &[u8]) -> Result<Arc<dyn SharedFs>> {
        let _ = dir;
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Makes a regular file that must not exist, with exactly these permission bits, and opens it for writing.
    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>>;
    /// The same, with the permissions that this process's umask, or the directory's default access list, leaves to all; where that is not
    /// known, for the owner alone.
    fn create_by_umask(&self, path: &[u8]) -> Result<Arc<dyn SharedFile>> {
        self.create(path, 0o600)
    }
    /// Makes something else than a regular file, which must not exist, and tells its attributes.
    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, path: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &[u8]) -> Result<()>;
    /// Gives a file another name.
    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()>;
    /// Gives a file one more name.
    fn link(&self, from: &[u8], to: &[u8]) -> Result<()>;
    /// Files that stay open for sequential readers, if the tree keeps any.
    fn kept(&self) -> Option<&KeptFiles> {
        None
    }
    /// Refuses whom the file system lets change no names in a directory, where the permissions that are shown of it may say otherwise.
    fn check_names(&self, dir: &[u8]) -> Result<()> {
        let _ = dir;
        Ok(())
    }
    /// The same of who may not write to a file.
    fn check_write(&self, path: &[u8]) -> Result<()> {
        let _ = path;
        Ok(())
    }
    /// The group that is shown of a file of this owner and group.
    fn shown_group(&self, (_uid, gid): (u32, u32)) -> u32 {
        gid
    }
    /// Changes owner, permissions and times (the size is [`SharedFile::truncate`]'s).
    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()>;
    /// The same of what this process has just made there by [`SharedFs::make`], of this kind. `EPERM` where something else has come in its place.
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
    /// Has the next look at a name be one at the file system, where this machine may remember what was there before another one changed it.
    fn look_anew(&self, path: &[u8]) {
        let _ = path;
    }
    /// Makes the names in a directory safe (`fsync` of the directory).
    fn sync_dir(&self, path: &[u8]) -> Result<()>;
    /// Whether a sync of a file that is `stat` makes its name safe, too: else that takes a sync of its directory.
    fn syncs_name_of(&self, stat: &FileStat) -> bool {
        let _ = stat;
        false
    }
    /// Whether files that are synced at the same time are so by one sync, so that many at a time are better.
    fn shares_syncs(&self) -> bool {
        false
    }
    /// Makes the name of a file safe against the loss of this machine, where the tree keeps names itself and not in a file system.
    fn sync_name(&self, path: &[u8]) -> Result<()> {
        let _ = path;
        Ok(())
    }
}

/// Directory and last name of a path; the root has neither.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => Some((&path[..slash], &path[slash + 1..])),
        None if path.is_empty() => None,
        None => Some((b"", path)),
    }
}

/// A path, and the directories that it is below, the root last.
pub fn with_those_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |path| split(path).map(|(dir, _)| dir))
}

/// The path of `name` in the directory at `path`.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Does something with what is at a path. Where that is missing, it may be that this machine only remembers what was on the way there:
/// then it looks anew, and does it once more.
///
/// # Errors
/// Those of `act`.
pub fn anew<T>(fs: &dyn SharedFs, path: &[u8], act: impl Fn() -> Result<T>) -> Result<T> {
    match act() {
        Err(fault) if fault.kind() == FaultKind::Missing => {
            walk_anew(fs, path);
            act()
        }
        done => done,
    }
}

/// Has the next looks at all names on the way to a path be ones at the file system.
pub fn walk_anew(fs: &dyn SharedFs, path: &[u8]) {
    let names: Vec<_> = with_those_above(path).collect();
    names.iter().rev().for_each(|path| fs.look_anew(path));
}
