//! `tameike check`: reports and repairs damage in the store of a stopped node.

use crate::arguments::CheckArguments;
use crate::exit;
use crate::place::record::DeviceOwner;
use crate::place::volume_store::StoreLabel;
use crate::report::progress::{self, Display};
use crate::report::{self, plural, printable};
use crate::settings::size::show;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use tameike_agent::check::{Finding, Loss, Report, Severity};
use tameike_core::{Fault, Result};

/// Checks a store. Returns the exit code.
pub fn check(dir: &Path, arguments: &CheckArguments) -> u8 {
    let mut display = Display::new(progress::CHECK);
    let checked =
        tameike_agent::check::check(dir, arguments.repair, &mut |done, all| display.checked(done, all));
    display.finish();
    report::exit_code(checked.and_then(|report| print(dir, arguments.json, &report)))
}

fn print(dir: &Path, is_json: bool, report: &Report) -> Result<u8> {
    let owner = owner_in_words(dir);
    let mut out = std::io::stdout().lock();
    let written = match is_json {
        true => writeln!(out, "{:#}", document(dir, report)),
        false => write_text(dir, &owner, report, &mut out),
    };
    written.map_err(|error| Fault::io(format!("printing the findings: {error}")))?;
    Ok(code(report))
}

fn code(report: &Report) -> u8 {
    match report.worst() {
        None | Some(Severity::Note) => 0,
        Some(Severity::Wrong | Severity::Lost) if report.repaired => exit::REPAIRED,
        Some(Severity::Wrong | Severity::Lost) => exit::DAMAGED,
    }
}

/// Describes the owner of the store.
fn owner_in_words(dir: &Path) -> String {
    match DeviceOwner::read(dir) {
        Ok(Some(owner)) => format!("store of job {}, {}", owner.job, owner.node_dir.display()),
        Ok(None) => match StoreLabel::of(dir) {
            Ok(Some(label)) => format!("store of node {} of volume {}", label.node, label.volume),
            _ => "store without the name of its job".to_owned(),
        },
        Err(fault) => format!("store whose record of the job cannot be read ({fault})"),
    }
}

fn label(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Wrong => "wrong",
        Severity::Lost => "LOST",
    }
}

fn write_text(dir: &Path, owner: &str, report: &Report, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{}: {owner}", dir.display())?;
    for Finding { part, severity, message, .. } in &report.findings {
        writeln!(out, "{:<5}  {:<7}  {}", label(*severity), part.as_str(), printable(message))?;
    }
    let counts = &report.counts;
    writeln!(
        out,
        "examined: {} log {}, {} {}, {} {}, {} {}, {} compared with their checksums",
        counts.log_records,
        plural(counts.log_records as usize, "record"),
        counts.inodes,
        plural(counts.inodes as usize, "inode"),
        counts.names,
        plural(counts.names as usize, "name"),
        counts.units,
        plural(counts.units as usize, "unit"),
        show(counts.bytes)
    )?;
    if counts.local_files > 0 {
        writeln!(
            out,
            "read: {} {} of the node-local view, {}",
            counts.local_files,
            plural(counts.local_files as usize, "file"),
            show(counts.local_bytes)
        )?;
    }
    if counts.dirty_bytes > 0 {
        let files = plural(counts.dirty_files as usize, "file");
        writeln!(
            out,
            "has {} of dirty data of {} {files} of the cache view; `tameike recover` \
             drains it",
            show(counts.dirty_bytes),
            counts.dirty_files
        )?;
    }
    writeln!(out, "tameike: {}", summary(dir, report))
}

fn summary(dir: &Path, report: &Report) -> String {
    let count = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let (wrong, lost) = (count(Severity::Wrong), count(Severity::Lost));
    let what = match (wrong, lost) {
        (0, 0) => return "the store is whole".to_owned(),
        (wrong, 0) => format!("{wrong} {} wrong, nothing is lost", plural(wrong, "item")),
        (0, lost) => format!("{lost} {} lost", plural(lost, "item")),
        (wrong, lost) => format!("{lost} {} lost, {wrong} wrong", plural(lost, "item")),
    };
    if !report.repaired {
        let repair = format!("tameike check --repair {}", dir.display());
        return format!("the store is DAMAGED: {what}; nothing was changed. To repair it: {repair}");
    }
    match &report.lost_and_found {
        None => format!("the store was damaged and is repaired: {what}"),
        Some(place) => {
            format!(
                "the store was damaged and is repaired: {what}; copies of detached data are in {}",
                place.display()
            )
        }
    }
}

fn document(dir: &Path, report: &Report) -> Value {
    let outcome = match code(report) {
        0 => "whole",
        exit::REPAIRED => "repaired",
        _ => "damaged",
    };
    let counts = &report.counts;
    json!({
        "store": dir,
        "outcome": outcome,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "lost_and_found": report.lost_and_found,
        "examined": {
            "log_records": counts.log_records,
            "inodes": counts.inodes,
            "names": counts.names,
            "units": counts.units,
            "bytes": counts.bytes,
            "local_files": counts.local_files,
            "local_bytes": counts.local_bytes,
        },
        "dirty": { "files": counts.dirty_files, "bytes": counts.dirty_bytes },
    })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.as_str(),
        "part": finding.part.as_str(),
        "what": finding.message,
        "lost": finding.lost.iter().map(loss).collect::<Vec<_>>(),
    })
}

fn loss(loss: &Loss) -> Value {
    json!({
        "file": loss.file,
        "inode": loss.inode.map(|inode| inode.0),
        "start": loss.bytes.as_ref().map(|bytes| bytes.start),
        "end": loss.bytes.as_ref().map(|bytes| bytes.end),
    })
}
