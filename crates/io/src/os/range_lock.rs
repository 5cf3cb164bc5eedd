//! Locks on ranges of files that belong to the open file description, not to the process (`F_OFD_SETLK`, fcntl(2)). Threads of a
//! process exclude each other. A lock ends with the last descriptor, also after a crash.

use std::os::fd::{AsRawFd, BorrowedFd};
use tameike_core::{Errno, Fault, Result};

/// Locks a range for writing. False if another open file has locked a part of it.
///
/// # Errors
/// The errors of the file system: `ENOLCK`, `ENOSYS`, `EINVAL` or `EOPNOTSUPP` without support for locks.
pub fn try_lock_range(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<bool> {
    let lock = lock_of(libc::F_WRLCK, offset, length)?;
    // SAFETY: the call reads the structure, which outlives it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(Fault::from_os(format_args!("locking a range"), &error)),
    }
}

/// True if another open file has locked a part of the range for writing. Files open only for reading cannot.
pub fn is_range_locked(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<bool> {
    // Only write locks conflict with a read lock.
    let mut lock = lock_of(libc::F_RDLCK, offset, length)?;
    // SAFETY: the call reads and writes the structure, which outlives it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0 {
        return Ok(i32::from(lock.l_type) != libc::F_UNLCK);
    }
    Err(Fault::from_os(format_args!("testing for a lock on a range"), &std::io::Error::last_os_error()))
}

fn lock_of(kind: libc::c_int, offset: u64, length: u64) -> Result<libc::flock> {
    let (Ok(start), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
        return Err(Errno::EINVAL.into());
    };
    // SAFETY: all-zero bytes are a valid value of this structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, length);
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_range_lock_has_one_holder_and_ends_with_its_close() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || std::fs::OpenOptions::new().write(true).open(file.path()).expect("an open");
        let (one, other) = (open(), open());
        let is_locked = || is_range_locked(other.as_fd(), 1 << 46, 1).expect("locks");
        let reader = std::fs::File::open(file.path()).expect("an open");
        let lock = lock_of(libc::F_RDLCK, 1 << 46, 1).expect("a range");
        // SAFETY: the call reads the structure, which outlives it.
        assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
        assert!(!is_locked() && !try_lock_range(one.as_fd(), 1 << 46, 1).expect("locks"));
        drop(reader);
        assert!(try_lock_range(one.as_fd(), 1 << 46, 1).expect("locks") && is_locked());
        assert!(!try_lock_range(other.as_fd(), 1 << 46, 1).expect("locks"));
        assert!(try_lock_range(other.as_fd(), (1 << 46) + 1, 1).expect("locks"));
        drop(one);
        assert!(try_lock_range(other.as_fd(), 1 << 46, 1).expect("locks"));
    }
}
