//! Between the system's structures and ours.

use super::{Allocate, FileStat, XattrMode};
use rustix::fs::{
    FallocateFlags, FileType, Mode, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags,
};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, FileKind, Timestamp};

/// Turns an error of the system into a fault. Those that programs meet in normal work cost no text.
pub(super) fn fault(doing: &str, path: &[u8], error: rustix::io::Errno) -> Fault {
    use rustix::io::Errno as Os;
    let errno = Errno(error.raw_os_error());
    match error {
        Os::NOENT | Os::EXIST | Os::NOTEMPTY | Os::NODATA | Os::NXIO | Os::NOTDIR | Os::ISDIR => errno.into(),
        _ => Fault::new(errno, format!("{doing} {}: {}", String::from_utf8_lossy(path), errno.describe())),
    }
}

pub(super) fn kind(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// The system's type of a node that `mknod` makes.
pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharacterDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

#[expect(clippy::unnecessary_cast, reason = "the widths of these fields differ between architectures")]
pub(super) fn stat(root_device: u64, stat: &Stat, birth: u64) -> FileStat {
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    FileStat {
        device: if stat.st_dev == root_device { 0 } else { stat.st_dev },
        inode: stat.st_ino,
        birth,
        kind: kind(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::File),
        mode: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: fuse_device(stat.st_rdev),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as u32),
    }
}

/// A device number as FUSE encodes it: the kernel's 12 bits of major and 20 bits of minor number.
pub(super) fn fuse_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The system's number of a device that FUSE encoded.
pub(super) fn system_device(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

pub(super) fn mode(bits: u16) -> Mode {
    Mode::from_raw_mode(u32::from(bits & 0o7777))
}

/// The times of a change, if it has any.
pub(super) fn times(change: &AttrChange) -> Option<Timestamps> {
    let one = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    (change.atime.is_some() || change.mtime.is_some())
        .then(|| Timestamps { last_access: one(change.atime), last_modification: one(change.mtime) })
}

pub(super) fn allocate(how: Allocate) -> FallocateFlags {
    match how {
        Allocate::Extend => FallocateFlags::empty(),
        Allocate::Keep => FallocateFlags::KEEP_SIZE,
        Allocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Allocate::Zero => FallocateFlags::ZERO_RANGE,
    }
}

pub(super) fn xattr(mode: XattrMode) -> XattrFlags {
    match mode {
        XattrMode::Any => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    }
}
