//! Execution of a repair, in this order:
//!
//! 1. copy removed records and bytes to `lost+found`, and move unreadable files there; sync
//! 2. list the losses in `damage`
//! 3. copy blocks that two units name
//! 4. move an unusable table to `lost+found`
//! 5. commit all changes to the table, with those of the log, at once
//! 6. empty the log
//! 7. write `format` and missing files
//!
//! An interrupted repair can be repeated: a new check finds what it did not reach.

use super::findings::{Aside, Finding, Findings, Severity};
use super::identity::{Stopped, UNKNOWN_BOOT};
use crate::directory::{EXTENTS, Format, TABLE, write_damage};
use crate::extent::check::Extents;
use crate::ledger::LOG_NAMES;
use crate::ledger::inspect::Inspection;
use crate::ledger::kv::Kv;
use crate::ledger::redb::RedbKv;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tameike_core::{Fault, Result};
use tameike_io::disk::file::sync_directory;
use tameike_io::os::owned;

const ASIDE: &str = "lost+found";

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Fault {
    Fault::from_os(format!("{doing} {}", path.display()), error)
}

/// Makes the changes of a check. Returns the directory of what it saved, if anything.
pub(super) fn carry_out(
    stopped: &Stopped,
    replace_table: bool,
    ledger: Inspection,
    extents: &Extents,
    findings: &Findings,
) -> Result<Option<PathBuf>> {
    let dir = &stopped.dir;
    let lost: Vec<_> =
        findings.findings.iter().filter(|finding| finding.severity == Severity::Lost).collect();
    let needs_directory = !lost.is_empty() || !findings.aside.is_empty() || replace_table;
    let lost_found = needs_directory.then(|| dir.join(ASIDE));
    if let Some(lost_found) = &lost_found {
        std::fs::create_dir_all(lost_found)
            .map_err(|error| failed("create the directory", lost_found, &error))?;
        owned::is_own_dir(lost_found)?;
        keep_copies(dir, lost_found, extents, findings)?;
        list(lost_found, &lost)?;
        sync_directory(lost_found)?;
    }
    let cached = lost.iter().filter(|finding| finding.lost.iter().any(|loss| loss.cached));
    write_damage(dir, &cached.map(|finding| finding.message.clone()).collect::<Vec<_>>())?;
    extents.copy_blocks(&dir.join(EXTENTS), &findings.copies)?;
    let table = dir.join(TABLE);
    if let (true, Some(lost_found)) = (replace_table && table.exists(), &lost_found) {
        let aside = free_name(lost_found, TABLE);
        std::fs::rename(&table, &aside).map_err(|error| failed("set aside", &table, &error))?;
    }
    sync_directory(dir)?;
    let changes = ledger.into_changes();
    RedbKv::open(&table, super::TABLE_CACHE_BYTES, 0)?.commit(&changes)?;
    for name in LOG_NAMES.iter().chain(&stopped.absent) {
        let path = dir.join(name);
        let empty = || File::create(&path)?.sync_all();
        empty().map_err(|error| failed("empty", &path, &error))?;
    }
    if stopped.format_broken {
        Format { path: dir.join("format"), boot_id: UNKNOWN_BOOT.to_owned() }.write()?;
    }
    sync_directory(dir)?;
    Ok(lost_found)
}

/// A name in the directory that is free.
fn free_name(dir: &Path, name: &str) -> PathBuf {
    let first = std::iter::once(dir.join(name));
    let more = (1..).map(|number| dir.join(format!("{name}.{number}")));
    first.chain(more).find(|path| !path.exists()).unwrap_or_else(|| dir.join(name))
}

fn keep_copies(dir: &Path, lost_found: &Path, extents: &Extents, findings: &Findings) -> Result<()> {
    if findings
        .findings
        .iter()
        .any(|finding| finding.part == super::Part::Log && finding.severity == Severity::Lost)
    {
        for name in LOG_NAMES.into_iter().filter(|name| dir.join(name).exists()) {
            let (from, to) = (dir.join(name), free_name(lost_found, name));
            std::fs::copy(&from, &to).map_err(|error| failed("copy", &from, &error))?;
        }
    }
    let mut records = String::new();
    for aside in &findings.aside {
        match aside {
            Aside::Record(key, value) => records.push_str(&format!("{} {}\n", hex(key), hex(value))),
            Aside::Bytes { unit, start, device } => {
                let path = lost_found.join(format!("{:016x}", unit.inode.0));
                let Some(bytes) = extents.readable(device.clone()) else { continue };
                let write = || {
                    let file = OpenOptions::new().create(true).write(true).truncate(false).open(&path)?;
                    file.write_all_at(&bytes, unit.start() + u64::from(*start))?;
                    file.sync_data()
                };
                write().map_err(|error| failed("write", &path, &error))?;
            }
            Aside::File(inside) => {
                let (from, name) = (dir.join(inside), inside.to_string_lossy().replace('/', "-"));
                std::fs::rename(&from, free_name(lost_found, &name))
                    .map_err(|error| failed("set aside", &from, &error))?;
            }
        }
    }
    if records.is_empty() { Ok(()) } else { append(&lost_found.join("records"), &records) }
}

/// Appends the losses to `lost.txt`.
fn list(lost_found: &Path, lost: &[&Finding]) -> Result<()> {
    let lines: String = lost.iter().map(|finding| format!("{}\n", finding.message)).collect();
    if lines.is_empty() { Ok(()) } else { append(&lost_found.join("lost.txt"), &lines) }
}

fn append(path: &Path, text: &str) -> Result<()> {
    let write = || {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()
    };
    write().map_err(|error| failed("write", path, &error))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
