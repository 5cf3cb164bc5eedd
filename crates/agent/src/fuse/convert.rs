//! Between the kernel's words and ours.

use fuser::{
    FileAttr, FileHandle, FileType, INodeNo, OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode};
use tameike_core::attr::SetTime;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::{Attr, Errno, Fault, FileKind, Layout, Result, Timestamp};

/// Extended attribute must not exist yet.
pub(super) const XATTR_CREATE: i32 = 1;
/// Extended attribute must exist already.
pub(super) const XATTR_REPLACE: i32 = 2;

const O_APPEND: i32 = 0o2000;
const O_TRUNC: i32 = 0o1000;
pub(super) const O_EXCL: i32 = 0o200;
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

pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: after.as_secs() as i64, nanoseconds: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let nanoseconds = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            let seconds = 0_i64.saturating_sub_unsigned(before.as_secs()).saturating_sub(borrow);
            Timestamp { seconds, nanoseconds }
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp(time)),
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

    #[test]
    fn times_survive_the_way_to_the_kernel_and_back() {
        let ends = [(i64::MAX, 999_999_999), (i64::MIN, 0)];
        let common = [(0, 0), (1_700_000_000, 999_999_999), (-1, 0), (-1, 500_000_000)];
        for (seconds, nanoseconds) in common.into_iter().chain(ends) {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }
}
