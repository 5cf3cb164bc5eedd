//! Ownership of the container of a shared directory: one job at a time writes it.

use super::succession::Succession;
use crate::CONTAINER;
use std::sync::Arc;
use tameike_container::{FIRST_OF_HOSTS, Geometry, Listing, Superblock};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::os::process::random_bytes;
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Bytes per block of a new container.
const BLOCK_SIZE: u32 = 4 << 20;
/// Lanes per subfile. One packer at a time writes a subfile: with one lane it has no holes, which some file systems would read.
const LANES: u32 = 1;

/// The file whose lock the packer holds.
const LOCK: &[u8] = b"lock";
const LOCK_MODE: u16 = 0o600;

/// Reads the superblock of the container, and creates it where there is none and `may_make`.
pub(crate) fn open_superblock(fs: &dyn SharedFs, may_make: bool) -> Result<Superblock> {
    match Superblock::read(fs) {
        Err(fault) if fault.errno == Errno::EINVAL && may_make => {}
        Err(fault) if fault.errno == Errno::EACCES => {
            let name = String::from_utf8_lossy(CONTAINER);
            let why = format!(
                "files of this shared directory are packed in {name}, which you may not read ({fault}): ask who packed them to open it \
                 (`chmod a+rx`), or share a directory below"
            );
            return Err(Fault::new(Errno::EACCES, why));
        }
        read => return read,
    }
    let geometry = Geometry { block_size: BLOCK_SIZE, lanes: LANES };
    let superblock = Superblock { container: u64::from_le_bytes(random_bytes()?), geometry };
    match superblock.create(fs) {
        // Another job was faster.
        Err(fault) if fault.errno == Errno::EEXIST => Superblock::read(fs),
        made => made.map(|()| superblock),
    }
}

/// The owner of a container.
pub(crate) enum Ownership {
    /// This job, which holds the lock where the file system has locks.
    Ours(Option<OwnerLock>),
    /// Another job or user.
    Foreign(Errno, String),
}

pub(crate) fn of_another_user() -> Ownership {
    let name = String::from_utf8_lossy(CONTAINER);
    Ownership::Foreign(
        Errno::EPERM,
        format!("another user has packed files of this shared directory ({name})"),
    )
}

/// Opens the lock file. A user who can read a file can lock it and keep the packer from its lock: so only the container's owner can read
/// this one.
fn open_lock(fs: &dyn SharedFs) -> Result<Arc<dyn SharedFile>> {
    loop {
        match fs.open(LOCK, Access::Write) {
            Err(fault) if fault.errno == Errno::ENOENT => {}
            opened => {
                let opened = opened?;
                if opened.stat()?.mode & 0o777 != LOCK_MODE {
                    opened.change(&AttrChange { mode: Some(LOCK_MODE), ..AttrChange::default() })?;
                }
                return Ok(opened);
            }
        }
        match fs.create(LOCK, LOCK_MODE) {
            // Another job was faster.
            Err(fault) if fault.errno == Errno::EEXIST => {}
            made => return made,
        }
    }
}

/// The lock of the owner, until dropped.
pub(crate) struct OwnerLock {
    file: Arc<dyn SharedFile>,
    /// An earlier packer of the job may hold it still: its agent is stopped, or its host is cut off.
    is_held: bool,
}

impl OwnerLock {
    /// Takes the lock if an earlier packer of the job has held it.
    pub(crate) fn take_again(&mut self) {
        self.is_held = self.is_held || self.file.try_lock(0, 1).unwrap_or(false);
    }
}

/// Whether the lock file has the name of this job, one of whose packers has written it.
fn is_of(lock: &dyn SharedFile, job: &str) -> Result<bool> {
    let mut found = vec![0; job.len() + 1];
    let count = lock.read_at(&mut found, 0)?;
    Ok(found[..count] == *job.as_bytes())
}

/// Takes the ownership of a container. A packer that takes over has it if another packer of the `job` holds the lock.
pub(crate) fn take(fs: &dyn SharedFs, job: Option<&str>, succession: Succession) -> Result<Ownership> {
    let name = String::from_utf8_lossy(CONTAINER);
    let lock = match open_lock(fs) {
        Err(fault) if fault.kind() == FaultKind::Denied => return Ok(of_another_user()),
        Err(fault) if fault.errno == Errno::EROFS => {
            let why =
                format!("files that are packed in this shared directory ({name}) can only be read here");
            return Ok(Ownership::Foreign(Errno::EROFS, why));
        }
        opened => opened?,
    };
    match lock.try_lock(0, 1) {
        Ok(true) => {
            if let Some(job) = job {
                lock.truncate(0)?;
                lock.write_at(job.as_bytes(), 0)?;
            }
            Ok(Ownership::Ours(Some(OwnerLock { file: lock, is_held: true })))
        }
        Ok(false)
            if succession == Succession::Later
                && job.is_some_and(|job| is_of(&*lock, job).unwrap_or(false)) =>
        {
            Ok(Ownership::Ours(Some(OwnerLock { file: lock, is_held: false })))
        }
        Ok(false) => {
            let why =
                format!("another job packs files of this shared directory ({name}): wait until it has ended");
            Ok(Ownership::Foreign(Errno::EBUSY, why))
        }
        Err(fault) if fault.errno == Errno::EOPNOTSUPP => Ok(Ownership::Ours(None)),
        Err(fault) => Err(fault),
    }
}

/// See [`JournaledContainer::oldest`](super::journal::JournaledContainer::oldest).
pub(crate) fn oldest_subfile(fs: &dyn SharedFs) -> Result<u32> {
    let numbers = Listing::of(fs)?.numbers;
    Ok(numbers.first().copied().filter(|number| *number < FIRST_OF_HOSTS).unwrap_or(u32::MAX))
}
