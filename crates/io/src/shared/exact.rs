//! Exactly the permissions and the owner asked for: the umask or a default access list may have taken some of a file that was just made, and it
//! belongs to this process's user.
//!
//! Other users may be able to rename files in the directory, and put another one in the place of the new one. So neither
//! permissions nor owners are changed by name.

use super::translate;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno as Os;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Gives a file that this process has just made, and has open, its bits.
pub(super) fn set_of_file(file: &OwnedFd, bits: u16) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if has(&stat, bits) { Ok(()) } else { rustix::fs::fchmod(file, wanted(&stat, bits)) }
}

/// Gives what this process has just made of a kind, other than a regular file, its bits. What has come in its place is left as it is.
pub(super) fn set_of_name(
    dir: BorrowedFd<'_>,
    name: &[u8],
    kind: FileType,
    bits: u16,
) -> rustix::io::Result<()> {
    if has(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?, bits) {
        return Ok(());
    }
    let (made, stat) = open(dir, name)?;
    if has(&stat, bits) || !is_own(&stat, kind) || !is_new(&made, &stat) {
        return Ok(());
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", made.as_raw_fd()), wanted(&stat, bits))
}

/// Gives what this process has just made of a kind, other than a regular file, to another owner, and bits, as that takes some away.
///
/// # Errors
/// `EPERM` when something else has come in its place, which is left as it is.
pub(super) fn give(
    dir: BorrowedFd<'_>,
    name: &[u8],
    kind: FileType,
    (uid, gid): (Option<u32>, Option<u32>),
    bits: Option<u16>,
) -> rustix::io::Result<()> {
    let (made, stat) = open(dir, name)?;
    // Its bits may have been changed since it was made, and with them its time of change.
    let is_fresh = if kind == FileType::Directory { is_empty(&made) } else { stat.st_nlink == 1 };
    if !is_own(&stat, kind) || !is_fresh {
        return Err(Os::PERM);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(&made, "", uid, gid, AtFlags::EMPTY_PATH)?;
    match bits {
        Some(bits) if kind != FileType::Symlink => {
            rustix::fs::chmod(format!("/proc/self/fd/{}", made.as_raw_fd()), translate::mode(bits))
        }
        _ => Ok(()),
    }
}

/// What is at a name.
fn open(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(OwnedFd, Stat)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&made)?;
    Ok((made, stat))
}

fn is_own(stat: &Stat, kind: FileType) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && FileType::from_raw_mode(stat.st_mode) == kind
}

fn has(stat: &Stat, bits: u16) -> bool {
    stat.st_mode & 0o777 == u32::from(bits) & 0o777
}

fn wanted(stat: &Stat, bits: u16) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7000 | u32::from(bits & 0o7777))
}

/// Whether this may be what was just made, and not an older file of this user that was renamed: that would have content, or another time of
/// change.
fn is_new(made: &OwnedFd, stat: &Stat) -> bool {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return (stat.st_ctime, stat.st_ctime_nsec) == (stat.st_mtime, stat.st_mtime_nsec);
    }
    is_empty(made)
}

fn is_empty(dir: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let names = rustix::fs::openat(dir.as_fd(), ".", flags, Mode::empty()).and_then(Dir::new);
    let is_name = |name: &[u8]| name != b"." && name != b"..";
    names
        .is_ok_and(|mut names| names.all(|name| name.is_ok_and(|name| !is_name(name.file_name().to_bytes()))))
}
