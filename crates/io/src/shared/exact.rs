//! Exactly the permissions asked for: the umask or a default access list may have taken some of a file that was just made.
//!
//! Other users may be able to rename files in the directory, and put another one in the place of the new one. So no
//! permissions are changed by name.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
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
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&made)?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    if has(&stat, bits) || !is_own || FileType::from_raw_mode(stat.st_mode) != kind || !is_new(&made, &stat) {
        return Ok(());
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", made.as_raw_fd()), wanted(&stat, bits))
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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let names = rustix::fs::openat(made.as_fd(), ".", flags, Mode::empty()).and_then(Dir::new);
    let is_name = |name: &[u8]| name != b"." && name != b"..";
    names
        .is_ok_and(|mut names| names.all(|name| name.is_ok_and(|name| !is_name(name.file_name().to_bytes()))))
}
