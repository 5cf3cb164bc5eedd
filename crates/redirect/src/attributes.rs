//! Attributes of files of the tree, as programs see them.
//!
//! Packing does not change a file's identity: its inode number is derived from its name, and its device is that of the container's
//! directory.

use crate::kernel::{self, Result};
use crate::names::{self, Existing};
use crate::spool::{self, Spool};
use rustix::fs::{AtFlags, CWD, Stat};
use tameike_core::Timestamp;
use tameike_core::spool::number;
use tameike_core::spool::stub::Stub;
use tameike_interpose::Verdict;

/// `st_blksize` of packed files.
const BLOCK_SIZE: u32 = 1 << 20;
/// `st_size` of each directory.
const DIRECTORY_SIZE: i64 = 4096;
/// Unit of `st_blocks`.
const SECTOR: u64 = 512;

/// `fstatat` of a path.
pub fn of_path(directory: i32, path: &[u8], follow: bool) -> Verdict<Stat> {
    spool::get()?.settled(|| stat_path(directory, path, follow), is_dir)
}

/// `fstat`; `None` for files outside the tree.
pub fn of_open(number: i32) -> Verdict<Stat> {
    spool::get()?.settled(|| stat_open(number), is_dir)
}

fn is_dir(found: &Verdict<Stat>) -> bool {
    matches!(found, Some(Ok(stat)) if kernel::is_kind(stat.st_mode, libc::S_IFDIR))
}

fn stat_path(directory: i32, path: &[u8], follow: bool) -> Verdict<Stat> {
    Some(match names::find_existing(directory, path, follow)? {
        Ok(Existing::Real(spool, inner, stat)) => Ok(as_shown(spool, *stat, &inner)),
        Ok(Existing::Outside(path)) if follow => rustix::fs::statat(CWD, &path, AtFlags::empty()),
        Ok(Existing::Outside(path)) => kernel::lstat(&path),
        Ok(Existing::Packed(spool, inner, stub)) => packed(spool, &inner, &stub),
        Err(error) => Err(error),
    })
}

fn stat_open(number: i32) -> Verdict<Stat> {
    let (spool, inner, stat) = names::find_open(number)?;
    Some(Ok(as_shown(spool, stat, &inner)))
}

/// Converts attributes of a file of the tree to those that programs see.
fn as_shown(spool: &Spool, mut stat: Stat, inner: &[u8]) -> Stat {
    // Until the file is packed, all its names have the number of the first one.
    let has_names = stat.st_nlink > 1 && !kernel::is_kind(stat.st_mode, libc::S_IFDIR);
    stat.st_dev = spool.outer_device();
    stat.st_ino = match has_names.then_some(stat.st_ino) {
        Some(inode) => spool.number_of_linked(inode).unwrap_or_else(|| number(&inode.to_ne_bytes())),
        None => number(inner),
    };
    hide_packing(&mut stat);
    stat
}

/// Hides packing: names that appear in the tree change no directory size, and ctime is mtime, as the container stores no ctime.
fn hide_packing(stat: &mut Stat) {
    (stat.st_ctime, stat.st_ctime_nsec) = (stat.st_mtime, stat.st_mtime_nsec);
    if kernel::is_kind(stat.st_mode, libc::S_IFDIR) {
        stat.st_size = DIRECTORY_SIZE;
    }
}

fn packed(spool: &Spool, inner: &[u8], stub: &Stub) -> Result<Stat> {
    // Initializes fields that differ between architectures, and times that the stub does not have.
    let mut stat = rustix::fs::statat(CWD, spool.real(inner)?, AtFlags::SYMLINK_NOFOLLOW)?;
    let Timestamp { seconds, nanoseconds } = stub.mtime;
    stat.st_dev = spool.outer_device();
    stat.st_ino = number(inner);
    stat.st_nlink = 1;
    stat.st_mode = libc::S_IFREG | u32::from(stub.mode);
    (stat.st_uid, stat.st_gid) = (stub.uid, stub.gid);
    stat.st_size = i64::try_from(stub.size).unwrap_or(i64::MAX);
    stat.st_blksize = BLOCK_SIZE.into();
    stat.st_blocks = stub.size.div_ceil(SECTOR).cast_signed();
    (stat.st_mtime, stat.st_mtime_nsec) = (seconds, nanoseconds.into());
    hide_packing(&mut stat);
    Ok(stat)
}
