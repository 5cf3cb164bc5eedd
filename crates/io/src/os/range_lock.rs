//! Locks on ranges of files that belong to the open file, not to the process (`F_OFD_SETLK`, fcntl(2)): several threads of a process
//! exclude each other, and a lock ends when the last descriptor of the open file is closed, whoever has died.

use std::os::fd::{AsRawFd, BorrowedFd};
use tameike_core::{Errno, Fault, Result};

/// Takes a range for writing, unless another open file has some of it: whether it is ours now.
///
/// # Errors
/// What the file system says: `ENOLCK`, `ENOSYS`, `EINVAL` or `EOPNOTSUPP` where it has no locks.
pub fn try_lock_range(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<bool> {
    let lock = lock_of(libc::F_WRLCK, offset, length)?;
    // SAFETY: the call reads the structure, which lives as long as it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(Fault::from_os(format_args!("locking a range"), &error)),
    }
}

/// Whether another open file has some of a range for writing. Who may only read the file has none.
///
/// # Errors
/// As [`try_lock_range`].
pub fn is_range_locked(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<bool> {
    // Only locks for writing keep others from one for reading.
    let mut lock = lock_of(libc::F_RDLCK, offset, length)?;
    // SAFETY: the call reads and writes the structure, which lives as long as it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0 {
        return Ok(i32::from(lock.l_type) != libc::F_UNLCK);
    }
    Err(Fault::from_os(format_args!("asking for a lock on a range"), &std::io::Error::last_os_error()))
}

fn lock_of(kind: libc::c_int, offset: u64, length: u64) -> Result<libc::flock> {
    let (Ok(start), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
        return Err(Errno::EINVAL.into());
    };
    // SAFETY: all bits zero are a lock of this structure.
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
    fn a_range_has_one_open_file_at_a_time_and_is_free_when_that_is_closed() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || std::fs::OpenOptions::new().write(true).open(file.path()).expect("it opens");
        let (one, other) = (open(), open());
        let is_locked = || is_range_locked(other.as_fd(), 1 << 46, 1).expect("locks");
        let reader = std::fs::File::open(file.path()).expect("it opens");
        let lock = lock_of(libc::F_RDLCK, 1 << 46, 1).expect("a range");
        // SAFETY: the call reads the structure, which lives as long as it.
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
