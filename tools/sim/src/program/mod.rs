//! What programs do on the nodes, and what goes wrong meanwhile: a list of steps that follows from a seed.

mod draw;
mod words;

pub use draw::draw;

use crate::op::Op;
use crate::tree::TreeFaults;
use crate::world::{DiskFaults, WorldConfig};
use tameike_core::View;
use tameike_fabric::simulated::Weather;

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// An agent dies; with `power` so does its machine.
    Kill {
        /// Whose.
        node: usize,
        /// Whether what is not synced is lost.
        power: bool,
    },
    /// What one node sends reaches the other no more.
    Cut {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Nor the other way.
        both: bool,
    },
    /// All links are whole again.
    Mend,
    /// The network changes.
    Weather(Weather),
    /// The shared file system fails.
    Tree(TreeFaults),
    /// The disks of a node fail.
    Disk(usize, DiskFaults),
    /// A bit turns on the disk of a node.
    Rot(usize),
    /// A bit turns in memory of a node.
    Flip(usize),
    /// A node has all files of the shared file system loaded.
    Warm(usize),
    /// Calls that block take up to so many milliseconds on a node.
    Slow(usize, u64),
}

/// A part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A program's call.
    Call {
        /// On which node.
        node: usize,
        /// In which view.
        view: View,
        /// The call.
        op: Op,
    },
    /// Something goes wrong, so many microseconds after the step begins.
    Trouble(u64, Trouble),
}

/// What happens together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All at the same time; the step ends when all calls have.
    Together(Vec<Action>),
    /// Milliseconds pass.
    Rest(u64),
    /// All files are drained, whatever works and whatever not, and the receipt must be true.
    Drain,
    /// Everything is mended, the dead are started again, and everything is compared.
    Check,
}

/// What a seed stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The cluster.
    pub world: WorldConfig,
    /// What happens on it.
    pub steps: Vec<Step>,
    /// Whether the job ends with the death of all agents, and is recovered.
    pub dies: bool,
}
