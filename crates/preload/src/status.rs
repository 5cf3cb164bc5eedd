//! Conversion of attributes to `struct stat`.

use rustix::fs::Stat;
use tameike_ring::client::Status;

/// Converts to `struct stat`; `device` is the mount's `st_dev`.
pub fn stat(status: &Status, device: u64) -> Stat {
    // SAFETY: plain numbers, for which zeros are values.
    let mut stat: Stat = unsafe { std::mem::zeroed() };
    stat.st_dev = device;
    stat.st_ino = status.ino;
    stat.st_nlink = status.nlink as libc::nlink_t;
    stat.st_mode = status.mode;
    stat.st_uid = status.uid;
    stat.st_gid = status.gid;
    stat.st_rdev = status.rdev;
    stat.st_size = status.size.cast_signed();
    stat.st_blksize = status.blksize as libc::blksize_t;
    stat.st_blocks = status.blocks.cast_signed();
    (stat.st_atime, stat.st_atime_nsec) = (status.atime.seconds, status.atime.nanoseconds.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (status.mtime.seconds, status.mtime.nanoseconds.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (status.ctime.seconds, status.ctime.nanoseconds.into());
    stat
}
