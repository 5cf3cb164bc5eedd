//! The plan of one turn: a workload with its sizes.

use super::{Group, Step, Workload};
use crate::outcome::Outcome;
use crate::servers;
use serde::{Deserialize, Serialize};

/// Size limit of files that measure the latency of cached reads: they must fit the node's cache.
const LATENCY_BYTES: u64 = 64 << 20;

/// The plan that the coordinator sends to each rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub workload: Workload,
    /// The steps that the ranks take until they exit.
    pub steps: Vec<Step>,
    /// Whether the ranks' files are in a container, which they open with the library.
    pub in_container: bool,
    pub ranks: u32,
    /// The seed of the content.
    pub seed: u64,
    /// What each rank writes to its large file, or to its part of one.
    pub size_bytes: u64,
    /// Many files: how many of each rank.
    pub files: u32,
    /// Many files: bytes of each.
    pub file_bytes: usize,
    /// Random reads or writes of each rank.
    pub operations: u32,
    /// Run on this processor only, ranks and servers.
    pub processor: Option<usize>,
    /// The directory of this turn, within the target's.
    pub run: String,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// What each rank writes to its large file, or to its part of one.
    pub size_bytes: u64,
    /// Empty files and small files of each rank.
    pub files: u32,
    /// Files of 1 MiB of each rank.
    pub large_files: u32,
    /// Bytes of each file of `containers`.
    pub file_bytes: usize,
    /// Random reads or writes of each rank.
    pub operations: u32,
}

impl Sizes {
    /// Enough for stable figures.
    pub const USUAL: Self =
        Self { size_bytes: 256 << 20, files: 2000, large_files: 128, file_bytes: 64 << 10, operations: 4096 };

    /// For tests. The size is no multiple of a call, so that the last call is short.
    pub const TINY: Self =
        Self { size_bytes: (3 << 20) + 8192, files: 20, large_files: 3, file_bytes: 3000, operations: 40 };

    /// Plans a turn of `workload` by `ranks`, unless the workload has a fixed number. Each turn has different content, so that content of an
    /// earlier turn fails the checks.
    pub fn plan(self, workload: Workload, ranks: u32, seed: u64, turn: usize) -> Outcome<Plan> {
        Ok(Plan {
            workload,
            steps: workload.steps().to_vec(),
            in_container: false,
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
            file_bytes: workload.file_bytes(self.file_bytes),
            operations: self.operations,
            processor: match workload.is_pinned() {
                true => Some(servers::first_and_last_processor()?.0),
                false => None,
            },
            run: format!("run-{}-{turn}", std::process::id()),
        })
    }
}
