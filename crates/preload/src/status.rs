//! Conversions of attributes to `struct stat` and `struct statx`.

use tameike_ring::client::{Status, Time};

/// Fields that `statx` returns: no birth time, as from the mount.
const KNOWN: u32 = libc::STATX_BASIC_STATS;

/// Fields that a request may have for the ring to serve it. Programs commonly request birth times, which it does not return.
pub const SUPPORTED: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// Converts to `struct stat`; `device` is the mount's `st_dev`.
pub fn stat(status: &Status, device: u64) -> libc::stat {
    // SAFETY: plain numbers, for which zeros are values.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = device;
    stat.st_ino = status.inode;
    stat.st_nlink = status.nlink as libc::nlink_t;
    stat.st_mode = status.mode;
    stat.st_uid = status.uid;
    stat.st_gid = status.gid;
    stat.st_rdev = status.rdev;
    stat.st_size = status.size.cast_signed();
    stat.st_blksize = status.block_size as libc::blksize_t;
    stat.st_blocks = status.blocks.cast_signed();
    (stat.st_atime, stat.st_atime_nsec) = (status.atime.seconds, status.atime.nanoseconds.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (status.mtime.seconds, status.mtime.nanoseconds.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (status.ctime.seconds, status.ctime.nanoseconds.into());
    stat
}

/// Converts to `struct statx`.
pub fn statx(status: &Status, device: u64) -> libc::statx {
    // SAFETY: plain numbers, for which zeros are values.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    statx.stx_mask = KNOWN;
    statx.stx_blksize = status.block_size;
    statx.stx_nlink = status.nlink;
    statx.stx_uid = status.uid;
    statx.stx_gid = status.gid;
    statx.stx_mode = (status.mode & 0xffff) as u16;
    statx.stx_ino = status.inode;
    statx.stx_size = status.size;
    statx.stx_blocks = status.blocks;
    set_time(&mut statx.stx_atime, status.atime);
    set_time(&mut statx.stx_mtime, status.mtime);
    set_time(&mut statx.stx_ctime, status.ctime);
    (statx.stx_rdev_major, statx.stx_rdev_minor) = (libc::major(status.rdev), libc::minor(status.rdev));
    (statx.stx_dev_major, statx.stx_dev_minor) = (libc::major(device), libc::minor(device));
    statx
}

fn set_time(into: &mut libc::statx_timestamp, time: Time) {
    (into.tv_sec, into.tv_nsec) = (time.seconds, time.nanoseconds);
}
