//! Leases on files (`F_SETLEASE`, fcntl(2)): they show whether a process has a file open for writing, and delay such opens.

use std::os::fd::{AsRawFd, BorrowedFd};
use tameike_core::{Errno, Fault, Result};

/// The outcome of a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Granted: opens for writing wait until the descriptor is closed, 45 seconds at most.
    Taken,
    /// A process has the file open for writing, or mapped writable.
    Refused,
}

/// Requests a read lease on a file open for reading. While it is held, no descriptor or mapping of the file permits writes.
///
/// # Errors
/// `EOPNOTSUPP` if the file system has no leases, or the file belongs to another user.
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

/// True if the lease is held and no process waits for its release.
pub fn is_held(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes a number only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// True if no other descriptor of the file is open. Then all opens wait until the descriptor, which holds a lease, is closed.
pub fn is_alone(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// Installs a handler without effect for SIGIO, by which the kernel reports waiting processes: by default it would kill this
/// process. An exec restores the default.
///
/// # Errors
/// The errors of the system.
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
    fn a_lease_is_refused_to_writers_and_held_until_a_process_waits() {
        ignore_waiters().expect("signals");
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let writer = OpenOptions::new().append(true).open(&path).expect("an open");
        let also = writer.try_clone().expect("a descriptor");
        let reader = File::open(&path).expect("an open");
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
            .expect("the waiter is detected");
        drop(reader);
        waiter.join().expect("a thread").expect("an open");
    }
}
