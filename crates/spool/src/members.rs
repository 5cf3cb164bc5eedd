//! Membership in a spool. Each run holds a lock, which ends with its process; the last run removes the spool.

use super::make_dir;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ask_until, random_bytes};
use tameike_io::os::range_lock::try_lock_range;

/// File whose lock covers joining and leaving.
const JOIN_LOCK: &str = "join.lock";
/// Prefix of the names of the members' files.
const MEMBER: &str = "member.";
/// Joining and leaving are short.
const LOCK_WAIT: Duration = Duration::from_secs(30);
const LOCK_STEP: Duration = Duration::from_millis(1);

/// A member; its process holds the lock of its file.
pub struct Membership {
    file: File,
    path: PathBuf,
}

impl Membership {
    /// Joins, and creates the spool's directory if it is missing.
    pub fn begin(dir: &Path) -> Result<Self> {
        loop {
            make_dir(dir)?;
            let Some(lock) = JoinLock::acquire(dir)? else { continue };
            let path = dir.join(format!("{MEMBER}{}", std::process::id()));
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            let file =
                file.map_err(|error| Fault::from_os(format_args!("creating {}", path.display()), &error))?;
            try_lock_range(file.as_fd(), 0, 1)?;
            drop(lock);
            return Ok(Self { file, path });
        }
    }

    /// Returns true if there is no other member.
    pub fn is_alone(&self, dir: &Path) -> Result<bool> {
        // A run that is joining holds no member lock yet.
        let Some(_lock) = JoinLock::acquire(dir)? else { return Ok(true) };
        self.has_no_other_member(dir)
    }

    /// As [`Self::is_alone`], for a holder of the join lock.
    fn has_no_other_member(&self, dir: &Path) -> Result<bool> {
        let failed = |error| Fault::from_os(format_args!("reading {}", dir.display()), &error);
        let names = std::fs::read_dir(dir).map_err(failed)?.flatten();
        let mut others = names.filter(|name| {
            name.file_name().to_string_lossy().starts_with(MEMBER) && name.path() != self.path
        });
        Ok(!others
            .any(|other| File::options().write(true).open(other.path()).is_ok_and(|file| is_locked(&file))))
    }

    /// Leaves. The last member removes the spool if `may_go`.
    pub fn end(self, dir: &Path, may_go: bool) -> Result<()> {
        let Some(_lock) = JoinLock::acquire(dir)? else { return Ok(()) };
        let is_alone = self.has_no_other_member(dir)?;
        let Self { file, path } = self;
        drop(file);
        let failed = |error| Fault::from_os(format_args!("removing {}", path.display()), &error);
        std::fs::remove_file(&path).map_err(failed)?;
        if !is_alone || !may_go {
            return Ok(());
        }
        // A spool that stays does no harm.
        if let Err(error) = remove(dir) {
            log::warn!("cannot remove the spool {}, which is not needed any more: {error}", dir.display());
        }
        Ok(())
    }
}

/// Renames a spool, so that a joining run creates a new one, and removes it. The new name is random, as other users could occupy a known one.
fn remove(dir: &Path) -> std::io::Result<()> {
    let number =
        u64::from_le_bytes(random_bytes().map_err(|fault| std::io::Error::other(fault.to_string()))?);
    let gone = dir.with_extension(format!("{number:016x}.gone"));
    std::fs::rename(dir, &gone)?;
    std::fs::remove_dir_all(&gone)
}

fn is_locked(file: &File) -> bool {
    !try_lock_range(file.as_fd(), 0, 1).unwrap_or(false)
}

/// The lock for joining and leaving.
struct JoinLock(#[expect(dead_code, reason = "holds the lock")] File);

impl JoinLock {
    /// Waits for the lock. Returns `None` if the spool was removed meanwhile.
    fn acquire(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(JOIN_LOCK);
        let file = match File::options().create(true).truncate(false).write(true).open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => {
                file.map_err(|error| Fault::from_os(format_args!("opening {}", path.display()), &error))?
            }
        };
        let taken = ask_until(LOCK_WAIT, LOCK_STEP, || match try_lock_range(file.as_fd(), 0, 1) {
            Ok(false) => None,
            done => Some(done),
        });
        match taken {
            None => Err(Fault::new(
                Errno::ETIMEDOUT,
                format!("{}: another process holds the lock", path.display()),
            )),
            Some(taken) => {
                taken?;
                let is_there = match (file.metadata(), std::fs::metadata(&path)) {
                    (Ok(open), Ok(there)) => open.ino() == there.ino(),
                    _ => false,
                };
                Ok(is_there.then_some(Self(file)))
            }
        }
    }
}
