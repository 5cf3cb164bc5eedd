//! The record of a volume, in the user's data directory, which outlives jobs and restarts of hosts.
//!
//! ```text
//! ${XDG_DATA_HOME:-~/.local/share}/tameike/volumes/
//!   NAME.json    the record: settings, nodes, home map
//!   NAME.lock    locked by the driver of the volume while it runs, but not by one that took over from a driver that holds it still
//! ```
//!
//! The record has each home map before any agent has it, so a start continues with the last one.

use super::base::{self, make_private_dir};
use super::record::{JobRecord, read_json, write_durably};
use crate::settings::volume::VolumeName;
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{self, ask_until, start_thread};

/// Time for which the next driver waits for the lock of the last one, and pause between its attempts. A driver whose connection to one agent
/// broke has connected again by then.
const HOLDER_LIMIT: Duration = Duration::from_secs(6);
const HOLDER_PAUSE: Duration = Duration::from_millis(200);

/// State of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Its stores are being created, or the creation was interrupted.
    Creating,
    /// It runs, or its agents were killed: copies may differ in what was not synced.
    Running,
    /// It is being stopped, or that was interrupted: as `Running`, but no driver starts by itself.
    Stopping,
    /// It was stopped: all copies are equal.
    Stopped,
}

/// The record of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Its state.
    pub state: VolumeState,
    /// The host on which its driver runs, or ran last.
    pub driver_host: String,
    /// Why the last stop was not complete.
    #[serde(default)]
    pub faults: Vec<String>,
    /// The record of the job that serves it, with the settings and the home map.
    pub job: JobRecord,
}

/// The lock of a volume: no other process starts, changes or removes it.
#[derive(Clone, Debug)]
pub struct VolumeLock {
    name: VolumeName,
    /// Open as long as the lock is held.
    file: Arc<File>,
}

fn dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    let none =
        || Fault::new(Errno::ENOENT, "the records of volumes need HOME or XDG_DATA_HOME: set one of them");
    Ok(data.ok_or_else(none)?.join("tameike/volumes"))
}

fn path(dir: &Path, name: &VolumeName) -> PathBuf {
    dir.join(format!("{name}.json"))
}

/// Returns the names of the user's volumes.
pub fn names() -> Result<Vec<VolumeName>> {
    let dir = dir()?;
    let entries = match dir.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.map_err(|error| Fault::from_os(format_args!("reading {}", dir.display()), &error))?
        }
    };
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok();
    let mut names: Vec<_> = entries.flatten().filter_map(name).collect();
    names.sort();
    Ok(names)
}

impl VolumeLock {
    /// Locks a volume.
    ///
    /// # Errors
    /// `EBUSY` if another process has locked it; those of the system.
    pub fn take(name: &VolumeName) -> Result<Self> {
        let lock = Self::open(name)?;
        match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let host = VolumeRecord::read(name).ok().flatten().map(|record| record.driver_host);
                let place = host.map(|host| format!(" on {host}")).unwrap_or_default();
                let message = format!("volume {name} runs{place}, or is being started, changed or removed");
                Err(Fault::new(Errno::EBUSY, message))
            }
            Err(error) => Err(Fault::from_os(format_args!("locking volume {name}"), &error.into())),
        }
    }

    /// As [`Self::take`], for the next driver of a volume with keepers, which decide about it. If the records are on a shared file system, the
    /// last driver holds the lock while its host is cut off: the next one goes on, and gets the lock when that one has ended.
    pub fn take_over(name: &VolumeName) -> Result<Self> {
        let free = || match Self::take(name) {
            Err(fault) if fault.errno == Errno::EBUSY => None,
            taken => Some(taken),
        };
        if let Some(taken) = ask_until(HOLDER_LIMIT, HOLDER_PAUSE, free) {
            return taken;
        }
        let lock = Self::open(name)?;
        let file = lock.file.clone();
        start_thread("volume-lock", move || {
            if let Err(error) = flock(&file, FlockOperation::LockExclusive) {
                log::warn!("locking the record of the volume: {error}");
            }
        })?;
        Ok(lock)
    }

    fn open(name: &VolumeName) -> Result<Self> {
        let dir = dir()?;
        make_private_dir(&dir)?;
        let path = dir.join(format!("{name}.lock"));
        let failed = |error| Fault::from_os(format_args!("opening {}", path.display()), &error);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path).map_err(failed)?;
        Ok(Self { name: name.clone(), file: Arc::new(file) })
    }

    /// Writes the record, durably.
    pub fn write(&self, record: &VolumeRecord) -> Result<()> {
        write_durably(&path(&dir()?, &self.name), record)
    }

    /// Removes the record.
    pub fn remove(self) -> Result<()> {
        let dir = dir()?;
        for file in [path(&dir, &self.name), dir.join(format!("{}.lock", self.name))] {
            std::fs::remove_file(&file)
                .map_err(|error| Fault::from_os(format_args!("removing {}", file.display()), &error))?;
        }
        Ok(())
    }
}

impl VolumeRecord {
    /// The record for a job that serves the volume from now on.
    pub fn new(state: VolumeState, job: JobRecord) -> Self {
        Self { state, driver_host: process::host_name(), faults: Vec::new(), job }
    }

    /// Reads the record of a volume; `None` if the user has no volume of this name.
    pub fn read(name: &VolumeName) -> Result<Option<Self>> {
        read_json(&path(&dir()?, name))
    }

    /// Reads the record of a volume.
    ///
    /// # Errors
    /// `ENOENT` if the user has no volume of this name.
    pub fn find(name: &VolumeName) -> Result<Self> {
        let none = || {
            let message = format!(
                "this user has no volume {name}: `tameike volume status` lists them, `tameike volume create` makes one"
            );
            Fault::new(Errno::ENOENT, message)
        };
        Self::read(name)?.ok_or_else(none)
    }

    /// The record for other hosts.
    pub fn seen_from_elsewhere(mut self) -> Self {
        self.job = self.job.seen_from_elsewhere();
        self
    }

    /// Returns the directory of the job that serves the volume, if its driver runs on this host.
    pub fn job_dir(name: &VolumeName) -> Option<PathBuf> {
        let dir = base::path().join(name.job().as_str());
        let record = JobRecord::read(&dir).ok().flatten()?;
        record.driver_is_alive().then_some(dir)
    }
}
