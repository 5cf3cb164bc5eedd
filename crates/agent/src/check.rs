//! Checks the store of a stopped node, including the records of each service that uses it.

use std::path::Path;
use tameike_core::{Fault, InodeId, Result};
use tameike_io::os::system::System;
use tameike_server::cache;
use tameike_store::RecordKind;
use tameike_store::check::{Dirty, Findings, RecordChecks};
use tameike_store::directory::retry_while_busy;
use tameike_store::table::{ReadTable, Table};

pub use tameike_store::check::{Device, Finding, Loss, Part, Report, Severity, StoppedMedia};

/// Dispatches records to the services that wrote them.
struct All;

impl RecordChecks for All {
    fn replay(&self, kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()> {
        tameike_server::replay(kind, body, table)
    }

    fn examine(&self, table: &dyn ReadTable, dirty: &[Dirty], findings: &mut Findings) -> Result<()> {
        cache::check::examine(table, dirty, findings)
    }

    fn path(&self, table: &dyn ReadTable, inode: InodeId) -> Option<String> {
        cache::check::path(table, inode)
    }
}

/// Checks the media of a stopped node's store.
pub fn check_media(media: StoppedMedia) -> Result<Report> {
    tameike_store::check::check_media(media, &All)
}

/// Checks the store in a device directory, and repairs it if `repair` is set; `progress` as in [`tameike_store::check::check`].
pub fn check(dir: &Path, repair: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
    let failed = |error| Fault::from_os(format!("checking the store {}", dir.display()), &error);
    let system = System::start(1).map_err(failed)?;
    let checked =
        retry_while_busy(system.runtime(), || tameike_store::check::check(dir, &All, repair, progress));
    pollster::block_on(checked)
}
