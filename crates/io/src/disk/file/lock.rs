//! Locks on files, between processes.

use super::OpenFile;
use crate::os::owned;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno as Os;
use std::os::fd::OwnedFd;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};

/// A lock on a file, held by this process until dropped; the system takes it from a process that dies.
pub struct FileLock(OwnedFd);

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing alone would leave it with a child that another thread starts at this moment, until that child runs
        // its program. There is nothing to do about an error, after which the lock goes with the descriptor.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl FileLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// `EBUSY` when another process holds it.
    pub fn take(path: &Path) -> Result<Self> {
        Self::lock(OpenFile::open(path)?)
    }

    /// Takes the lock on a file that is there, and changes nothing.
    ///
    /// # Errors
    /// As [`FileLock::take`], and `ENOENT`.
    pub fn take_existing(path: &Path) -> Result<Self> {
        let fd = owned::open_regular(path, OFlags::RDONLY, Mode::empty())?;
        Self::lock(OpenFile { fd, path: path.to_owned() })
    }

    fn lock(file: OpenFile) -> Result<Self> {
        match rustix::fs::flock(&file.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file.fd)),
            Err(Os::WOULDBLOCK) => Err(Fault::new(
                Errno::EBUSY,
                format!("{} is locked by another process; end that one first", file.path.display()),
            )),
            Err(error) => Err(file.fault("lock", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_even_while_a_child_still_has_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = FileLock::take(&path).unwrap();
        let inherited = lock.0.try_clone().unwrap();
        assert_eq!(FileLock::take(&path).map(drop).unwrap_err().errno, Errno::EBUSY);
        drop(lock);
        FileLock::take(&path).unwrap();
        drop(inherited);
    }
}
