//! Leases on files (`F_SETLEASE`, fcntl(2)): whether anybody has a file open for writing, and that nobody opens it so meanwhile.

use std::os::fd::{AsRawFd, BorrowedFd};
use tameike_core::{Errno, Fault, Result};

/// What became of the wish for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It is taken: who opens the file for writing waits until the descriptor is closed, 45 seconds at most.
    Taken,
    /// Somebody has the file open for writing, or mapped so.
    Refused,
}

/// Takes a lease on a file that is open for reading, of which nobody has a descriptor or mapping for writing then.
///
/// # Errors
/// `EOPNOTSUPP` where the file system has no leases, or the file is another user's.
pub fn take(file: BorrowedFd<'_>) -> Result<Lease> {
    // SAFETY: takes numbers only.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } == 0 {
        return Ok(Lease::Taken);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Ok(Lease::Refused),
        _ => Err(Fault::new(Errno::EOPNOTSUPP, format!("a lease: {error}"))),
    }
}

/// Whether a lease is held, and nobody waits for its end.
pub fn is_held(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes a number only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// Whether nobody else has a file open, of which this descriptor holds a lease. Then nobody opens it at all until the descriptor is
/// closed.
pub fn is_alone(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// Has the signal by which the kernel tells of somebody who waits be one that does nothing: it ends a process otherwise. Children
/// that become other programs have it as it was.
///
/// # Errors
/// What the system says.
pub fn ignore_waiters() -> Result<()> {
    let nothing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGIO, nothing)
        .map(drop)
        .map_err(|error| Fault::from_os("preparing to receive signals", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    #[test]
    fn a_lease_is_refused_while_somebody_writes_and_held_until_somebody_waits() {
        ignore_waiters().expect("signals");
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let writer = OpenOptions::new().append(true).open(&path).expect("it opens");
        let also = writer.try_clone().expect("a descriptor");
        let reader = File::open(&path).expect("it opens");
        assert_eq!(take(reader.as_fd()), Ok(Lease::Refused));
        drop(writer);
        assert_eq!(take(reader.as_fd()), Ok(Lease::Refused), "another descriptor of the same open file");
        drop(also);
        assert_eq!(take(reader.as_fd()), Ok(Lease::Taken));
        assert!(is_held(reader.as_fd()));
        let path = path.to_path_buf();
        let wait = move || OpenOptions::new().append(true).open(path).map(drop);
        let waiter = crate::os::process::start_thread("waiter", wait).expect("a thread");
        let most = std::time::Duration::from_secs(10);
        let step = std::time::Duration::from_millis(1);
        crate::os::process::ask_until(most, step, || (!is_held(reader.as_fd())).then_some(()))
            .expect("who waits is seen");
        drop(reader);
        waiter.join().expect("a thread").expect("it opens");
    }
}
