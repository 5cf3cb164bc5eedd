//! Barriers of a region, as one node takes part.
//!
//! When all attached processes of the node have called the barrier, the node flushes and sends one arrival, together with those of its
//! children in the tree: to the coordinator, or to another member. The coordinator's list of members, which is complete from the first
//! release on, gives the tree. Before that, all nodes send to the coordinator.

use super::Parts;
use super::memory::Memory;
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
    state: Mutex<State>,
}

struct State {
    /// Number of the next barrier.
    number: u64,
    /// Complete since the first release.
    members: Option<Members>,
    /// Memories of this node, each with the number of attached processes.
    memories: Vec<(Arc<Memory>, u32)>,
    /// Processes of this node in the barrier, until all that have attached are.
    waiting: Vec<Waiting>,
    /// Number of processes whose arrival is in flight. Others may attach and arrive meanwhile.
    in_flight: u32,
    /// Processes of this node that have arrived, with their flushed changes.
    own: Vec<Own>,
    /// Arrivals of children.
    children: Vec<(Arrival, Resolver<Result<Release>>)>,
    broken: Option<Fault>,
}

/// Ends the wait of a process.
type Waiting = Resolver<Result<()>>;

struct Own {
    waiting: Vec<Waiting>,
    changes: Vec<NodeChanges>,
    flushed: Result<()>,
}

/// Everything that one arrival answers.
struct Round {
    arrival: Arrival,
    to: Option<NodeId>,
    waiting: Vec<Waiting>,
    flushed: Result<()>,
    children: Vec<Resolver<Result<Release>>>,
    memories: Vec<Arc<Memory>>,
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
    pub fn new(parts: Arc<Parts>, region: InodeId, number: u64) -> Arc<Self> {
        let (members, memories, waiting, in_flight, own, children, broken) = Default::default();
        let state = State { number, members, memories, waiting, in_flight, own, children, broken };
        Arc::new(Self { parts, region, state: Mutex::new(state) })
    }

    /// A process has attached.
    pub fn joined(&self, memory: &Arc<Memory>) {
        let mut state = self.state.lock();
        match state.memories.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory)) {
            Some((_, count)) => *count += 1,
            None => state.memories.push((memory.clone(), 1)),
        }
    }

    /// A process has detached; `was_last` of its memory.
    pub fn left(&self, memory: &Arc<Memory>, was_last: bool) {
        let mut state = self.state.lock();
        if let Some((_, count)) = state.memories.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory)) {
            *count = count.saturating_sub(1);
        }
        if was_last {
            state.memories.retain(|(known, count)| *count > 0 || !Arc::ptr_eq(known, memory));
        }
    }

    /// Returns true if no process of this node is attached.
    pub fn is_unused(&self) -> bool {
        self.state.lock().memories.iter().all(|(_, count)| *count == 0)
    }

    /// A process of this node calls the barrier.
    pub async fn wait(self: &Arc<Self>) -> Result<()> {
        let (resolver, released) = promise();
        let arriving = {
            let mut state = self.state.lock();
            if let Some(broken) = &state.broken {
                return Err(broken.clone());
            }
            state.waiting.push(resolver);
            let attached: u32 = state.memories.iter().map(|(_, count)| count).sum();
            let waiting = state.waiting.len() as u32;
            (waiting + state.in_flight == attached).then(|| {
                state.in_flight += waiting;
                (state.memories.clone(), std::mem::take(&mut state.waiting))
            })
        };
        if let Some((memories, waiting)) = arriving {
            let barrier = self.clone();
            self.parts.runtime.spawn(async move { barrier.arrive(memories, waiting).await });
        }
        released.await
    }

    /// All processes of this node have arrived, `waiting` as the last ones.
    async fn arrive(self: Arc<Self>, memories: Vec<(Arc<Memory>, u32)>, waiting: Vec<Waiting>) {
        let mut own = Own { waiting, changes: Vec::new(), flushed: Ok(()) };
        for (memory, _) in memories {
            memory.control().count(Counter::Barriers, 1);
            let (pages, flushed) = memory.flush().await;
            if !pages.is_empty() {
                own.changes.push(NodeChanges { writer: memory.writer, pages });
            }
            own.flushed = own.flushed.and(flushed);
        }
        let broken = {
            let mut state = self.state.lock();
            match &state.broken {
                Some(broken) => Some((broken.clone(), own)),
                None => {
                    state.own.push(own);
                    None
                }
            }
        };
        match broken {
            Some((broken, own)) => {
                own.waiting.into_iter().for_each(|process| process.resolve(Err(broken.clone())))
            }
            None => self.forward().await,
        }
    }

    /// Another node has sent its arrival.
    pub async fn child_arrived(self: &Arc<Self>, arrival: Arrival) -> Result<Release> {
        let (resolver, released) = promise();
        {
            let mut state = self.state.lock();
            if let Some(broken) = &state.broken {
                return Err(broken.clone());
            }
            let version = state.members.as_ref().map(|members| members.version);
            if version != Some(arrival.version) || state.number != arrival.barrier {
                let why =
                    format!("an arrival at barrier {} came at barrier {}", arrival.barrier, state.number);
                return Err(Fault::new(Errno::ESTALE, why));
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
                for change in &round.arrival.changes {
                    let own = round.memories.iter().find(|memory| memory.writer == change.writer);
                    if let Some(memory) = own {
                        // For the next flush or update of the processes that are left.
                        memory.syncing.lock().await.insert_all(&change.pages);
                    }
                }
                self.fail(fault.clone());
                round.waiting.into_iter().for_each(|process| process.resolve(Err(fault.clone())));
                round.children.into_iter().for_each(|child| child.resolve(Err(fault.clone())));
            }
        }
    }

    fn complete_round(&self) -> Option<Round> {
        let mut state = self.state.lock();
        let members = state.members.as_ref();
        let (to, children) = members.map_or((None, 0), |members| place(members, self.parts.rpc.local()));
        let version = members.map_or(0, |members| members.version);
        if state.children.len() < children {
            return None;
        }
        if state.own.is_empty() {
            return None;
        }
        let (mut waiting, mut changes, mut flushed) = (Vec::new(), Vec::new(), Ok(()));
        for own in std::mem::take(&mut state.own) {
            waiting.extend(own.waiting);
            changes.extend(own.changes);
            flushed = flushed.and(own.flushed);
        }
        let children = std::mem::take(&mut state.children);
        let mut processes = waiting.len() as u32;
        let mut resolvers = Vec::with_capacity(children.len());
        for (arrival, resolver) in children {
            processes += arrival.processes;
            changes.extend(arrival.changes);
            resolvers.push(resolver);
        }
        coarsen(&mut changes, PAGE_RANGES_MAX);
        let arrival = Arrival { region: self.region, barrier: state.number, processes, changes, version };
        let memories = state.memories.iter().map(|(memory, _)| memory.clone()).collect();
        Some(Round { arrival, to, waiting, flushed, children: resolvers, memories })
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
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn release(&self, round: Round, release: Release) {
        {
            let mut state = self.state.lock();
            state.number = release.barrier;
            state.members = Some(release.members.clone());
            state.in_flight = state.in_flight.saturating_sub(round.waiting.len() as u32);
        }
        round.children.into_iter().for_each(|child| child.resolve(Ok(release.clone())));
        let mut result = round.flushed;
        for memory in round.memories {
            result = result.and(memory.apply(&release.changes, release.sequence).await);
        }
        round.waiting.into_iter().for_each(|process| process.resolve(result.clone()));
    }

    /// Barriers fail from now on.
    pub fn fail(&self, fault: Fault) {
        let (waiting, children) = {
            let mut state = self.state.lock();
            state.broken.get_or_insert_with(|| fault.clone());
            let arrived = std::mem::take(&mut state.own).into_iter().flat_map(|own| own.waiting);
            let mut waiting: Vec<_> = arrived.collect();
            waiting.append(&mut state.waiting);
            (waiting, std::mem::take(&mut state.children))
        };
        waiting.into_iter().for_each(|process| process.resolve(Err(fault.clone())));
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
