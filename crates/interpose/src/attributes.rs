//! Attributes of files, for `stat` and its variants.

use rustix::fs::{Stat, Statx, StatxFlags};
use std::ffi::c_int;

/// Version of `struct stat` in the first argument of functions that glibc had before 2.33.
pub const STAT_VERSION: c_int = if cfg!(target_arch = "x86_64") { 1 } else { 0 };

// The caller's structures are those of the C library.
const _: () = assert!(size_of::<Stat>() == size_of::<libc::stat>());
const _: () = assert!(size_of::<Statx>() == size_of::<libc::statx>());

/// Converts for `statx`; there is no birth time.
pub fn statx_of(stat: &Stat) -> Statx {
    // SAFETY: plain numbers, for which zeros are values.
    let mut statx: Statx = unsafe { std::mem::zeroed() };
    statx.stx_mask = StatxFlags::BASIC_STATS.bits();
    statx.stx_blksize = stat.st_blksize as u32;
    statx.stx_nlink = stat.st_nlink as u32;
    (statx.stx_uid, statx.stx_gid) = (stat.st_uid, stat.st_gid);
    statx.stx_mode = (stat.st_mode & 0xffff) as u16;
    (statx.stx_ino, statx.stx_size, statx.stx_blocks) =
        (stat.st_ino, stat.st_size.cast_unsigned(), stat.st_blocks.cast_unsigned());
    (statx.stx_atime.tv_sec, statx.stx_atime.tv_nsec) = (stat.st_atime, stat.st_atime_nsec as u32);
    (statx.stx_mtime.tv_sec, statx.stx_mtime.tv_nsec) = (stat.st_mtime, stat.st_mtime_nsec as u32);
    (statx.stx_ctime.tv_sec, statx.stx_ctime.tv_nsec) = (stat.st_ctime, stat.st_ctime_nsec as u32);
    (statx.stx_rdev_major, statx.stx_rdev_minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    (statx.stx_dev_major, statx.stx_dev_minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    statx
}
