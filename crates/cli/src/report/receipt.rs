//! Output of drain receipts, as a table and as JSON.

use super::{plural, printable, say, storms, table};
use crate::settings::size::show as show_size;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use tameike_core::receipt::{FileOutcome, FileReceipt, Receipt};
use tameike_core::{Fault, Result};

/// Receipts with more files list only those that are incomplete.
const ROWS_MAX: usize = 200;
/// Prefix of the checksum of a file of which the job wrote some units only.
const PARTS: &str = "units:";
/// Digits of a checksum in the table; the JSON receipt has all.
const CHECKSUM_DIGITS: usize = 16;

/// Prints the receipt: a line per file, then a summary.
pub fn show(receipt: &Receipt, out: &mut dyn Write) {
    // A closed output is not an error: the exit code carries the outcome too.
    let _ = write(receipt, out);
}

fn write(receipt: &Receipt, out: &mut dyn Write) -> std::io::Result<()> {
    let short = receipt.files.len() > ROWS_MAX;
    let named = receipt.files.iter().filter(|file| !short || !file.is_complete());
    let mut rows: Vec<_> = named.map(row).collect();
    if !rows.is_empty() {
        rows.insert(0, ["file", "size", "BLAKE3", "state"].map(str::to_owned));
        table(&rows, [false, true, false, false], out)?;
    }
    if short {
        let complete = receipt.files.iter().filter(|file| file.is_complete()).count();
        writeln!(out, "({complete} complete files are not listed; --receipt FILE names all)")?;
    }
    for storm in storms::of_small_files(receipt) {
        writeln!(out, "tameike: {}", storms::line(&storm))?;
    }
    if receipt.files.iter().any(|file| file.checksum.starts_with(PARTS)) {
        writeln!(out, "({PARTS} BLAKE3 of the 1 MiB units that the job wrote, not of the whole file)")?;
    }
    for fault in &receipt.faults {
        writeln!(out, "problem: {}", printable(&fault.to_string()))?;
    }
    writeln!(out, "tameike: {}", summary(receipt))
}

fn row(file: &FileReceipt) -> [String; 4] {
    let mut state = match &file.outcome {
        FileOutcome::Synced => "synced".to_owned(),
        FileOutcome::Verified => "verified".to_owned(),
        FileOutcome::Missing(why) => format!("MISSING: {}", printable(why)),
        FileOutcome::Interrupted(what) => format!("INTERRUPTED: {}", printable(what)),
    };
    if !file.note.is_empty() {
        state = format!("{state} ({})", file.note);
    }
    let path = file.path.escape_debug().to_string();
    [path, show_size(file.size), file.checksum.chars().take(CHECKSUM_DIGITS).collect(), state]
}

/// Returns a summary in one line.
pub fn summary(receipt: &Receipt) -> String {
    let count = receipt.files.len();
    let files = plural(count, "file");
    let bytes = show_size(receipt.files.iter().map(|file| file.written).sum());
    let missing = receipt.missing().count();
    if !receipt.is_complete() {
        let (problems, interrupted) = (receipt.faults.len(), receipt.interrupted().count());
        let mut parts = Vec::new();
        parts.extend(
            (missing > 0).then(|| format!("{missing} of {count} {files} not on the shared file system")),
        );
        parts.extend(
            (interrupted > 0).then(|| format!("{interrupted} of {count} {files} interrupted while written")),
        );
        let kind = if parts.is_empty() { "problem" } else { "other problem" };
        parts.extend((problems > 0).then(|| format!("{problems} {}", plural(problems, kind))));
        return format!("drain INCOMPLETE: {}", parts.join(", "));
    }
    if count == 0 {
        return "drain complete: nothing was written in the cache view".to_owned();
    }
    let verified = receipt.files.iter().filter(|file| file.outcome == FileOutcome::Verified).count();
    let how = if verified == count {
        "all synced, read back and equal".to_owned()
    } else if verified == 0 {
        "all synced".to_owned()
    } else {
        format!("all synced, {verified} read back and equal")
    };
    format!("drain complete: {count} {files}, {bytes} written, {how}")
}

/// The JSON document: the receipt with its outcome.
#[derive(Serialize)]
struct Document<'a> {
    complete: bool,
    #[serde(flatten)]
    receipt: &'a Receipt,
}

/// Checks that the receipt can be written, before a job runs whose receipt cannot be repeated. An existing file is not changed.
pub fn check_place(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let failed = |error| Fault::from_os(format_args!("writing the receipt {}", path.display()), &error);
    let is_new = !path.exists();
    std::fs::File::options().append(true).create(true).open(path).map_err(failed)?;
    if is_new { std::fs::remove_file(path).map_err(failed) } else { Ok(()) }
}

/// Writes the receipt as JSON.
pub fn write_json(receipt: &Receipt, path: &Path) -> Result<()> {
    let document = Document { complete: receipt.is_complete(), receipt };
    let failed = |error| Fault::from_os(format_args!("writing the receipt {}", path.display()), &error);
    let mut text = serde_json::to_string_pretty(&document).map_err(|error| failed(error.into()))?;
    text.push('\n');
    std::fs::write(path, text).map_err(failed)
}

/// Writes a receipt if `path` is given; returns false and prints the error if that fails.
pub fn keep(receipt: &Receipt, path: Option<&Path>) -> bool {
    let kept = path.map_or(Ok(()), |path| write_json(receipt, path));
    kept.inspect_err(|fault| say(format_args!("{fault}"))).is_ok()
}

/// Shows a receipt and writes it to `path`. Returns the exit code.
pub fn deliver(receipt: &Receipt, path: Option<&Path>) -> u8 {
    show(receipt, &mut std::io::stdout().lock());
    match (receipt.is_complete(), keep(receipt, path)) {
        (false, _) => crate::exit::DRAIN_INCOMPLETE,
        (true, false) => crate::exit::FAILED,
        (true, true) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, outcome: FileOutcome) -> FileReceipt {
        let checksum = "0123456789abcdef0123".to_owned();
        FileReceipt { path: path.into(), size: 2048, written: 2048, checksum, outcome, note: String::new() }
    }

    fn text(receipt: &Receipt) -> String {
        let mut out = Vec::new();
        write(receipt, &mut out).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_complete_receipt_is_a_table_and_a_summary() {
        let mut files = vec![file("a", FileOutcome::Verified), file("long name\n", FileOutcome::Verified)];
        files[0].note = "sparse".into();
        let shown = text(&Receipt { files, ..Receipt::default() });
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[1], "a            2.00 KiB  0123456789abcdef  verified (sparse)");
        assert_eq!(lines[2], "long name\\n  2.00 KiB  0123456789abcdef  verified");
        assert!(lines[3].ends_with("2 files, 4.00 KiB written, all synced, read back and equal"), "{shown}");
    }

    #[test]
    fn missing_files_are_always_listed() {
        let mut files = vec![file("f", FileOutcome::Synced); ROWS_MAX + 1];
        files.push(file("gone", FileOutcome::Missing("no space".into())));
        let shown = text(&Receipt { files, faults: vec!["node 2: dead".into()], ..Receipt::default() });
        assert!(shown.contains("gone") && shown.contains("MISSING: no space"), "{shown}");
        assert!(shown.contains("problem: node 2: dead") && shown.contains("201 complete files"), "{shown}");
        assert!(shown.contains("INCOMPLETE: 1 of 202 files"), "{shown}");
        assert!(shown.lines().count() < 10);
    }
}
