//! Fault injection for the simulated shared file system.

use crate::countdown::{Countdown, FaultKind, Medium};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::simulated::Simulation;

/// The calls of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Stat,
    Pin,
    OpenDir,
    ReadDir,
    ReadLink,
    Open,
    OpenToWrite,
    Create,
    Make,
    Unlink,
    Rmdir,
    Rename,
    Link,
    Change,
    GetXattr,
    ListXattr,
    SetXattr,
    RemoveXattr,
    Space,
    SyncDir,
    Read,
    Write,
    Truncate,
    Allocate,
    Seek,
    Sync,
    ForgetPages,
}

/// Classes of calls that fail alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reads of bytes, attributes and names; opens for reading.
    Read,
    /// Changes of names and attributes.
    Change,
    /// Writes, and opens for writing.
    Write,
    /// Syncs of files and directories.
    Sync,
}

impl Call {
    fn kind(self) -> Kind {
        match self {
            Self::Stat
            | Self::Pin
            | Self::OpenDir
            | Self::ReadDir
            | Self::ReadLink
            | Self::Open
            | Self::GetXattr
            | Self::ListXattr
            | Self::Space
            | Self::Read
            | Self::Seek
            | Self::ForgetPages => Kind::Read,
            Self::Create
            | Self::Make
            | Self::Unlink
            | Self::Rmdir
            | Self::Rename
            | Self::Link
            | Self::Change
            | Self::SetXattr
            | Self::RemoveXattr
            | Self::Truncate
            | Self::Allocate => Kind::Change,
            Self::OpenToWrite | Self::Write => Kind::Write,
            Self::Sync | Self::SyncDir => Kind::Sync,
        }
    }

    /// Returns the faults that a countdown can inject.
    fn faults(self) -> &'static [FaultKind] {
        match self.kind() {
            _ if self == Self::Write => &[FaultKind::Torn, FaultKind::Full],
            _ if self == Self::Sync => &[FaultKind::Forgotten],
            Kind::Read | Kind::Sync => &[FaultKind::Fails],
            Kind::Change | Kind::Write => &[FaultKind::Fails, FaultKind::Full],
        }
    }
}

/// Failures per thousand calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeFaults {
    /// `EIO` of reads of bytes, attributes and names.
    pub reads: u32,
    /// `EIO` of changes and writes.
    pub writes: u32,
    /// `EIO` of `fsync`, which drops everything that was not durable.
    pub syncs: u32,
    /// `ENOSPC` of writes.
    pub full: u32,
    /// `EROFS` of changes and writes.
    pub read_only: bool,
}

pub(super) struct Control {
    simulation: Simulation,
    countdown: Countdown,
    faults: Mutex<TreeFaults>,
    tears_renames: AtomicBool,
}

impl Control {
    pub fn new(simulation: Simulation, countdown: Countdown) -> Self {
        Self { simulation, countdown, faults: Mutex::default(), tears_renames: AtomicBool::new(false) }
    }

    pub fn set(&self, faults: TreeFaults) {
        *self.faults.lock() = faults;
    }

    pub fn tear_renames(&self) {
        self.tears_renames.store(true, Ordering::Relaxed);
    }

    pub fn tears_renames(&self) -> bool {
        self.tears_renames.load(Ordering::Relaxed)
    }

    fn happens(&self, of_a_thousand: u32) -> bool {
        of_a_thousand > 0 && self.simulation.draw(1000) < u64::from(of_a_thousand)
    }

    fn register(&self, call: Call) -> Option<FaultKind> {
        self.countdown.register(Medium::SharedFs, call.faults(), || format!("{call:?}"))
    }

    pub fn call(&self, call: Call) -> Result<()> {
        let faults = *self.faults.lock();
        let kind = call.kind();
        let errno = match self.register(call) {
            Some(FaultKind::Full) => Errno::ENOSPC,
            Some(_) => Errno::EIO,
            None => match kind {
                Kind::Change | Kind::Write if faults.read_only => Errno::EROFS,
                Kind::Read if self.happens(faults.reads) => Errno::EIO,
                Kind::Change | Kind::Write if self.happens(faults.writes) => Errno::EIO,
                Kind::Write if self.happens(faults.full) => Errno::ENOSPC,
                Kind::Read | Kind::Change | Kind::Write | Kind::Sync => return Ok(()),
            },
        };
        log::trace!("the shared file system fails a {call:?} with {}", errno.describe());
        Err(Fault::new(errno, "injected fault"))
    }

    /// Returns whether an `fsync` fails: in any case, and if it has something to write.
    pub fn sync(&self) -> (bool, bool) {
        let syncs = self.faults.lock().syncs;
        (self.register(Call::Sync).is_some(), self.happens(syncs))
    }
}
