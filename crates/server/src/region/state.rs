//! The processes of one region, and its barriers. `W` is a waiting arrival.

use super::changes::ChangeLog;
use super::heap::{Heap, no_block};
use super::ranks::Ranks;
use std::collections::BTreeMap;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::region::{Arrival, Changes, Members, NodeChanges, Release, Writer};
use tameike_core::wire::window::Rank;
use tameike_core::{Errno, Fault, InodeId, NodeId, Result};

/// A region with attached processes.
pub(super) struct Region<W> {
    inode: InodeId,
    /// Number of processes that take part in barriers.
    processes: u32,
    /// Two nodes never store to the same page between two synchronizations.
    one_writer: bool,
    /// Number of attached processes of each member.
    attached: BTreeMap<NodeId, u32>,
    members: Members,
    /// Ranks of the processes, if the region is a window.
    ranks: Option<Ranks>,
    /// Error of barriers since a process has ended.
    broken: Option<Fault>,
    /// A process has ended without detaching.
    failed: bool,
    /// Number of the next barrier.
    barrier: u64,
    arrived: u32,
    waiting: Vec<W>,
    log: ChangeLog,
    /// Since the first allocation.
    heap: Option<Heap>,
}

/// Reason why processes of a node are no longer attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A process has detached.
    Detached,
    /// A process has ended without detaching.
    Failed,
    /// The node has failed, with all its processes.
    NodeFailed,
}

/// A region that has just become broken.
pub(super) struct Broken<W> {
    /// Arrivals that fail.
    pub(super) waiting: Vec<W>,
    /// Their error.
    pub(super) fault: Fault,
    /// The first barrier that fails.
    pub(super) barrier: u64,
    /// The other members.
    pub(super) others: Vec<NodeId>,
}

/// A completed barrier.
pub(super) struct Completed<W> {
    /// All its arrivals.
    pub(super) waiting: Vec<W>,
    /// Their reply.
    pub(super) release: Release,
    /// Whether the arrivals had changes.
    pub(super) changed: bool,
}

fn check_pages<'a>(mut pages: impl Iterator<Item = &'a RangeSet>) -> Result<()> {
    if pages.all(RangeSet::is_in_order) {
        return Ok(());
    }
    Err(Fault::new(Errno::EINVAL, "a list of changed pages is not in order"))
}

impl<W> Region<W> {
    /// A region without processes yet, for a first one with this rank. `barrier` is the number of its first barrier.
    ///
    /// # Errors
    /// `EINVAL` if no process takes part in it.
    pub(super) fn new(
        inode: InodeId,
        (processes, one_writer): (u32, bool),
        rank: Option<Rank>,
        barrier: u64,
    ) -> Result<Self> {
        if processes == 0 {
            let problem = format!("region {inode}: at least one process must take part");
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        Ok(Self {
            inode,
            processes,
            one_writer,
            attached: BTreeMap::new(),
            members: Members { version: 0, nodes: RangeSet::new() },
            ranks: rank.map(|rank| Ranks::new(processes, rank.bytes)),
            broken: None,
            failed: false,
            barrier,
            arrived: 0,
            waiting: Vec::new(),
            log: ChangeLog::default(),
            heap: None,
        })
    }

    pub(super) fn is_unused(&self) -> bool {
        self.attached.is_empty()
    }

    pub(super) fn barrier(&self) -> u64 {
        self.barrier
    }

    pub(super) fn sequence(&self) -> u64 {
        self.log.sequence()
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    fn fault(&self, errno: Errno, problem: impl std::fmt::Display) -> Fault {
        Fault::new(errno, format!("region {}: {problem}", self.inode))
    }

    /// Attaches a process of `node`.
    pub(super) fn attach(
        &mut self,
        node: NodeId,
        (processes, one_writer): (u32, bool),
        rank: Option<Rank>,
    ) -> Result<()> {
        if let Some(fault) = &self.broken {
            let problem = format!("cannot attach before all of its processes have detached: {fault}");
            return Err(self.fault(Errno::EPIPE, problem));
        }
        if processes != self.processes {
            let problem = format!("{} processes take part, not {processes}", self.processes);
            return Err(self.fault(Errno::EINVAL, problem));
        }
        if one_writer != self.one_writer {
            let problem = "some processes expect one writer per page, and others do not";
            return Err(self.fault(Errno::EINVAL, problem));
        }
        let attached: u64 = self.attached.values().copied().map(u64::from).sum();
        if attached >= u64::from(self.processes) {
            let problem = format!("all of its {processes} processes are already attached");
            return Err(self.fault(Errno::EBUSY, problem));
        }
        match (&mut self.ranks, rank) {
            (None, None) => {}
            (Some(ranks), Some(rank)) => ranks.add(node, rank)?,
            (Some(_), None) | (None, Some(_)) => {
                let problem = "some processes share its pages, and others use it as a window";
                return Err(self.fault(Errno::EINVAL, problem));
            }
        }
        *self.attached.entry(node).or_insert_with(|| {
            self.members.nodes.insert(node.0..node.0 + 1);
            self.members.version += 1;
            0
        }) += 1;
        Ok(())
    }

    /// Ends a process of `node`, or all of them if the node has failed. The region is broken from the first end on.
    pub(super) fn end(&mut self, node: NodeId, end: End) -> Result<Option<Broken<W>>> {
        self.check_member(node)?;
        let left = match end {
            End::NodeFailed => 0,
            End::Detached | End::Failed => self.attached.get(&node).map_or(0, |count| count - 1),
        };
        if left > 0 {
            self.attached.insert(node, left);
        } else {
            self.attached.remove(&node);
            self.members.nodes.remove(node.0..node.0 + 1);
            self.members.version += 1;
        }
        self.failed |= end != End::Detached;
        if self.broken.is_some() {
            return Ok(None);
        }
        let fault = match end {
            End::Detached => self.fault(Errno::EPIPE, format_args!("a process on {node} has detached")),
            End::Failed => {
                let problem = format_args!("a process on {node} has ended without detaching");
                self.fault(Errno::EOWNERDEAD, problem)
            }
            End::NodeFailed => {
                self.fault(Errno::EOWNERDEAD, format_args!("{node} has failed, with its processes"))
            }
        };
        self.broken = Some(fault.clone());
        let others = self.attached.keys().copied().filter(|&other| other != node).collect();
        let waiting = std::mem::take(&mut self.waiting);
        Ok(Some(Broken { waiting, fault, barrier: self.barrier, others }))
    }

    pub(super) fn check_member(&self, node: NodeId) -> Result<()> {
        if self.attached.contains_key(&node) {
            return Ok(());
        }
        Err(self.fault(Errno::EINVAL, format_args!("no process of {node} is attached")))
    }

    /// The node of each rank.
    pub(super) fn nodes_of_ranks(&self, node: NodeId) -> Result<Vec<NodeId>> {
        self.check_member(node)?;
        let ranks = self.ranks.as_ref().ok_or_else(|| self.fault(Errno::EINVAL, "it is no window"))?;
        ranks.nodes().ok_or_else(|| self.fault(Errno::EAGAIN, "some ranks have not attached yet"))
    }

    /// Appends a published change; returns its sequence number.
    pub(super) fn publish(&mut self, writer: Writer, pages: RangeSet) -> Result<u64> {
        self.check_member(writer.node)?;
        check_pages(std::iter::once(&pages))?;
        Ok(self.log.publish(writer, pages))
    }

    /// Whether a process has ended without detaching.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Allocates a block of the region, which has `size` bytes, for a process of `node`.
    pub(super) fn allocate(&mut self, node: NodeId, size: u64, bytes: u64, alignment: u64) -> Result<u64> {
        self.check_member(node)?;
        self.heap.get_or_insert_with(|| Heap::new(size)).allocate(bytes, alignment)
    }

    /// Frees an allocated block.
    pub(super) fn free(&mut self, node: NodeId, offset: u64) -> Result<()> {
        self.check_member(node)?;
        self.heap.as_mut().map_or_else(|| Err(no_block(offset)), |heap| heap.free(offset))
    }

    pub(super) fn changes_after(&self, sequence: u64) -> Changes {
        self.log.after(sequence)
    }

    /// Checks an arrival that `node` has sent.
    fn check_arrival(&self, node: NodeId, arrival: &Arrival) -> Result<()> {
        if let Some(fault) = &self.broken {
            return Err(fault.clone());
        }
        self.check_member(node)?;
        if arrival.barrier != self.barrier {
            let problem = format!("barrier {} is not the current one, {}", arrival.barrier, self.barrier);
            return Err(self.fault(Errno::ESTALE, problem));
        }
        let missing = self.processes - self.arrived;
        if arrival.processes == 0 || arrival.processes > missing {
            let problem = format!("{} processes arrived, and {missing} are missing", arrival.processes);
            return Err(self.fault(Errno::EINVAL, problem));
        }
        check_pages(arrival.changes.iter().map(|NodeChanges { pages, .. }| pages))
    }

    /// Adds an arrival that `node` has sent; returns the barrier if it is complete.
    pub(super) fn arrive(
        &mut self,
        node: NodeId,
        arrival: Arrival,
        waiter: W,
    ) -> Result<Option<Completed<W>>> {
        self.check_arrival(node, &arrival)?;
        self.arrived += arrival.processes;
        self.waiting.push(waiter);
        self.log.arrive(arrival.changes);
        if self.arrived < self.processes {
            return Ok(None);
        }
        self.arrived = 0;
        self.barrier += 1;
        let changed = self.log.has_arrived_changes();
        let changes = self.log.release();
        let release = Release {
            barrier: self.barrier,
            sequence: self.log.sequence(),
            changes,
            members: self.members.clone(),
        };
        Ok(Some(Completed { waiting: std::mem::take(&mut self.waiting), release, changed }))
    }
}
