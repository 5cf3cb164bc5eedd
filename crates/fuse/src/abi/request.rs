//! Decoding of requests, which borrow from the received bytes.

use super::fields::{Decoded, Fields, Forgets, LockRequest, Malformed, Rest};
use tameike_core::attr::AttrChange;

/// Size of the header of a request.
pub(crate) const HEADER_SIZE: usize = 40;

/// Operation codes of the supported requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
}

/// Flags of a write.
const WRITE_CACHE: u32 = 1 << 0;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// The decoded flags of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteFlags {
    /// The kernel writes back dirty pages; programs that wait for these pages wait for the reply.
    pub writes_back: bool,
    /// Write to the end of the file: the descriptor has `O_APPEND` now. Never set for written-back pages.
    pub appends: bool,
    /// Clear the set-user-id and set-group-id bits, since the writer is unprivileged.
    pub takes_rights: bool,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation code.
    pub opcode: u32,
    /// The id of the request, for its reply.
    pub unique: u64,
    /// The node that it refers to.
    pub node: u64,
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Thread of the caller.
    pub pid: u32,
}

/// The operation of a request.
#[expect(missing_docs, reason = "the fields are those of linux/fuse.h")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttr,
    SetAttr(AttrChange),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The new name is in the header's directory.
    Link {
        source: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        flags: WriteFlags,
        data: &'a [u8],
    },
    Flush {
        handle: u64,
        owner: u64,
    },
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    Fallocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        from: i64,
        whence: i32,
    },
    GetLock(LockRequest),
    SetLock {
        lock: LockRequest,
        sleep: bool,
    },
    StatFs,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    OpenDir,
    ReadDir {
        handle: u64,
        after: u64,
        size: u32,
    },
    ReleaseDir {
        handle: u64,
    },
    FsyncDir,
    /// Not supported.
    Unknown,
}

/// A decoded request of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The caller and the node.
    pub header: Header,
    /// The operation.
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Decodes a request as read from the device.
    pub fn decode(bytes: &'a [u8]) -> Decoded<Self> {
        let (header, rest) = Header::decode(bytes)?;
        let (fixed, variable) = rest.split_at_checked(fixed_size(header.opcode)).ok_or(Malformed)?;
        Self::from_parts(header, fixed, variable)
    }

    /// Decodes a request from its header, its fixed-size arguments, and names or bytes after them.
    pub fn from_parts(header: Header, fixed: &[u8], variable: &'a [u8]) -> Decoded<Self> {
        let operation = operation(header.opcode, Fields(fixed), Rest(variable))?;
        Ok(Self { header, operation })
    }
}

impl Header {
    /// Decodes the header. Also returns the rest.
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<(Self, &[u8])> {
        let (header, rest) = bytes.split_at_checked(HEADER_SIZE).ok_or(Malformed)?;
        let mut fields = Fields(header);
        let _length = fields.u32()?;
        let (opcode, unique, node) = (fields.u32()?, fields.u64()?, fields.u64()?);
        let (uid, gid, pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        Ok((Self { opcode, unique, node, uid, gid, pid }, rest))
    }
}

/// Size of the fixed arguments of an operation.
pub(super) fn fixed_size(code: u32) -> usize {
    match code {
        opcode::FORGET | opcode::RENAME | opcode::LINK | opcode::OPEN | opcode::MKDIR => 8,
        opcode::OPENDIR | opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::BATCH_FORGET => 8,
        opcode::GETATTR | opcode::MKNOD | opcode::CREATE | opcode::RENAME2 => 16,
        opcode::FSYNC | opcode::FSYNCDIR => 16,
        opcode::FLUSH | opcode::RELEASE | opcode::RELEASEDIR | opcode::LSEEK => 24,
        opcode::FALLOCATE => 32,
        opcode::READ | opcode::READDIR | opcode::WRITE => 40,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => 48,
        opcode::SETATTR => 88,
        _ => 0,
    }
}

fn operation<'a>(code: u32, mut fixed: Fields<'_>, mut rest: Rest<'a>) -> Decoded<Operation<'a>> {
    Ok(match code {
        opcode::LOOKUP => Operation::Lookup { name: rest.name()? },
        opcode::FORGET => Operation::Forget { lookups: fixed.u64()? },
        opcode::BATCH_FORGET => Operation::BatchForget(rest.forgets(fixed.u32()?)?),
        opcode::GETATTR => Operation::GetAttr,
        opcode::SETATTR => Operation::SetAttr(fixed.attr_change()?),
        opcode::READLINK => Operation::ReadLink,
        opcode::UNLINK => Operation::Unlink { name: rest.name()? },
        opcode::RMDIR => Operation::RmDir { name: rest.name()? },
        opcode::READ => {
            let (handle, offset, size) = fixed.handle_and_range()?;
            Operation::Read { handle, offset, size }
        }
        opcode::WRITE => {
            let (handle, offset, size) = fixed.handle_and_range()?;
            let bits = fixed.u32()?;
            let _lock_owner = fixed.u64()?;
            let file_flags = fixed.u32()?;
            let writes_back = bits & WRITE_CACHE != 0;
            let flags = WriteFlags {
                writes_back,
                appends: !writes_back && file_flags & libc::O_APPEND as u32 != 0,
                takes_rights: bits & WRITE_KILL_SUIDGID != 0,
            };
            Operation::Write { handle, offset, flags, data: rest.bytes(size)? }
        }
        opcode::READDIR => {
            let (handle, after, size) = fixed.handle_and_range()?;
            Operation::ReadDir { handle, after, size }
        }
        opcode::RELEASE => Operation::Release { handle: fixed.u64()? },
        opcode::RELEASEDIR => Operation::ReleaseDir { handle: fixed.u64()? },
        opcode::FSYNC => Operation::Fsync { handle: fixed.u64()? },
        opcode::FSYNCDIR => Operation::FsyncDir,
        opcode::FLUSH => {
            let (handle, _unused) = (fixed.u64()?, fixed.u64()?);
            Operation::Flush { handle, owner: fixed.u64()? }
        }
        opcode::OPEN => Operation::Open { flags: fixed.i32()? },
        opcode::OPENDIR => Operation::OpenDir,
        opcode::STATFS => Operation::StatFs,
        opcode::GETLK => Operation::GetLock(fixed.lock()?),
        opcode::SETLK => Operation::SetLock { lock: fixed.lock()?, sleep: false },
        opcode::SETLKW => Operation::SetLock { lock: fixed.lock()?, sleep: true },
        _ => return longer(code, fixed, rest),
    })
}

/// Operations that are rare or have several names.
fn longer<'a>(code: u32, mut fixed: Fields<'_>, mut rest: Rest<'a>) -> Decoded<Operation<'a>> {
    Ok(match code {
        opcode::CREATE => {
            let (flags, mode, umask) = (fixed.i32()?, fixed.u32()?, fixed.u32()?);
            Operation::Create { name: rest.name()?, flags, mode, umask }
        }
        opcode::MKNOD => {
            let (mode, rdev, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
            Operation::MkNod { name: rest.name()?, mode, rdev, umask }
        }
        opcode::MKDIR => {
            let (mode, umask) = (fixed.u32()?, fixed.u32()?);
            Operation::MkDir { name: rest.name()?, mode, umask }
        }
        opcode::SYMLINK => Operation::SymLink { name: rest.name()?, target: rest.name()? },
        opcode::RENAME | opcode::RENAME2 => {
            let new_parent = fixed.u64()?;
            let flags = if code == opcode::RENAME2 { fixed.u32()? } else { 0 };
            Operation::Rename { name: rest.name()?, new_parent, new_name: rest.name()?, flags }
        }
        opcode::LINK => Operation::Link { source: fixed.u64()?, name: rest.name()? },
        opcode::SETXATTR => {
            let (size, flags) = (fixed.u32()?, fixed.i32()?);
            Operation::SetXattr { name: rest.name()?, value: rest.bytes(size)?, flags }
        }
        opcode::GETXATTR => Operation::GetXattr { name: rest.name()?, size: fixed.u32()? },
        opcode::LISTXATTR => Operation::ListXattr { size: fixed.u32()? },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: rest.name()? },
        opcode::FALLOCATE => {
            let (handle, offset, length, mode) = (fixed.u64()?, fixed.u64()?, fixed.u64()?, fixed.i32()?);
            Operation::Fallocate { handle, offset, length, mode }
        }
        opcode::LSEEK => {
            let (handle, from, whence) = (fixed.u64()?, fixed.u64()? as i64, fixed.i32()?);
            Operation::Seek { handle, from, whence }
        }
        _ => Operation::Unknown,
    })
}
