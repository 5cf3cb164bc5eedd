//! Who takes part in a spool: each has a lock of its own, which ends with the process. The last one takes the spool away.

use super::make_dir;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ask_until, random_bytes};
use tameike_io::os::range_lock::try_lock_range;

/// Whoever comes or goes has its lock meanwhile.
const DOOR: &str = "door";
/// Begins the name of each one's file.
const MEMBER: &str = "member.";
/// Coming and going does not take long.
const DOOR_WAIT: Duration = Duration::from_secs(30);
const DOOR_STEP: Duration = Duration::from_millis(1);

/// One takes part while this lives.
pub struct Membership {
    file: File,
    path: PathBuf,
}

impl Membership {
    /// Makes the spool's directory where it is missing, and takes part.
    ///
    /// # Errors
    /// What the file system says.
    pub fn begin(dir: &Path) -> Result<Self> {
        loop {
            make_dir(dir)?;
            let Some(door) = Door::open(dir)? else { continue };
            let path = dir.join(format!("{MEMBER}{}", std::process::id()));
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            let file =
                file.map_err(|error| Fault::from_os(format_args!("making {}", path.display()), &error))?;
            try_lock_range(file.as_fd(), 0, 1)?;
            drop(door);
            return Ok(Self { file, path });
        }
    }

    /// Whether nobody else takes part.
    ///
    /// # Errors
    /// What the file system says.
    pub fn is_alone(&self, dir: &Path) -> Result<bool> {
        // Who is just coming has no lock yet.
        let Some(_door) = Door::open(dir)? else { return Ok(true) };
        self.has_nobody_beside(dir)
    }

    /// The same for who has the door.
    fn has_nobody_beside(&self, dir: &Path) -> Result<bool> {
        let failed = |error| Fault::from_os(format_args!("looking at {}", dir.display()), &error);
        let names = std::fs::read_dir(dir).map_err(failed)?.flatten();
        let mut others = names.filter(|name| {
            name.file_name().to_string_lossy().starts_with(MEMBER) && name.path() != self.path
        });
        Ok(!others
            .any(|other| File::options().write(true).open(other.path()).is_ok_and(|file| is_locked(&file))))
    }

    /// Takes part no more. Where nobody else does, and it `may_go`, the spool goes.
    ///
    /// # Errors
    /// What the file system says.
    pub fn end(self, dir: &Path, may_go: bool) -> Result<()> {
        let Some(_door) = Door::open(dir)? else { return Ok(()) };
        let is_alone = self.has_nobody_beside(dir)?;
        let Self { file, path } = self;
        drop(file);
        let failed = |error| Fault::from_os(format_args!("removing {}", path.display()), &error);
        std::fs::remove_file(&path).map_err(failed)?;
        if !is_alone || !may_go {
            return Ok(());
        }
        // Nothing is lost with it, or by it.
        if let Err(error) = remove(dir) {
            log::warn!("the spool {}, which is not needed any more, stays: {error}", dir.display());
        }
        Ok(())
    }
}

/// Removes a spool: under another name, so that who comes now makes a new one. Other users may have taken any name that they can foresee.
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

/// The door's lock.
struct Door(#[expect(dead_code, reason = "its lock ends with it")] File);

impl Door {
    /// Waits for it. Nothing where the spool was taken away meanwhile.
    fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(DOOR);
        let file = match File::options().create(true).truncate(false).write(true).open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => {
                file.map_err(|error| Fault::from_os(format_args!("opening {}", path.display()), &error))?
            }
        };
        let taken = ask_until(DOOR_WAIT, DOOR_STEP, || match try_lock_range(file.as_fd(), 0, 1) {
            Ok(false) => None,
            done => Some(done),
        });
        match taken {
            None => Err(Fault::new(Errno::ETIMEDOUT, format!("{}: somebody holds it", path.display()))),
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
