//! Sets the exact permissions and owner of a new file. The umask or a default access list may have removed permissions, and the
//! owner is the user of this process.
//!
//! Other users may be able to rename files in the directory and put another one in place of the new one. So permissions and
//! owners are never changed by name.

use super::translate;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno as Os;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Sets the permissions of a file that this process has just created and has open.
pub(super) fn set_of_file(file: &OwnedFd, bits: u16) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if has(&stat, bits) { Ok(()) } else { rustix::fs::fchmod(file, wanted(&stat, bits)) }
}

/// Sets the permissions of an entry of this kind, not a regular file, that this process has just created. A replacement is left
/// unchanged.
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

/// Changes the owner of an entry of this kind, not a regular file, that this process has just created. Also sets the permissions,
/// because a change of owner clears some. Fails with `EPERM` if the entry was replaced, and leaves the replacement unchanged.
pub(super) fn change_owner(
    dir: BorrowedFd<'_>,
    name: &[u8],
    kind: FileType,
    (uid, gid): (Option<u32>, Option<u32>),
    bits: Option<u16>,
) -> rustix::io::Result<()> {
    let (made, stat) = open(dir, name)?;
    // The permissions, and with them the ctime, may have changed since the creation.
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

/// Opens an entry by `O_PATH`.
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

/// True if this can be the new entry, not an older one of this user that was renamed: that would have content, or a ctime other
/// than its mtime.
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
