//! Between the kernel's words and ours.

use fuser::{
    FileAttr, FileHandle, FileType, INodeNo, OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, Fault, FileKind, Layout, Result, Timestamp};

/// Extended attribute must not exist yet.
pub(super) const XATTR_CREATE: i32 = 1;
/// Extended attribute must exist already.
pub(super) const XATTR_REPLACE: i32 = 2;

const O_APPEND: i32 = 0o2000;
const O_TRUNC: i32 = 0o1000;
const O_NOATIME: i32 = 0o1_000_000;
pub(super) const O_EXCL: i32 = 0o200;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE_KEEP_SIZE: i32 = 2 | KEEP_SIZE;
const ZERO_RANGE: i32 = 16;
const ZERO_RANGE_KEEP_SIZE: i32 = ZERO_RANGE | KEEP_SIZE;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const FILE_TYPE_MASK: u32 = 0o170_000;

pub(super) fn errno(fault: &Fault) -> fuser::Errno {
    if !fault.message.is_empty() {
        log::debug!("{fault}");
    }
    fuser::Errno::from_i32(fault.errno.0)
}

pub(super) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharacterDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
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

pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    if time.seconds >= 0 { UNIX_EPOCH + whole + nanoseconds } else { UNIX_EPOCH - whole + nanoseconds }
}

/// The time of a request. The binding takes the nanoseconds of times before 1970 away from the seconds instead
/// of adding them; here the kernel's two numbers are had back.
fn requested_time(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: after.as_secs() as i64, nanoseconds: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let seconds = 0_i64.saturating_sub_unsigned(before.as_secs());
            Timestamp { seconds, nanoseconds: before.subsec_nanos() }
        }
    }
}

pub(super) fn attr_change(
    mode: Option<u32>,
    (uid, gid): (Option<u32>, Option<u32>),
    size: Option<u64>,
    (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
) -> AttrChange {
    AttrChange {
        mode: mode.map(|mode| (mode & 0o7777) as u16),
        uid,
        gid,
        size,
        atime: atime.map(set_time),
        mtime: mtime.map(set_time),
        layout: None,
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(requested_time(time)),
    }
}

pub(super) fn file_attr(file: FileNumber, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(file.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: UNIT_SIZE as u32,
        flags: 0,
    }
}

pub(super) fn open_mode(flags: OpenFlags) -> OpenMode {
    let access = flags.acc_mode();
    OpenMode {
        read: access != OpenAccMode::O_WRONLY,
        write: access != OpenAccMode::O_RDONLY,
        append: flags.0 & O_APPEND != 0,
        truncate: flags.0 & O_TRUNC != 0,
        noatime: flags.0 & O_NOATIME != 0,
        beside_kernel: false,
    }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(Fault::new(Errno::EINVAL, "a rename that leaves a whiteout is not supported"))
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

pub(super) fn file(number: INodeNo) -> FileNumber {
    FileNumber(number.0)
}

pub(super) fn handle(number: FileHandle) -> HandleNumber {
    HandleNumber(number.0)
}

pub(super) fn new_inode(request: &Request, kind: FileKind, mode: u32, umask: u32) -> NewInode {
    NewInode {
        kind,
        mode: (mode & !umask & 0o7777) as u16,
        uid: request.uid(),
        gid: request.gid(),
        rdev: 0,
        layout: Layout::default(),
        symlink: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times before 1970 with a fraction came out a second early.
    #[test]
    fn times_are_the_kernels() {
        let ago = |seconds: u64, nanoseconds| UNIX_EPOCH - Duration::new(seconds, nanoseconds);
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        // What the binding makes of seconds -3600 and nanoseconds 500000000.
        assert_eq!(requested_time(ago(3600, 500_000_000)), at(-3600, 500_000_000));
        assert_eq!(requested_time(ago(1, 0)), at(-1, 0));
        assert_eq!(requested_time(ago(1 << 63, 0)), at(i64::MIN, 0));
        assert_eq!(requested_time(UNIX_EPOCH + Duration::new(7, 9)), at(7, 9));
        // The way back keeps to what the system means by such a time.
        assert_eq!(system_time(at(-3600, 500_000_000)), ago(3599, 500_000_000));
        assert_eq!(system_time(at(7, 9)), UNIX_EPOCH + Duration::new(7, 9));
    }
}
