//! Barriers of a region, as one node takes part.
//!
//! When all attached processes of the node have called the barrier, the node flushes and sends one arrival, together with those of its
//! children in the tree: to the coordinator, or to another member. The coordinator's list of members, which is complete from the first
//! release on, gives the tree. Before that, all nodes send to the coordinator.

use super::Parts;
use super::memory::Memory;
use super::window::NodeWindow;
use crate::replies::unexpected_reply;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::region::{
    Arrival, BARRIER_CHILDREN, Members, NodeChanges, PAGE_RANGES_MAX, RegionReply, RegionRequest, Release,
    coarsen,
};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, InodeId, NodeId, Result};
use tameike_dsm::control::Counter;
use tameike_io::os::runtime::{Resolver, promise};

/// A node in the barriers of a region.
pub(super) struct NodeBarrier {
    parts: Arc<Parts>,
    region: InodeId,
    /// The memory of the window, if the region is one.
    window: Option<Arc<NodeWindow>>,
    state: Mutex<State>,
}

struct State {
    /// Number of the first barrier of the processes.
    first: u64,
    /// Number of the next barrier.
    number: u64,
    /// Complete since the first release.
    members: Option<Members>,
    /// Memories of this node, each with the number of attached processes.
    memories: Vec<(Arc<Memory>, u32)>,
    /// Processes of this node in the barrier, before all that are attached have arrived.
    waiting: Vec<Waiting>,
    /// Processes of this node beyond that. Others may attach, and arrive later, before the first release.
    arrived: u32,
    /// Those of them that are not in flight to the parent yet.
    own: Option<Own>,
    /// Arrivals of children, at this barrier or the next one: a child may receive the first release earlier.
    children: Vec<Child>,
    /// The first barrier that fails, and its error. Earlier ones are complete.
    broken: Option<(u64, Fault)>,
}

type Waiting = Resolver<Result<()>>;
type Child = (Arrival, Resolver<Result<Release>>);

/// Processes of this node that have arrived together, with the changes of their memories.
struct Own {
    changes: Vec<NodeChanges>,
    flushed: Result<()>,
    waiting: Vec<Waiting>,
}

/// Everything that one arrival answers.
struct Round {
    arrival: Arrival,
    to: Option<NodeId>,
    own: Own,
    children: Vec<Resolver<Result<Release>>>,
    memories: Vec<Arc<Memory>>,
}

impl Own {
    fn fail(self, fault: &Fault) {
        self.waiting.into_iter().for_each(|process| process.resolve(Err(fault.clone())));
    }
}

impl State {
    /// The error of the current barrier.
    fn broken(&self) -> Option<&Fault> {
        self.broken.as_ref().filter(|(from, _)| self.number >= *from).map(|(_, fault)| fault)
    }

    /// Checks an arrival of a child at the current barrier.
    fn check_child(&self, arrival: &Arrival) -> Result<()> {
        let version = self.members.as_ref().map(|members| members.version);
        if version == Some(arrival.version) && self.number == arrival.barrier {
            return Ok(());
        }
        let why = format!("an arrival at barrier {} came at barrier {}", arrival.barrier, self.number);
        Err(Fault::new(Errno::ESTALE, why))
    }
}

/// The parent of a node in the barrier tree, `None` for the coordinator, and the number of its children.
fn place(members: &Members, node: NodeId) -> (Option<NodeId>, usize) {
    let numbers = || members.nodes.iter().flatten();
    let Some(index) = numbers().position(|number| number == node.0) else { return (None, 0) };
    let parent = (index / BARRIER_CHILDREN).checked_sub(1);
    let children: Range<usize> = (index + 1) * BARRIER_CHILDREN..(index + 2) * BARRIER_CHILDREN;
    let count = numbers().count();
    let children = children.start.min(count)..children.end.min(count);
    (parent.and_then(|parent| numbers().nth(parent)).map(NodeId), children.len())
}

impl NodeBarrier {
    pub fn new(
        parts: Arc<Parts>,
        region: InodeId,
        number: u64,
        window: Option<Arc<NodeWindow>>,
    ) -> Arc<Self> {
        let (members, memories, waiting, arrived, own, children, broken) = Default::default();
        let first = number;
        let state = State { first, number, members, memories, waiting, arrived, own, children, broken };
        Arc::new(Self { parts, region, window, state: Mutex::new(state) })
    }

    /// The memory of the window, if the region is one.
    pub fn window(&self) -> Option<&Arc<NodeWindow>> {
        self.window.as_ref()
    }

    /// A process has attached.
    pub fn joined(&self, memory: &Arc<Memory>) {
        let mut state = self.state.lock();
        match state.memories.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory)) {
            Some((_, count)) => *count += 1,
            None => state.memories.push((memory.clone(), 1)),
        }
    }

    /// A process has detached; `was_last` of its memory. Barriers fail for the others, and for nodes below this one.
    pub fn left(&self, memory: &Arc<Memory>, was_last: bool, fault: Fault) {
        {
            let mut state = self.state.lock();
            let known = state.memories.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory));
            if let Some((_, count)) = known {
                *count = count.saturating_sub(1);
            }
            if was_last {
                state.memories.retain(|(known, count)| *count > 0 || !Arc::ptr_eq(known, memory));
            }
        }
        self.fail(None, fault);
    }

    /// Returns true if no process of this node is attached.
    pub fn is_unused(&self) -> bool {
        self.state.lock().memories.iter().all(|(_, count)| *count == 0)
    }

    /// A process of this node calls the barrier.
    pub async fn wait(self: &Arc<Self>) -> Result<()> {
        let (resolver, released) = promise();
        let complete = {
            let state = &mut *self.state.lock();
            if let Some(broken) = state.broken() {
                return Err(broken.clone());
            }
            state.waiting.push(resolver);
            let attached: u32 = state.memories.iter().map(|(_, count)| count).sum();
            (state.arrived + state.waiting.len() as u32 == attached).then(|| {
                let waiting = std::mem::take(&mut state.waiting);
                state.arrived += waiting.len() as u32;
                (waiting, state.memories.iter().map(|(memory, _)| memory.clone()).collect())
            })
        };
        if let Some((waiting, memories)) = complete {
            let barrier = self.clone();
            self.parts.runtime.spawn(async move { barrier.arrive(waiting, memories).await });
        }
        released.await
    }

    /// All attached processes of this node have arrived.
    async fn arrive(self: Arc<Self>, waiting: Vec<Waiting>, memories: Vec<Arc<Memory>>) {
        let mut arrived = Own { changes: Vec::new(), flushed: Ok(()), waiting };
        for memory in memories {
            memory.control().count(Counter::Barriers, 1);
            let (pages, flushed) = memory.flush().await;
            if !pages.is_empty() {
                arrived.changes.push(NodeChanges { writer: memory.writer, pages });
            }
            arrived.flushed = arrived.flushed.and(flushed);
        }
        let broken = {
            let state = &mut *self.state.lock();
            let broken = state.broken().cloned();
            match (&broken, &mut state.own) {
                (Some(_), _) => {}
                (None, Some(own)) => {
                    own.changes.append(&mut arrived.changes);
                    own.waiting.append(&mut arrived.waiting);
                    own.flushed = own.flushed.clone().and(arrived.flushed.clone());
                }
                (None, own @ None) => {
                    let nothing = Own { changes: Vec::new(), flushed: Ok(()), waiting: Vec::new() };
                    *own = Some(std::mem::replace(&mut arrived, nothing));
                }
            }
            broken
        };
        match broken {
            Some(fault) => arrived.fail(&fault),
            None => self.forward().await,
        }
    }

    /// Another node has sent its arrival.
    pub async fn child_arrived(self: &Arc<Self>, arrival: Arrival) -> Result<Release> {
        let (resolver, released) = promise();
        {
            let mut state = self.state.lock();
            if let Some(broken) = state.broken() {
                return Err(broken.clone());
            }
            if arrival.barrier != state.number + 1 {
                state.check_child(&arrival)?;
            }
            state.children.push((arrival, resolver));
        }
        let barrier = self.clone();
        self.parts.runtime.spawn(async move { barrier.forward().await });
        released.await
    }

    /// Sends the arrival of this node and its children, if all of them have arrived.
    async fn forward(self: Arc<Self>) {
        let Some(round) = self.complete_round() else { return };
        match self.send(&round).await {
            Ok(release) => self.release(round, release).await,
            Err(fault) => {
                self.fail(None, fault.clone());
                round.own.fail(&fault);
                round.children.into_iter().for_each(|child| child.resolve(Err(fault.clone())));
            }
        }
    }

    fn complete_round(&self) -> Option<Round> {
        let state = &mut *self.state.lock();
        let members = state.members.as_ref();
        let (to, children) = members.map_or((None, 0), |members| place(members, self.parts.rpc.local()));
        let version = members.map_or(0, |members| members.version);
        let number = state.number;
        let is_current = |(arrival, _): &Child| arrival.barrier == number;
        if state.children.iter().filter(|child| is_current(child)).count() < children {
            return None;
        }
        let mut own = state.own.take()?;
        let mut changes = std::mem::take(&mut own.changes);
        let mut processes = own.waiting.len() as u32;
        let mut resolvers = Vec::with_capacity(children);
        for (arrival, resolver) in state.children.extract_if(.., |child| is_current(child)) {
            processes += arrival.processes;
            changes.extend(arrival.changes);
            resolvers.push(resolver);
        }
        coarsen(&mut changes, PAGE_RANGES_MAX);
        let arrival = Arrival { region: self.region, barrier: number, processes, changes, version };
        let memories = state.memories.iter().map(|(memory, _)| memory.clone()).collect();
        Some(Round { arrival, to, own, children: resolvers, memories })
    }

    async fn send(&self, round: &Round) -> Result<Release> {
        let arrival = round.arrival.clone();
        let Some(parent) = round.to else {
            return match self.parts.ask(self.region, RegionRequest::Arrive(arrival)).await? {
                RegionReply::Released(release) => Ok(release),
                other => Err(unexpected_reply(&other)),
            };
        };
        let request = Request::Client(ClientRequest::Arrive(arrival));
        match self.parts.call(parent, request, None).await?.reply {
            Reply::Client(ClientReply::Released(release)) => Ok(release),
            Reply::Client(ClientReply::Failed(fault)) => Err(fault),
            Reply::Client(ClientReply::Redirected) => {
                let why = format!("the processes of {parent} have detached from the region");
                Err(Fault::new(Errno::EPIPE, why))
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn release(self: &Arc<Self>, round: Round, release: Release) {
        let refused = self.advance(&release);
        refused.into_iter().for_each(|(child, fault)| child.resolve(Err(fault)));
        round.children.into_iter().for_each(|child| child.resolve(Ok(release.clone())));
        let mut result = round.own.flushed;
        for memory in round.memories {
            result = result.and(memory.apply(&release.changes, release.sequence).await);
        }
        round.own.waiting.into_iter().for_each(|process| process.resolve(result.clone()));
    }

    /// Goes on to the next barrier. Returns the children with early arrivals that are refused.
    fn advance(&self, release: &Release) -> Vec<(Resolver<Result<Release>>, Fault)> {
        let state = &mut *self.state.lock();
        // The processes may have arrived one after the other, with one release for each.
        if release.barrier <= state.number {
            return Vec::new();
        }
        (state.number, state.arrived) = (release.barrier, 0);
        // All nodes get them with the release. No process of this node has gone on yet.
        state.memories.iter().for_each(|(memory, _)| memory.added.lock().arriving.clear());
        state.members = Some(release.members.clone());
        let early = std::mem::take(&mut state.children);
        let mut refused = Vec::new();
        for (arrival, child) in early {
            match state.broken().cloned().map_or_else(|| state.check_child(&arrival), Err) {
                Ok(()) => state.children.push((arrival, child)),
                Err(fault) => refused.push((child, fault)),
            }
        }
        refused
    }

    /// Barriers from number `from` on fail, or from the current one.
    pub fn fail(&self, from: Option<u64>, fault: Fault) {
        let failing = {
            let state = &mut *self.state.lock();
            let from = from.unwrap_or(state.number);
            // A late message about earlier processes of the region.
            if from < state.first {
                return;
            }
            if state.broken.as_ref().is_none_or(|(known, _)| from < *known) {
                state.broken = Some((from, fault.clone()));
            }
            (state.number >= from).then(|| {
                (std::mem::take(&mut state.waiting), state.own.take(), std::mem::take(&mut state.children))
            })
        };
        if let Some(window) = &self.window {
            window.failed(&fault);
        }
        let Some((waiting, own, children)) = failing else { return };
        waiting.into_iter().for_each(|process| process.resolve(Err(fault.clone())));
        if let Some(own) = own {
            own.fail(&fault);
        }
        children.into_iter().for_each(|(_, child)| child.resolve(Err(fault.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::ranges::RangeSet;

    #[test]
    fn every_member_but_the_first_has_one_parent() {
        for count in [1_u32, 2, 8, 9, 10, 100, 1000] {
            // Node numbers with gaps.
            let nodes: RangeSet = (0..count).map(|index| index * 3..index * 3 + 1).collect();
            let members = Members { version: 1, nodes };
            let mut children = vec![0; count as usize];
            let mut roots = 0;
            for index in 0..count {
                let (parent, _) = place(&members, NodeId(index * 3));
                match parent {
                    Some(parent) => children[(parent.0 / 3) as usize] += 1,
                    None => roots += 1,
                }
            }
            assert!(roots <= BARRIER_CHILDREN as u32);
            for index in 0..count {
                assert_eq!(
                    place(&members, NodeId(index * 3)).1,
                    children[index as usize],
                    "{index} of {count}"
                );
            }
        }
        let members = Members { version: 1, nodes: RangeSet::new() };
        assert_eq!(place(&members, NodeId(0)), (None, 0), "no member");
    }
}
