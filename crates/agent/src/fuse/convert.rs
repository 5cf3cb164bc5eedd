//! Between the kernel's words and ours.

use tameike_client::vfs::OpenMode;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Errno, Fault, FileKind, Layout, Result};
use tameike_fuse::abi::Header;

/// Extended attribute must not exist yet.
pub(super) const XATTR_CREATE: i32 = 1;
/// Extended attribute must exist already.
pub(super) const XATTR_REPLACE: i32 = 2;

const O_ACCMODE: i32 = 0o3;
const O_WRONLY: i32 = 0o1;
const O_RDWR: i32 = 0o2;
const O_APPEND: i32 = 0o2000;
const O_TRUNC: i32 = 0o1000;
const O_NOATIME: i32 = 0o1_000_000;
pub(super) const O_EXCL: i32 = 0o200;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE_KEEP_SIZE: i32 = 2 | KEEP_SIZE;
const ZERO_RANGE: i32 = 16;
const ZERO_RANGE_KEEP_SIZE: i32 = ZERO_RANGE | KEEP_SIZE;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const FILE_TYPE_MASK: u32 = 0o170_000;

/// Who makes a request.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub user: u32,
    pub group: u32,
    pub thread: u32,
}

impl Caller {
    pub(super) fn of(header: &Header) -> Self {
        Self { user: header.uid, group: header.gid, thread: header.pid }
    }
}

pub(super) fn errno(fault: &Fault) -> Errno {
    if !fault.message.is_empty() {
        log::debug!("{fault}");
    }
    fault.errno
}

/// The kind of file in a mode of `mknod`; 0 stands for a regular file.
pub(super) fn kind_of_mode(mode: u32) -> Result<FileKind> {
    match mode & FILE_TYPE_MASK {
        0 | 0o100_000 => Ok(FileKind::File),
        0o010_000 => Ok(FileKind::Fifo),
        0o140_000 => Ok(FileKind::Socket),
        0o020_000 => Ok(FileKind::CharacterDevice),
        0o060_000 => Ok(FileKind::BlockDevice),
        _ => Err(Errno::EINVAL.into()),
    }
}

pub(super) fn open_mode(flags: i32) -> OpenMode {
    let access = flags & O_ACCMODE;
    OpenMode {
        read: access != O_WRONLY,
        write: access == O_WRONLY || access == O_RDWR,
        append: flags & O_APPEND != 0,
        truncate: flags & O_TRUNC != 0,
        noatime: flags & O_NOATIME != 0,
        beside_kernel: false,
    }
}

pub(super) fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Fault::new(Errno::EINVAL, "a rename that leaves a whiteout is not supported")),
    }
}

/// What `fallocate` is asked for, and whether the file grows.
pub(super) fn space_change(mode: i32) -> Result<(SpaceChange, bool)> {
    match mode {
        0 => Ok((SpaceChange::Allocate, true)),
        KEEP_SIZE => Ok((SpaceChange::Allocate, false)),
        PUNCH_HOLE_KEEP_SIZE => Ok((SpaceChange::Punch, false)),
        ZERO_RANGE => Ok((SpaceChange::Zero, true)),
        ZERO_RANGE_KEEP_SIZE => Ok((SpaceChange::Zero, false)),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// What `lseek` looks for; the kernel answers all others itself.
pub(super) fn sought(whence: i32) -> Result<Sought> {
    match whence {
        SEEK_DATA => Ok(Sought::Data),
        SEEK_HOLE => Ok(Sought::Hole),
        _ => Err(Errno::EINVAL.into()),
    }
}

pub(super) fn new_inode(caller: Caller, kind: FileKind, mode: u32, umask: u32) -> NewInode {
    NewInode {
        kind,
        mode: (mode & !umask & 0o7777) as u16,
        uid: caller.user,
        gid: caller.group,
        rdev: 0,
        layout: Layout::default(),
        symlink: Vec::new(),
    }
}
