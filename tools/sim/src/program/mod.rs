//! A simulated program: the calls on the nodes and the faults to inject, as a list of steps generated from a seed.

mod display;
mod draw;

pub use draw::draw;

use crate::op::Op;
use crate::tree::TreeFaults;
use crate::world::{DiskFaults, WorldConfig};
use std::time::Duration;
use tameike_core::View;
use tameike_fabric::simulated::NetworkFaults;

/// A fault to inject, or an action of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// An agent fails; with `power`, its node loses power.
    Kill {
        /// The node.
        node: usize,
        /// Everything that is not synced is lost.
        power: bool,
    },
    /// An agent stops for this many milliseconds, as with SIGSTOP.
    Hang {
        /// The node.
        node: usize,
        /// How long.
        milliseconds: u64,
    },
    /// A network partition: messages of one node no longer reach another.
    Partition {
        /// Node whose messages are lost.
        from: usize,
        /// Node that they do not reach.
        to: usize,
        /// In both directions.
        both: bool,
    },
    /// All partitions end.
    Heal,
    /// Messages are delayed, lost or duplicated.
    Network(NetworkFaults),
    /// Calls to the shared file system fail.
    Tree(TreeFaults),
    /// Calls to the disks of a node fail.
    Disk(usize, DiskFaults),
    /// A bit flips on the disk of a node.
    Rot(usize),
    /// A bit flips in memory of a node.
    Flip(usize),
    /// A node warms all files of the shared file system.
    Warm(usize),
    /// Maximum delay of blocking calls on a node, in milliseconds.
    Slow(usize, u64),
    /// A node gets the next home map, which no other node knows yet. All homes stay where they are.
    Map(usize),
    /// The driver, with the authority of the home map, fails, and another one takes over.
    Driver,
    /// The driver and this node are cut off from the others for this many milliseconds, and another driver takes over there.
    CutDriver {
        /// The node.
        node: usize,
        /// How long.
        milliseconds: u64,
    },
    /// All homes of a node with replicas move to other nodes, as before the node leaves the job; or it may have homes again.
    Leave(usize),
}

/// An event of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A system call.
    Call {
        /// The calling node.
        node: usize,
        /// The view of the path or file.
        view: View,
        /// The call.
        op: Op,
    },
    /// A fault, this many microseconds after the step begins.
    Injection(u64, Injection),
}

/// A step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Concurrent events; the step ends when all calls have returned.
    Together(Vec<Action>),
    /// Lets this many milliseconds pass.
    Rest(u64),
    /// Drains all files despite active faults; the receipt must be correct.
    Drain,
    /// Ends all faults, restarts failed agents, and compares everything with the model.
    Check,
}

impl Step {
    /// A step with a single call.
    pub fn call(node: usize, view: View, op: Op) -> Self {
        Self::Together(vec![Action::Call { node, view, op }])
    }

    /// A step with a single fault.
    pub fn inject(injection: Injection) -> Self {
        Self::Together(vec![Action::Injection(0, injection)])
    }
}

/// How long an agent hangs, in milliseconds: until other nodes serve its homes.
const HANG_MS: u64 = 7000;

/// A cluster and the steps to run on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The cluster.
    pub world: WorldConfig,
    /// The steps.
    pub steps: Vec<Step>,
    /// All agents fail at the end of the job, and it is recovered.
    pub crashes: bool,
}

impl Program {
    /// The program on a cluster whose homes have this many replicas. Between two checks one agent fails or hangs at most, but not that of
    /// node 0, which checks use, or one link between two nodes fails. Other faults that homes do not survive become failures and hangs.
    #[must_use]
    pub fn replicated(mut self, replicas: u32) -> Self {
        if replicas > 1 {
            let world = &mut self.world;
            let count = world.devices.len().max(replicas as usize);
            world.replicas = replicas;
            world.has_keepers = count > 2 && world.seed.is_multiple_of(2);
            // Two of three keepers are most.
            let fewest = if world.has_keepers { 2 } else { 1 };
            let drivers_fail = world.has_keepers;
            world.devices = vec![true; count];
            world.slowness.resize(count, Duration::ZERO);
            world.skew.resize(count, Duration::ZERO);
            self.crashes = false;
            let mut may_fail = true;
            let mut alive = count;
            for step in &mut self.steps {
                // Homes are copied again until a check.
                may_fail |= matches!(step, Step::Check);
                let Step::Together(actions) = step else { continue };
                actions.retain_mut(|action| {
                    let Action::Injection(_, fault) = action else { return true };
                    let node = match *fault {
                        Injection::Partition { from, to, .. } if from == to => return false,
                        Injection::Partition { .. } => return std::mem::take(&mut may_fail),
                        Injection::Kill { node, .. } | Injection::Disk(node, _) | Injection::Rot(node) => {
                            node
                        }
                        // Only the authority changes the map.
                        Injection::Map(node) => {
                            let cut = 1 + node % (count - 1);
                            *fault = match node % 3 {
                                _ if !drivers_fail => Injection::Leave(node),
                                0 => Injection::Leave(node),
                                1 if std::mem::take(&mut may_fail) => {
                                    Injection::CutDriver { node: cut, milliseconds: HANG_MS }
                                }
                                _ => Injection::Driver,
                            };
                            return true;
                        }
                        _ => return true,
                    };
                    let node = 1 + node % (count - 1);
                    *fault = match *fault {
                        Injection::Kill { power: false, .. } if alive > fewest => {
                            alive -= usize::from(may_fail);
                            Injection::Kill { node, power: false }
                        }
                        _ => Injection::Hang { node, milliseconds: HANG_MS },
                    };
                    std::mem::take(&mut may_fail)
                });
            }
        }
        self
    }
}
