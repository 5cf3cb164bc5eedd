//! File locks between processes.

use super::OpenFile;
use crate::os::owned;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno as Os;
use std::os::fd::OwnedFd;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};

/// An exclusive lock on a file, held until its drop. The system releases the lock of a process that exits.
pub struct FileLock(OwnedFd);

impl Drop for FileLock {
    fn drop(&mut self) {
        // A close alone would leave the lock with a concurrently forked child until its exec. After an error the close still
        // releases it.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl FileLock {
    /// Takes the lock on a file, and creates the file if necessary.
    ///
    /// # Errors
    /// `EBUSY` if another process holds the lock.
    pub fn take(path: &Path) -> Result<Self> {
        Self::lock(OpenFile::open(path)?)
    }

    /// Takes the lock on an existing file, without any change.
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
