//! The examination of a stopped node's store: what is wrong in it, in plain words, and the repair of what can be
//! repaired without guessing.
//!
//! Looking changes nothing, not even what opening the store would: the log is applied again in memory, over a table
//! whose file is only read. A repair is first carried out in memory, too, until nothing more is found; so what is
//! told is the same with and without it. Then bytes that are cut aside are copied to `lost+found`, what is lost is
//! noted in `damage`, and one commit puts the table right ([`repair`]).
//!
//! It knows one node. What another node must say (whether a file elsewhere still exists, who has it open) is not
//! examined. Memory: about 150 bytes per name, inode and run of blocks.

mod book;
pub(crate) mod identity;
mod local;
mod repair;
#[cfg(test)]
mod tests;

pub(crate) use book::{Aside, Copy};
pub use book::{Book, Finding, Loss, Part, Severity};

use crate::directory::EXTENTS;
pub use crate::extent::check::Device;
use crate::extent::check::Extents;
use crate::ledger::inspect::Inspection;
use crate::ledger::kv::{Kv, MemoryKv};
use crate::ledger::redb::RedbKv;
use crate::ledger::{LOG_NAMES, RecordKind};
use crate::meta::check::Names;
use crate::table::Table;
use identity::Stopped;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tameike_core::{Errno, Fault, InodeId, Result};
use tameike_io::os::owned;

/// Memory for pages of the table, in bytes.
const TABLE_CACHE_BYTES: usize = 16 << 20;
/// Times that the records are gone through after repairs; each may show what the one before hid.
const ROUNDS_MAX: usize = 16;

/// What other rooms keep in the store.
pub trait Rooms {
    /// Applies a record of the log again that is not of extents.
    ///
    /// # Errors
    /// When it is damaged.
    fn replay(&self, kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()>;
    /// Examines the journal of the cache view. `dirty` are the files of it with dirty bytes in the store.
    ///
    /// # Errors
    /// When the table cannot be read.
    fn examine(&self, table: &dyn Table, dirty: &[Dirty], book: &mut Book) -> Result<()>;
    /// Where a file of the cache view is, relative to the shared directory, if the store knows.
    fn path(&self, table: &dyn Table, inode: InodeId) -> Option<String>;
}

/// A file of the cache view with dirty bytes in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// Which file.
    pub inode: InodeId,
    /// How many bytes.
    pub bytes: u64,
    /// Whether the record of the file belongs on this node.
    pub coordinated_here: bool,
}

/// What the examination met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records of the log.
    pub log_records: u64,
    /// Inodes of the job-shared and node-local views.
    pub inodes: u64,
    /// Names of them.
    pub names: u64,
    /// Units with bytes.
    pub units: u64,
    /// Bytes whose checksums were compared.
    pub bytes: u64,
    /// Files of the cache view with dirty bytes here.
    pub dirty_files: u64,
    /// Bytes that the shared file system does not have.
    pub dirty_bytes: u64,
    /// Files of the node-local view that were read.
    pub local_files: u64,
    /// Their bytes.
    pub local_bytes: u64,
}

/// What was found, and what became of it.
#[derive(Debug)]
pub struct Report {
    /// In the order of the parts.
    pub findings: Vec<Finding>,
    /// What was met.
    pub counts: Counts,
    /// Whether something was repaired.
    pub repaired: bool,
    /// Where the repair has put what was cut aside, if there was something.
    pub lost_and_found: Option<PathBuf>,
}

impl Report {
    /// The worst of what was found, if anything.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Examines the store in `dir`, and repairs it when `repair`. `progress` is told how many of how many bytes have been
/// compared with their checksums.
///
/// # Errors
/// `EINVAL` when the directory is no store, or one of another version; `EBUSY` when a process has it open; `EPERM` when it is to be repaired
/// and another user has it or can write to it; what the
/// disk says. After an error of a repair, nothing is lost that was there before: it can be repeated.
pub fn check(
    dir: &Path,
    rooms: &dyn Rooms,
    repair: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    check_reading(dir, rooms, repair, progress, &local::read_file)
}

/// As [`check`], reading files of the node-local view by `read`.
fn check_reading(
    dir: &Path,
    rooms: &dyn Rooms,
    repair: bool,
    progress: &mut dyn FnMut(u64, u64),
    read: local::ReadFile<'_>,
) -> Result<Report> {
    let mut book = Book::default();
    let stopped = Stopped::enter(dir, &mut book)?;
    if repair {
        refuse_foreign(dir)?;
    }
    let whole_table = open_table(dir, &mut book)?;
    let kv: Arc<dyn Kv> = match &whole_table {
        Some(kv) => kv.clone(),
        None => Arc::new(MemoryKv::default()),
    };
    let (logs, extents) = (read_logs(dir, &mut book)?, Extents::open(&dir.join(EXTENTS))?);
    let (ledger, mut counts) =
        examine(kv, logs, &extents, stopped.after_power_loss, rooms, progress, &mut book)?;
    local::examine(dir, read, &mut counts, &mut book);
    let needed = repair && book.has_repairs();
    let lost_and_found = match needed {
        true => repair::carry_out(&stopped, whole_table.is_none(), ledger, &extents, &book)?,
        false => None,
    };
    Ok(Report { findings: book.findings, counts, repaired: needed, lost_and_found })
}

/// Whoever else can write to a store may have put links in the place of files that a repair writes.
fn refuse_foreign(dir: &Path) -> Result<()> {
    match owned::is_own_dir(dir) {
        Err(fault) if fault.errno == Errno::EPERM && dir.is_dir() => {
            Err(fault.context("a store is repaired by its owner, when nobody else can write to it"))
        }
        // What else is wrong with it is told as without a repair.
        _ => Ok(()),
    }
}

/// The media of a store that has stopped, wherever they are.
pub struct StoppedMedia {
    /// The table's store.
    pub kv: Arc<dyn Kv>,
    /// Content of the files of the log.
    pub logs: [Vec<u8>; 2],
    /// Where the bytes of units are.
    pub device: Box<dyn Device>,
    /// Its size in bytes.
    pub device_size: u64,
}

/// Examines a store as [`check`] does, when no power was lost since it was open.
///
/// # Errors
/// When the table cannot be read.
pub fn check_media(media: StoppedMedia, rooms: &dyn Rooms) -> Result<Report> {
    let mut book = Book::default();
    let extents = Extents::on(media.device, media.device_size);
    let (_, counts) = examine(media.kv, media.logs, &extents, false, rooms, &mut |_, _| {}, &mut book)?;
    Ok(Report { findings: book.findings, counts, repaired: false, lost_and_found: None })
}

/// Looks at everything, and takes down what is found.
fn examine(
    kv: Arc<dyn Kv>,
    logs: [Vec<u8>; 2],
    extents: &Extents,
    after_power_loss: bool,
    rooms: &dyn Rooms,
    progress: &mut dyn FnMut(u64, u64),
    book: &mut Book,
) -> Result<(Inspection, Counts)> {
    let (ledger, log_records) = examine_log(logs, after_power_loss, kv, rooms, extents, book)?;
    let mut counts = Counts { log_records, ..Counts::default() };
    examine_records(&ledger, rooms, extents, progress, &mut counts, book)?;
    book.sort();
    Ok((ledger, counts))
}

/// The table, looked at without being changed; `None` when it cannot be used.
fn open_table(dir: &Path, book: &mut Book) -> Result<Option<Arc<RedbKv>>> {
    let path = dir.join("table");
    if !path.exists() {
        book.lost(
            Part::Table,
            "the table is not there: every name, unit and journal record that was in it is lost",
            vec![Loss::everything()],
        );
        return Ok(None);
    }
    match RedbKv::open_copy_on_write(&path, TABLE_CACHE_BYTES) {
        Ok(kv) => Ok(Some(Arc::new(kv))),
        Err(fault) if fault.errno == Errno::EIO => {
            let words = format!(
                "the table is damaged ({fault}): every name, unit and journal record that was in it is lost"
            );
            book.lost(Part::Table, words, vec![Loss::everything()]);
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

fn read_logs(dir: &Path, book: &mut Book) -> Result<[Vec<u8>; 2]> {
    let mut logs = [Vec::new(), Vec::new()];
    for (name, bytes) in LOG_NAMES.into_iter().zip(&mut logs) {
        let path = dir.join(name);
        if !path.exists() {
            book.lost(
                Part::Log,
                format!("{name} is not there: the changes that were only in it are lost"),
                vec![Loss::unknown()],
            );
            continue;
        }
        *bytes = std::fs::read(&path)
            .map_err(|error| Fault::from_os(format!("read {}", path.display()), &error))?;
    }
    Ok(logs)
}

/// The table with the log applied to it, and the number of records in the log.
fn examine_log(
    logs: [Vec<u8>; 2],
    after_power_loss: bool,
    kv: Arc<dyn Kv>,
    rooms: &dyn Rooms,
    extents: &Extents,
    book: &mut Book,
) -> Result<(Inspection, u64)> {
    let mut holds = |kind: RecordKind, body: &[u8]| match kind {
        RecordKind::Extents => extents.holds(body),
        RecordKind::Names | RecordKind::Cache => Ok(true),
    };
    let mut apply = |kind: RecordKind, body: &[u8], table: &mut dyn Table| match kind {
        RecordKind::Extents => crate::extent::apply(body, table),
        RecordKind::Names | RecordKind::Cache => rooms.replay(kind, body, table),
    };
    let holds = after_power_loss.then_some(&mut holds as crate::ledger::inspect::Holds<'_>);
    let (ledger, report) = Inspection::new(kv, logs, holds, &mut apply)?;
    for (number, place, size) in report.torn {
        book.note(
            Part::Log,
            format!(
                "{} ends in {size} bytes that are no whole record (from byte {place} on): the agent died as it \
                 wrote them; they were never acknowledged as safe, and are dropped",
                LOG_NAMES[number]
            ),
        );
    }
    if let Some(sequence) = report.truncated_at {
        book.note(
            Part::Log,
            format!(
                "the machine was started again since: records of the log from {sequence} on, whose data was never \
                 safe, are dropped"
            ),
        );
    }
    for words in report.lost {
        book.lost(Part::Log, words, vec![Loss::unknown()]);
    }
    Ok((ledger, report.records))
}

/// Goes through the records as often as repairs of them show more.
fn examine_records(
    ledger: &Inspection,
    rooms: &dyn Rooms,
    extents: &Extents,
    progress: &mut dyn FnMut(u64, u64),
    counts: &mut Counts,
    book: &mut Book,
) -> Result<()> {
    for round in 0..ROUNDS_MAX {
        let table = ledger.table();
        let names = Names::examine(&table, book)?;
        let name = |inode: InodeId| match inode.is_cached() {
            true => rooms.path(&table, inode),
            false => names.path(&table, inode),
        };
        let mut found =
            extents.examine(&table, &names, &name, (round == 0).then_some(&mut *progress), book)?;
        for dirty in &mut found.dirty {
            dirty.coordinated_here = names.keeps(dirty.inode);
        }
        rooms.examine(&table, &found.dirty, book)?;
        if round == 0 {
            counts.bytes = found.bytes;
        }
        (counts.inodes, counts.names) = names.counts();
        counts.units = found.units;
        counts.dirty_files = found.dirty.len() as u64;
        counts.dirty_bytes = found.dirty.iter().map(|dirty| dirty.bytes).sum();
        let changes = book.take_changes();
        if changes.is_empty() && !book.waits() {
            return Ok(());
        }
        ledger.change(changes);
    }
    Err(Fault::io(
        "the records contradict each other however they are put right; the store cannot be repaired",
    ))
}
