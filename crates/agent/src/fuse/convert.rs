//! Conversions between types of the FUSE protocol and of the views.

use tameike_client::vfs::OpenMode;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Errno, Fault, FileKind, Layout, Result};
use tameike_fuse::abi::Header;

const FALLOCATE_PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const FALLOCATE_ZERO_KEEP_SIZE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// The thread that makes a request.
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
    if fault.has_message() {
        log::debug!("{fault}");
    }
    fault.errno
}

/// The kind of file in a mode of `mknod`; 0 stands for a regular file.
pub(super) fn kind_of_mode(mode: u32) -> Result<FileKind> {
    match mode & libc::S_IFMT {
        0 | 0o100_000 => Ok(FileKind::File),
        0o010_000 => Ok(FileKind::Fifo),
        0o140_000 => Ok(FileKind::Socket),
        0o020_000 => Ok(FileKind::CharacterDevice),
        0o060_000 => Ok(FileKind::BlockDevice),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// The access of an open, from the flags of `open`.
pub(crate) fn open_mode(flags: i32) -> OpenMode {
    let access = flags & libc::O_ACCMODE;
    OpenMode {
        read: access != libc::O_WRONLY,
        write: access == libc::O_WRONLY || access == libc::O_RDWR,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        noatime: flags & libc::O_NOATIME != 0,
        beside_kernel: false,
    }
}

pub(super) fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Fault::new(Errno::EINVAL, "renameat2 with RENAME_WHITEOUT is not supported")),
    }
}

/// The change that `fallocate` requests, and whether the file grows.
pub(super) fn space_change(mode: i32) -> Result<(SpaceChange, bool)> {
    match mode {
        0 => Ok((SpaceChange::Allocate, true)),
        libc::FALLOC_FL_KEEP_SIZE => Ok((SpaceChange::Allocate, false)),
        FALLOCATE_PUNCH => Ok((SpaceChange::Punch, false)),
        libc::FALLOC_FL_ZERO_RANGE => Ok((SpaceChange::Zero, true)),
        FALLOCATE_ZERO_KEEP_SIZE => Ok((SpaceChange::Zero, false)),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// The target of `lseek`; the kernel serves all other modes itself.
pub(super) fn sought(whence: i32) -> Result<Sought> {
    match whence {
        libc::SEEK_DATA => Ok(Sought::Data),
        libc::SEEK_HOLE => Ok(Sought::Hole),
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
