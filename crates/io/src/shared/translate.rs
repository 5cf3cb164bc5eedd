//! Conversions between the types of the system and those of this crate.

use super::{Allocate, FileStat, XattrMode};
use rustix::fs::{
    FallocateFlags, FileType, Mode, Statx, StatxTimestamp, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags,
};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, FileKind, Timestamp};

/// Converts an error of the system to a fault. The errors of normal operation have no text, which saves an allocation.
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

/// The file type for `mknod`.
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

pub(super) fn stat(root_device: u64, stat: &Statx, handle_hash: u64) -> FileStat {
    let time = |time: &StatxTimestamp| Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    FileStat {
        device: if device == root_device { 0 } else { device },
        inode: stat.stx_ino,
        handle_hash,
        kind: kind(FileType::from_raw_mode(stat.stx_mode.into())).unwrap_or(FileKind::File),
        mode: stat.stx_mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: fuse_device(rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor)),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
    }
}

/// Encodes a device number as FUSE does: 12 bits of major and 20 bits of minor number.
pub(super) fn fuse_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Decodes a device number that FUSE encoded.
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
