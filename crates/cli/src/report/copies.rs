//! The result of `tameike check --replicas`.

use super::{plural, printable};
use crate::driver::protocol::CopyLine;
use crate::exit;
use std::io::Write;
use tameike_core::wire::admin::CopyReport;

/// The exit code: success if all copies are equal now.
pub fn code(lines: &[CopyLine]) -> u8 {
    let is_whole = lines.iter().all(|line| line.report.as_ref().is_some_and(|report| report.left() == 0));
    if is_whole { 0 } else { exit::DAMAGED }
}

/// Prints the result as JSON.
pub fn write_json(lines: &[CopyLine], out: &mut dyn Write) -> std::io::Result<()> {
    let outcome = match (code(lines), total(lines).differences) {
        (0, 0) => "equal",
        (0, _) => "repaired",
        _ => "damaged",
    };
    writeln!(out, "{:#}", serde_json::json!({ "outcome": outcome, "nodes": lines }))
}

/// Prints the result: a line for each node, its findings, and a summary.
pub fn write(lines: &[CopyLine], out: &mut dyn Write) -> std::io::Result<()> {
    for line in lines {
        match (&line.report, &line.fault) {
            (Some(report), _) => {
                writeln!(out, "node {}: {}", line.node, in_words(report))?;
                report.findings.iter().try_for_each(|found| writeln!(out, "  {}", printable(found)))?;
            }
            (None, fault) => {
                let why = fault.as_deref().unwrap_or("no reply");
                writeln!(out, "node {}: not compared: {}", line.node, printable(why))?;
            }
        }
    }
    writeln!(out, "tameike: {}", summary(lines))
}

fn in_words(report: &CopyReport) -> String {
    let count = |count: u64, noun| format!("{count} {}", plural(count as usize, noun));
    let mut words = format!("{}, {} compared", count(report.homes, "home"), count(report.units, "unit"));
    if report.homes_with_one_copy > 0 {
        words += &format!(", {} with one copy only", count(report.homes_with_one_copy, "home"));
    }
    if report.differences > 0 {
        words += &format!(", {}, {} repaired", count(report.differences, "difference"), report.repaired);
    }
    if report.failed > 0 {
        words += &format!(", {} not compared", report.failed);
    }
    words
}

fn total(lines: &[CopyLine]) -> CopyReport {
    lines.iter().filter_map(|line| line.report.as_ref()).fold(CopyReport::default(), |sum, one| CopyReport {
        differences: sum.differences + one.differences,
        repaired: sum.repaired + one.repaired,
        ..sum
    })
}

fn summary(lines: &[CopyLine]) -> String {
    let CopyReport { differences, repaired, .. } = total(lines);
    let differ = format!("{differences} {}", plural(differences as usize, "difference"));
    match (code(lines), differences) {
        (0, 0) => "all copies are equal".to_owned(),
        (0, _) => format!("all copies are equal again: {differ} repaired. Check the devices"),
        _ => format!(
            "the copies are NOT all equal, or not all were compared: {differ}, {repaired} repaired. If homes are \
             being copied (tameike status), check again when that has ended"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(node: u32, report: CopyReport) -> CopyLine {
        CopyLine { node, report: Some(report), fault: None }
    }

    fn text(lines: &[CopyLine]) -> String {
        let mut out = Vec::new();
        write(lines, &mut out).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_exit_code_and_the_summary_say_what_is_left() {
        let equal = CopyReport { homes: 16, units: 1, ..CopyReport::default() };
        let lines = [line(0, equal.clone()), line(1, equal.clone())];
        let expected = "node 0: 16 homes, 1 unit compared\nnode 1: 16 homes, 1 unit compared\n\
                        tameike: all copies are equal\n";
        assert_eq!((code(&lines), text(&lines)), (0, expected.to_owned()));
        let found = vec!["unit 1 \u{1b}".to_owned()];
        let repaired = CopyReport { differences: 2, repaired: 2, findings: found, ..equal.clone() };
        let lines = [line(0, repaired.clone())];
        assert_eq!(code(&lines), 0);
        assert!(
            text(&lines).contains("1 unit compared, 2 differences, 2 repaired\n  unit 1 "),
            "{}",
            text(&lines)
        );
        assert!(text(&lines).ends_with("equal again: 2 differences repaired. Check the devices\n"));
        for left in [
            line(1, CopyReport { repaired: 1, ..repaired }),
            line(1, CopyReport { failed: 1, ..equal }),
            CopyLine { node: 1, report: None, fault: Some("it has failed".to_owned()) },
        ] {
            let lines = [left];
            assert_eq!(code(&lines), exit::DAMAGED);
            assert!(text(&lines).contains("NOT all equal"), "{}", text(&lines));
        }
    }
}
