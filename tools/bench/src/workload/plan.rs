//! The plan of one turn: a workload with its sizes, on separate files.

use super::{Group, Workload};
use crate::outcome::Outcome;
use crate::servers;
use serde::{Deserialize, Serialize};

/// Bound on the file size of latency workloads, so that the node's cache holds the file.
const LATENCY_BYTES: u64 = 64 << 20;

/// The plan of a turn, sent to every rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub workload: Workload,
    pub ranks: u32,
    pub seed: u64,
    /// Bytes that each rank writes to its large file, or to its part of one.
    pub size_bytes: u64,
    /// Number of files per rank, for workloads of many files.
    pub files: u32,
    /// Random reads or writes per rank.
    pub operations: u32,
    /// The only processor for ranks and servers, if pinned.
    pub processor: Option<usize>,
    /// The directory of this turn, within the target's.
    pub run: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes that each rank writes to its large file, or to its part of one.
    pub size_bytes: u64,
    /// Empty files and small files per rank.
    pub files: u32,
    /// Files of 1 MiB per rank.
    pub large_files: u32,
    /// Random reads or writes per rank.
    pub operations: u32,
}

impl Sizes {
    /// Sizes for meaningful figures.
    pub const USUAL: Self = Self { size_bytes: 256 << 20, files: 2000, large_files: 128, operations: 4096 };

    /// Sizes for tests, with a large file that is no multiple of a call, so that the last call is short.
    pub const TINY: Self = Self { size_bytes: (3 << 20) + 8192, files: 20, large_files: 3, operations: 40 };

    /// The plan of a turn of `workload`, with `ranks` unless it fixes their number. Each turn of a process has different data, so
    /// that leftovers of an earlier one are detected.
    pub fn plan(self, workload: Workload, ranks: u32, seed: u64, turn: usize) -> Outcome<Plan> {
        Ok(Plan {
            workload,
            ranks: workload.ranks(ranks),
            seed: seed.wrapping_add(turn as u64),
            size_bytes: match workload {
                Workload::Latency | Workload::LatencyPinned => self.size_bytes.min(LATENCY_BYTES),
                _ => self.size_bytes,
            },
            files: match workload.group() {
                Group::Mebibyte => self.large_files,
                _ => self.files,
            },
            operations: self.operations,
            processor: match workload.is_pinned() {
                true => Some(servers::first_and_last_processor()?.0),
                false => None,
            },
            run: format!("run-{}-{turn}", std::process::id()),
        })
    }
}
