//! Check and repair of a stopped node's store.
//!
//! - The check changes nothing: it replays the log in memory, over a table file that it only reads.
//! - A repair runs in memory first, until a round finds nothing more, so the findings are the same with and without it.
//! - Then the repair copies removed bytes to `lost+found`, lists losses in `damage`, and commits all changes to the
//!   table at once (`repair`).
//!
//! The check sees one node. It cannot verify what other nodes know: whether a file elsewhere exists, or is open.
//! Memory: about 150 bytes per name, inode and run of blocks.

mod findings;
pub(crate) mod identity;
mod local;
mod repair;
#[cfg(test)]
mod tests;

pub(crate) use findings::{Aside, Copy};
pub use findings::{Finding, Findings, Loss, Part, Severity};

use crate::directory::EXTENTS;
pub use crate::extent::check::Device;
use crate::extent::check::Extents;
use crate::ledger::inspect::Inspection;
use crate::ledger::kv::{Kv, MemoryKv};
use crate::ledger::redb::RedbKv;
use crate::ledger::{LOG_NAMES, RecordKind};
use crate::meta::check::Names;
use crate::table::{ReadTable, Table};
use identity::Stopped;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tameike_core::{Errno, Fault, InodeId, Result};
use tameike_io::os::owned;

/// Memory for pages of the table, in bytes.
const TABLE_CACHE_BYTES: usize = 16 << 20;
/// Maximum number of rounds; the repairs of one may reveal findings that they hid.
const ROUNDS_MAX: usize = 16;

/// Checks of records that other crates own.
pub trait RecordChecks {
    /// Applies a log record that is not of extents.
    fn replay(&self, kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()>;
    /// Checks the journal of the cache view. `dirty` are its files with dirty bytes in the store.
    fn examine(&self, table: &dyn ReadTable, dirty: &[Dirty], findings: &mut Findings) -> Result<()>;
    /// Path of a file of the cache view, relative to the shared directory, if the store knows it.
    fn path(&self, table: &dyn ReadTable, inode: InodeId) -> Option<String>;
}

/// A file of the cache view with dirty bytes in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// The file.
    pub inode: InodeId,
    /// Number of dirty bytes.
    pub bytes: u64,
    /// Whether this node coordinates the file.
    pub coordinated_here: bool,
}

/// Number of objects checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records of the log.
    pub log_records: u64,
    /// Inodes of the job-shared and node-local views.
    pub inodes: u64,
    /// Names of these inodes.
    pub names: u64,
    /// Units with data.
    pub units: u64,
    /// Bytes whose checksums were verified.
    pub bytes: u64,
    /// Files of the cache view with dirty bytes here.
    pub dirty_files: u64,
    /// Number of dirty bytes.
    pub dirty_bytes: u64,
    /// Files of the node-local view that were read.
    pub local_files: u64,
    /// Their bytes.
    pub local_bytes: u64,
}

/// Result of a check, and of its repair.
#[derive(Debug)]
pub struct Report {
    /// Findings, in the order of [`Part`].
    pub findings: Vec<Finding>,
    /// Number of objects checked.
    pub counts: Counts,
    /// Whether something was repaired.
    pub repaired: bool,
    /// Directory of what the repair saved, if anything.
    pub lost_and_found: Option<PathBuf>,
}

impl Report {
    /// The highest severity, if there are findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Checks the store in `dir`, and repairs it if `repair`. `progress` receives the number of bytes verified so far, and
/// the total.
///
/// # Errors
/// - `EINVAL` if the directory is not a store, or one of another version
/// - `EBUSY` if a process has it open
/// - `EPERM` if a repair is requested and another user owns it or can write to it
/// - those of the disk; a failed repair loses nothing and can be repeated
pub fn check(
    dir: &Path,
    checks: &dyn RecordChecks,
    repair: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    check_reading(dir, checks, repair, progress, &local::read_file)
}

/// As [`check`], with `read` for files of the node-local view.
fn check_reading(
    dir: &Path,
    checks: &dyn RecordChecks,
    repair: bool,
    progress: &mut dyn FnMut(u64, u64),
    read: local::ReadFile<'_>,
) -> Result<Report> {
    let mut findings = Findings::default();
    let stopped = Stopped::enter(dir, &mut findings)?;
    if repair {
        require_ownership(dir)?;
    }
    let intact_table = open_table(dir, &mut findings)?;
    let kv: Arc<dyn Kv> = match &intact_table {
        Some(kv) => kv.clone(),
        None => Arc::new(MemoryKv::default()),
    };
    let (logs, extents) = (read_logs(dir, &mut findings)?, Extents::open(&dir.join(EXTENTS))?);
    let (ledger, mut counts) =
        examine(kv, logs, &extents, stopped.after_power_loss, checks, progress, &mut findings)?;
    local::check_files(dir, read, &mut counts, &mut findings);
    let needed = repair && findings.has_repairs();
    let lost_and_found = match needed {
        true => repair::carry_out(&stopped, intact_table.is_none(), ledger, &extents, &findings)?,
        false => None,
    };
    Ok(Report { findings: findings.findings, counts, repaired: needed, lost_and_found })
}

/// Fails if another user can write to the store, who may have put symbolic links where a repair writes.
fn require_ownership(dir: &Path) -> Result<()> {
    match owned::is_own_dir(dir) {
        Err(fault) if fault.errno == Errno::EPERM && dir.is_dir() => {
            Err(fault.context("only the owner can repair a store, and only if no other user can write to it"))
        }
        // The check reports other errors.
        _ => Ok(()),
    }
}

/// The media of a stopped store, real or simulated.
pub struct StoppedMedia {
    /// The key-value store of the table.
    pub kv: Arc<dyn Kv>,
    /// Contents of the log files.
    pub logs: [Vec<u8>; 2],
    /// The medium of the data.
    pub device: Box<dyn Device>,
    /// Its size in bytes.
    pub device_size: u64,
}

/// Checks a store as [`check`] does, without a power loss.
pub fn check_media(media: StoppedMedia, checks: &dyn RecordChecks) -> Result<Report> {
    let mut findings = Findings::default();
    let extents = Extents::on(media.device, media.device_size);
    let (_, counts) = examine(media.kv, media.logs, &extents, false, checks, &mut |_, _| {}, &mut findings)?;
    Ok(Report { findings: findings.findings, counts, repaired: false, lost_and_found: None })
}

/// Checks all parts except node-local files.
fn examine(
    kv: Arc<dyn Kv>,
    logs: [Vec<u8>; 2],
    extents: &Extents,
    after_power_loss: bool,
    checks: &dyn RecordChecks,
    progress: &mut dyn FnMut(u64, u64),
    findings: &mut Findings,
) -> Result<(Inspection, Counts)> {
    let (ledger, log_records) = examine_log(logs, after_power_loss, kv, checks, extents, findings)?;
    let mut counts = Counts { log_records, ..Counts::default() };
    examine_records(&ledger, checks, extents, progress, &mut counts, findings)?;
    findings.sort();
    Ok((ledger, counts))
}

/// Opens the table without changing its file; `None` if it is unusable.
fn open_table(dir: &Path, findings: &mut Findings) -> Result<Option<Arc<RedbKv>>> {
    let path = dir.join("table");
    if !path.exists() {
        let message = "the table is missing: its names, units and journal records are lost";
        findings.lost(Part::Table, message, vec![Loss::unknown()]);
        return Ok(None);
    }
    match RedbKv::open_copy_on_write(&path, TABLE_CACHE_BYTES) {
        Ok(kv) => Ok(Some(Arc::new(kv))),
        Err(fault) if fault.errno == Errno::EIO => {
            let message =
                format!("the table is damaged ({fault}): its names, units and journal records are lost");
            findings.lost(Part::Table, message, vec![Loss::unknown()]);
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

fn read_logs(dir: &Path, findings: &mut Findings) -> Result<[Vec<u8>; 2]> {
    let mut logs = [Vec::new(), Vec::new()];
    for (name, bytes) in LOG_NAMES.into_iter().zip(&mut logs) {
        let path = dir.join(name);
        if !path.exists() {
            let message = format!("{name} is missing: the changes that only it had are lost");
            findings.lost(Part::Log, message, vec![Loss::unknown()]);
            continue;
        }
        *bytes = std::fs::read(&path)
            .map_err(|error| Fault::from_os(format!("read {}", path.display()), &error))?;
    }
    Ok(logs)
}

/// Replays the log over the table; returns the result and the number of log records.
fn examine_log(
    logs: [Vec<u8>; 2],
    after_power_loss: bool,
    kv: Arc<dyn Kv>,
    checks: &dyn RecordChecks,
    extents: &Extents,
    findings: &mut Findings,
) -> Result<(Inspection, u64)> {
    let mut holds = |kind: RecordKind, body: &[u8]| match kind {
        RecordKind::Extents => extents.holds(body),
        RecordKind::Names | RecordKind::Cache | RecordKind::OfHome | RecordKind::Copied => Ok(true),
    };
    let mut apply = |kind: RecordKind, body: &[u8], table: &mut dyn Table| {
        crate::replay(kind, body, table, &mut |kind, body, table| checks.replay(kind, body, table))
    };
    let holds = after_power_loss.then_some(&mut holds as crate::ledger::inspect::Holds<'_>);
    let (ledger, report) = Inspection::new(kv, logs, holds, &mut apply)?;
    for (number, place, size) in report.torn {
        findings.note(
            Part::Log,
            format!(
                    "{} ends in {size} bytes that are no whole record (from byte {place} on): the agent failed while it \
                     wrote them; they were never acknowledged, and are dropped",
                LOG_NAMES[number]
            ),
        );
    }
    if let Some(sequence) = report.truncated_at {
        findings.note(
            Part::Log,
            format!(
                    "the machine was rebooted: the log is dropped from record {sequence} on, whose data never became \
                     durable"
            ),
        );
    }
    for message in report.lost {
        findings.lost(Part::Log, message, vec![Loss::unknown()]);
    }
    Ok((ledger, report.records))
}

/// Checks the records in rounds, until the repairs of a round reveal nothing more.
fn examine_records(
    ledger: &Inspection,
    checks: &dyn RecordChecks,
    extents: &Extents,
    progress: &mut dyn FnMut(u64, u64),
    counts: &mut Counts,
    findings: &mut Findings,
) -> Result<()> {
    for round in 0..ROUNDS_MAX {
        let table = ledger.table();
        let names = Names::examine(&table, findings)?;
        let name = |inode: InodeId| match inode.is_cached() {
            true => checks.path(&table, inode),
            false => names.path(&table, inode),
        };
        let mut found =
            extents.examine(&table, &names, &name, (round == 0).then_some(&mut *progress), findings)?;
        for dirty in &mut found.dirty {
            dirty.coordinated_here = names.keeps(dirty.inode);
        }
        checks.examine(&table, &found.dirty, findings)?;
        if round == 0 {
            counts.bytes = found.bytes;
        }
        (counts.inodes, counts.names) = names.counts();
        counts.units = found.units;
        counts.dirty_files = found.dirty.len() as u64;
        counts.dirty_bytes = found.dirty.iter().map(|dirty| dirty.bytes).sum();
        let changes = findings.take_changes();
        if changes.is_empty() && !findings.has_units_to_remove() {
            return Ok(());
        }
        ledger.change(changes);
    }
    Err(Fault::io(format!(
        "the records still contradict each other after {ROUNDS_MAX} repairs; the store cannot be repaired"
    )))
}
