//! Where the programs of jobs read from, as a table.

use super::table;
use crate::driver::protocol::{JobStatus, NodeLine};
use crate::settings::size::show;
use std::io::Write;
use tameike_core::wire::admin::{Counter, counters};

const HEAD: [&str; 10] = [
    "node",
    "host",
    "own memory",
    "others' memory",
    "homes",
    "asked",
    "had it",
    "sent",
    "got from memory",
    "from shared dir",
];

/// Prints one job.
///
/// # Errors
/// Nobody reads.
pub fn write(status: &JobStatus, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "job {}: {} nodes", status.job, status.nodes.len())?;
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(status.nodes.iter().map(row)).collect();
    table(&rows, [true, false, true, true, true, true, true, true, true, true], out)
}

fn row(line: &NodeLine) -> [String; 10] {
    let cells = |cells: [String; 8]| {
        let mut cells = cells.into_iter();
        std::array::from_fn(|column| match column {
            0 => line.node.to_string(),
            1 => line.host.clone(),
            _ => cells.next().unwrap_or_default(),
        })
    };
    let Some(status) = &line.status else { return cells(std::array::from_fn(|_| "-".to_owned())) };
    let value = |name: &str| of(&status.counters, name);
    let requested = value(counters::HELD_REQUESTED);
    let had = match value(counters::HELD_DELIVERED) {
        _ if requested == 0 => "-".to_owned(),
        delivered => format!("{:.1} %", delivered as f64 * 100.0 / requested as f64),
    };
    cells([
        show(value(counters::READ_MEMORY)),
        show(value(counters::READ_HOLDERS)),
        show(value(counters::READ_HOMES)),
        requested.to_string(),
        had,
        show(value(counters::SENT)),
        show(value(counters::LOADED_HOLDERS)),
        show(value(counters::LOADED_SHARED)),
    ])
}

fn of(counters: &[Counter], name: &str) -> u64 {
    counters.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value)
}
