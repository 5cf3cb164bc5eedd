//! Messages and receipts of mirrors.

use super::target::MirrorTarget;
use super::worker::MirrorEnd;
use crate::report;
use std::path::Path;
use tameike_core::receipt::{FileOutcome, FileReceipt};

/// Files of an incomplete mirror that the message names.
const NAMED_MAX: usize = 5;

/// A number with a comma between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> =
        digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}

/// Messages that say whether a mirror is complete, and if not, what to do.
pub fn messages(target: &MirrorTarget, source: &Path, end: &MirrorEnd) -> Vec<String> {
    let mut messages = Vec::new();
    if end.receipt.is_complete() {
        let count = end.receipt.files.len();
        let files = report::plural(count, "file");
        messages.push(format!("mirror {target}: {} {files} identical", grouped(count as u64)));
        if end.compared.surplus > 0 {
            messages.push(format!(
                "mirror {target}: {} names that {} lacks are left, as the directory was not empty when it became a mirror; to \
                 remove them, run: {}",
                grouped(end.compared.surplus),
                source.display(),
                advice(target, source)
            ));
        }
        return messages;
    }
    messages.extend(
        end.receipt.faults.iter().map(|fault| format!("mirror {target}: {}", report::printable(fault))),
    );
    let lacking: Vec<&FileReceipt> = end.receipt.files.iter().filter(|file| !file.is_complete()).collect();
    for file in lacking.iter().take(NAMED_MAX) {
        let why = match &file.outcome {
            FileOutcome::Missing(why) | FileOutcome::Interrupted(why) => report::printable(why),
            FileOutcome::Synced | FileOutcome::Verified => continue,
        };
        messages.push(format!("mirror {target}: {}: {why}", file.path.escape_debug()));
    }
    let count = lacking.len();
    let paths = report::plural(count, "path");
    messages.push(format!(
        "the mirror {target} is incomplete ({count} {paths} missing); when the cause is fixed, run: {}",
        advice(target, source)
    ));
    messages
}

/// The command that makes a mirror equal.
pub fn advice(target: &MirrorTarget, source: &Path) -> String {
    format!("tameike mirror {} {target}", source.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown: Vec<_> = [0, 999, 1000, 1_204_567].map(grouped).to_vec();
        assert_eq!(shown, ["0", "999", "1,000", "1,204,567"]);
    }
}
