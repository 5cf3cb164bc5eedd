//! The table of `tameike cache stat`: the sources of reads of each node.

use super::table;
use crate::driver::protocol::{JobStatus, NodeLine};
use crate::settings::size::show;
use std::io::Write;
use tameike_core::wire::admin::{Counter, counters};

const HEAD: [&str; 11] = [
    "node",
    "host",
    "own memory",
    "peer memory",
    "homes",
    "requested",
    "delivered",
    "hit rate",
    "sent",
    "from peers",
    "from shared dir",
];

/// Prints one job.
pub fn write(status: &JobStatus, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "job {}: {} nodes", status.job, status.nodes.len())?;
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(status.nodes.iter().map(row)).collect();
    let mut right = [true; 11];
    right[1] = false;
    table(&rows, right, out)
}

fn row(line: &NodeLine) -> [String; 11] {
    let cells = |cells: [String; 9]| {
        let mut cells = cells.into_iter();
        std::array::from_fn(|column| match column {
            0 => line.node.to_string(),
            1 => line.host.clone(),
            _ => cells.next().unwrap_or_default(),
        })
    };
    let Some(status) = &line.status else { return cells(std::array::from_fn(|_| "-".to_owned())) };
    let value = |name: &str| of(&status.counters, name);
    let requested = value(counters::PEER_READ_REQUESTED_PAGES);
    let delivered = value(counters::PEER_READ_SERVED_PAGES);
    cells([
        show(value(counters::READ_MEMORY)),
        show(value(counters::READ_PEER_MEMORY)),
        show(value(counters::READ_HOMES)),
        requested.to_string(),
        delivered.to_string(),
        hit_rate(requested, delivered),
        show(value(counters::SENT)),
        show(value(counters::LOADED_PEER_MEMORY)),
        show(value(counters::LOADED_SHARED)),
    ])
}

/// Delivered pages as a percentage of the requested ones.
pub(super) fn hit_rate(requested: u64, delivered: u64) -> String {
    if requested == 0 {
        "-".to_owned()
    } else {
        format!("{:.1} %", delivered as f64 * 100.0 / requested as f64)
    }
}

fn of(counters: &[Counter], name: &str) -> u64 {
    counters.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value)
}
