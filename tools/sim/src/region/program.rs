//! Programs on a region.

use super::cells::Cell;
use crate::world::WorldConfig;
use std::fmt::{Display, Formatter};
use tameike_fabric::simulated::NetworkFaults;

/// A call of a process, or an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are numbers of cells, and times in microseconds")]
pub enum Op {
    /// Loads a cell.
    Load { cell: usize },
    /// Stores the next value to a cell.
    Store { cell: usize },
    /// Sends the changes of the memory to the homes.
    Flush,
    /// Gets the changes of other memories.
    Update,
    /// Takes the lock of a counter, adds one by a load and a store, and releases the lock.
    Count { cell: usize, pause: u64 },
    /// Adds to a sum at its home.
    Add { cell: usize, addend: u64 },
    /// Opens the file, and reads a cell.
    Read { cell: usize },
    /// Lets time pass.
    Rest { time: u64 },
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its node.
    pub node: usize,
    /// It has a memory of its own.
    pub alone: bool,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process ends without detaching; `claims`: while it makes the twin of a page.
    Ends {
        /// The process.
        process: usize,
        /// It has claimed a page.
        claims: bool,
    },
    /// A process detaches while others wait for it.
    Detaches {
        /// The process.
        process: usize,
    },
    /// The agent of a node fails, with all processes of the node.
    NodeFails {
        /// The node.
        node: usize,
    },
}

/// What the processes do from one barrier to the next: a list of calls for each process.
pub type Interval = Vec<Vec<Op>>;

/// All processes attach, and detach at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Each ends with a barrier, in which all processes take part.
    pub intervals: Vec<Interval>,
    /// What fails this many microseconds after the start of the last interval of the first process that gets there.
    pub fault: Option<(u64, Fault)>,
}

/// A cluster, a region, and the processes that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionProgram {
    /// The cluster.
    pub world: WorldConfig,
    /// Delays and losses of messages.
    pub network: NetworkFaults,
    /// Size of the region in pages.
    pub pages: u32,
    /// Parts of the region.
    pub cells: Vec<Cell>,
    /// The processes.
    pub processes: Vec<Place>,
    /// One after the other.
    pub rounds: Vec<Round>,
    /// Nodes that get the next home map, and when after the start of each round, in microseconds.
    pub maps: Vec<(usize, u64)>,
}

impl RegionProgram {
    /// The faults of all rounds.
    pub fn faults(&self) -> impl Iterator<Item = Fault> + '_ {
        self.rounds.iter().filter_map(|round| round.fault).map(|(_, fault)| fault)
    }

    /// The memory of each process, and their number.
    pub(super) fn memories(&self) -> (Vec<usize>, usize) {
        let mut shared = vec![None; self.world.devices.len()];
        let mut count = 0;
        let mut new = || {
            count += 1;
            count - 1
        };
        let of = |place: &Place| match place.alone {
            true => new(),
            false => *shared[place.node].get_or_insert_with(&mut new),
        };
        let memories = self.processes.iter().map(of).collect();
        (memories, count)
    }
}

impl Display for RegionProgram {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:?}", self.world)?;
        writeln!(f, "{:?}, {} pages, home maps {:?}", self.network, self.pages, self.maps)?;
        for (cell, number) in self.cells.iter().zip(0..) {
            writeln!(f, "cell {number}: {cell}")?;
        }
        for (process, number) in self.processes.iter().zip(0..) {
            let Place { node, alone } = process;
            writeln!(f, "process {number}: node {node}{}", if *alone { ", alone" } else { "" })?;
        }
        for (round, number) in self.rounds.iter().zip(0..) {
            writeln!(f, "round {number}: {:?}", round.fault)?;
            for (interval, number) in round.intervals.iter().zip(0..) {
                writeln!(f, "  interval {number}")?;
                for (ops, process) in interval.iter().zip(0..) {
                    writeln!(f, "    process {process}: {ops:?}")?;
                }
            }
        }
        Ok(())
    }
}
