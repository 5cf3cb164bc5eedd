//! Test double of the homes of a region's units and of its coordinator.

use crate::region::Regions;
use futures_util::FutureExt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::patch::patches;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::lock::{LockReply, LockRequest};
use tameike_core::wire::region::{
    Arrival, Changes, Members, NodeChanges, RegionReply, RegionRequest, Release, Writer, united,
};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_dsm::control::PAGE_SIZE;
use tameike_fabric::{Answer, CallFuture, Destination, Rpc};
use tameike_io::os::runtime::{Promise, Resolver, promise};
use tameike_io::{Frame, Payload, Pool, Runtime};

#[derive(Default)]
struct State {
    pages: BTreeMap<u32, [u8; PAGE_SIZE]>,
    attached: BTreeMap<NodeId, u32>,
    processes: u32,
    version: u64,
    sequence: u64,
    barrier: u64,
    log: Vec<(u64, NodeChanges)>,
    /// Sequence number at which the log begins.
    since: u64,
    arrived: Vec<(Arrival, Resolver<Result<Release>>)>,
    broken: bool,
    failing_patches: bool,
    failing_reads: bool,
    /// The list of changes names all pages every other time.
    is_coarse: bool,
    lists: u64,
    locks: (u32, u32),
    /// Nodes of the ranks of a window.
    ranks: BTreeMap<u32, NodeId>,
}

pub(super) struct Double {
    state: Mutex<State>,
    nodes: Mutex<Vec<Weak<Regions>>>,
}

pub(super) struct DoubleRpc {
    node: NodeId,
    runtime: Runtime,
    pool: Pool,
    double: Arc<Double>,
}

impl Double {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), nodes: Mutex::default() })
    }

    pub fn set_nodes(&self, nodes: &[Arc<Regions>]) {
        *self.nodes.lock() = nodes.iter().map(Arc::downgrade).collect();
    }

    /// From now on, every other list of changes names all pages.
    pub fn make_coarse(&self) {
        self.state.lock().is_coarse = true;
    }

    /// Processes may attach to a new region, with this number of its first barrier.
    pub fn begin_region(&self, barrier: u64) {
        let mut state = self.state.lock();
        (state.broken, state.barrier) = (false, barrier);
        state.attached.clear();
    }

    /// Numbers of locks and of releases.
    pub fn locks(&self) -> (u32, u32) {
        self.state.lock().locks
    }

    pub fn fail_patches(&self, fail: bool) {
        self.state.lock().failing_patches = fail;
    }

    pub fn fail_reads(&self, fail: bool) {
        self.state.lock().failing_reads = fail;
    }

    pub fn byte(&self, at: usize) -> u8 {
        let state = self.state.lock();
        state.pages.get(&((at / PAGE_SIZE) as u32)).map_or(0, |page| page[at % PAGE_SIZE])
    }

    fn node(&self, node: NodeId) -> Arc<Regions> {
        self.nodes.lock()[node.0 as usize].upgrade().expect("the bed keeps the nodes")
    }

    fn serve_unit(&self, request: &UnitRequest, payload: Option<&Payload>) -> Result<(UnitReply, Vec<u8>)> {
        let mut state = self.state.lock();
        match request {
            UnitRequest::Patch { .. } if state.failing_patches => Err(Errno::ENOSPC.into()),
            UnitRequest::Read { .. } if state.failing_reads => Err(Errno::EHOSTDOWN.into()),
            UnitRequest::Patch { .. } => {
                for patch in patches(payload.expect("a patch")) {
                    let patch = patch?;
                    patch.apply(state.pages.entry(patch.page()).or_insert([0; PAGE_SIZE]));
                }
                Ok((UnitReply::Done, Vec::new()))
            }
            UnitRequest::Read { unit, offset, length, .. } => {
                let first = (unit.index * UNIT_SIZE as u64 + u64::from(*offset)) as usize / PAGE_SIZE;
                let pages = first..first + *length as usize / PAGE_SIZE;
                let page = |number| *state.pages.entry(number as u32).or_insert([0; PAGE_SIZE]);
                Ok((UnitReply::Read, pages.flat_map(page).collect()))
            }
            UnitRequest::FetchAdd { unit, offset, addend } => {
                let at = unit.index as usize * UNIT_SIZE + *offset as usize;
                let page = state.pages.entry((at / PAGE_SIZE) as u32).or_insert([0; PAGE_SIZE]);
                let number = &mut page.as_chunks_mut::<8>().0[at % PAGE_SIZE / 8];
                let before = u64::from_le_bytes(*number);
                *number = before.wrapping_add(*addend).to_le_bytes();
                Ok((UnitReply::Previous(before), Vec::new()))
            }
            other => panic!("{other:?}"),
        }
    }

    fn changes(state: &mut State, after: u64) -> Changes {
        state.lists += 1;
        if after < state.since || state.is_coarse && state.lists.is_multiple_of(2) {
            return Changes::Any;
        }
        let later = state.log.iter().filter(|(sequence, _)| *sequence > after);
        Changes::Pages(later.map(|(_, change)| change.clone()).collect())
    }

    fn serve_lock(&self, request: &LockRequest) -> LockReply {
        let mut state = self.state.lock();
        match request {
            LockRequest::Lock { .. } => state.locks.0 += 1,
            LockRequest::Unlock { .. } => state.locks.1 += 1,
            other => panic!("{other:?}"),
        }
        LockReply::Done
    }

    async fn serve_region(&self, from: NodeId, request: RegionRequest) -> Result<RegionReply> {
        if let RegionRequest::Arrive(arrival) = request {
            return self.arrived(arrival)?.await.map(RegionReply::Released);
        }
        let mut state = self.state.lock();
        match request {
            RegionRequest::Attach { processes, rank, .. } => {
                state.ranks.extend(rank.map(|rank| (rank.number, from)));
                *state.attached.entry(from).or_default() += 1;
                state.processes = processes;
                state.version += 1;
                let (barrier, sequence) = (state.barrier, state.sequence);
                Ok(RegionReply::Attached { barrier, sequence, members: Self::members(&state) })
            }
            RegionRequest::Detach { region, failed } => {
                *state.attached.get_mut(&from).expect("attached") -= 1;
                state.broken = true;
                let broken = || Fault::new(Errno::EPIPE, "a process has detached");
                let (arrived, barrier) = (std::mem::take(&mut state.arrived), state.barrier);
                arrived.into_iter().for_each(|(_, waiting)| waiting.resolve(Err(broken())));
                drop(state);
                // As the coordinator, which leaves the node of the process to itself.
                let nodes = self.nodes.lock().clone();
                let others = nodes.iter().zip(0..).filter(|(_, node)| NodeId(*node) != from);
                let others = others.filter_map(|(node, _)| node.upgrade());
                others.for_each(|node| node.broken(region, barrier, failed));
                Ok(RegionReply::Done)
            }
            RegionRequest::Publish { memory, pages, .. } => {
                state.sequence += 1;
                let change = NodeChanges { writer: Writer { node: from, memory }, pages };
                let sequence = state.sequence;
                state.log.push((sequence, change));
                Ok(RegionReply::Published(sequence))
            }
            RegionRequest::Changes { after, .. } => {
                let (sequence, changes) = (state.sequence, Self::changes(&mut state, after));
                Ok(RegionReply::Changes { sequence, changes, failed: state.broken })
            }
            RegionRequest::Arrive(_) => unreachable!("served above"),
            RegionRequest::Allocate { .. } | RegionRequest::Free { .. } => Err(Errno::EOPNOTSUPP.into()),
            RegionRequest::Ranks { .. } => Ok(RegionReply::Ranks(state.ranks.values().copied().collect())),
        }
    }

    fn arrived(&self, arrival: Arrival) -> Result<Promise<Result<Release>>> {
        let mut state = self.state.lock();
        if state.broken {
            return Err(Errno::EPIPE.into());
        }
        assert_eq!(arrival.barrier, state.barrier, "of the current barrier");
        let (resolver, released) = promise();
        state.arrived.push((arrival, resolver));
        let count: u32 = state.arrived.iter().map(|(arrival, _)| arrival.processes).sum();
        if count == state.processes {
            Self::release(&mut state);
        }
        Ok(released)
    }

    fn members(state: &State) -> Members {
        let nodes: RangeSet = state.attached.keys().map(|node| node.0..node.0 + 1).collect();
        Members { version: state.version, nodes }
    }

    fn release(state: &mut State) {
        let arrived = std::mem::take(&mut state.arrived);
        let (mut waiting, mut changes) = (Vec::new(), Vec::new());
        changes.extend(std::mem::take(&mut state.log).into_iter().map(|(_, change)| change));
        for (arrival, resolver) in arrived {
            changes.extend(arrival.changes);
            waiting.push(resolver);
        }
        state.sequence += 1;
        state.since = state.sequence;
        state.barrier += 1;
        let release = Release {
            barrier: state.barrier,
            sequence: state.sequence,
            changes: Changes::Pages(united(changes)),
            members: Self::members(state),
        };
        waiting.into_iter().for_each(|waiting| waiting.resolve(Ok(release.clone())));
    }
}

impl DoubleRpc {
    pub fn new(node: u32, runtime: Runtime, pool: Pool, double: Arc<Double>) -> Self {
        Self { node: NodeId(node), runtime, pool, double }
    }
}

fn node_of(to: Destination) -> NodeId {
    match to {
        Destination::Node(node) => node,
        other => panic!("{other:?}"),
    }
}

impl Rpc for DoubleRpc {
    fn local(&self) -> NodeId {
        self.node
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        _: Option<Frame>,
    ) -> CallFuture {
        let (node, runtime, pool) = (self.node, self.runtime.clone(), self.pool.clone());
        let double = self.double.clone();
        async move {
            // Some messages are overtaken by many others.
            let delay = || {
                let slow = if runtime.random_u64() % 8 == 0 { 20 } else { 1 };
                Duration::from_micros(runtime.random_u64() % 100 * slow)
            };
            runtime.sleep(delay()).await;
            let (reply, bytes) = match request {
                Request::Unit(request) => {
                    let (reply, bytes) = double.serve_unit(&request, payload.as_ref())?;
                    (Reply::Unit(reply), bytes)
                }
                Request::Region(request) => {
                    (Reply::Region(double.serve_region(node, request).await?), Vec::new())
                }
                Request::Lock(request) => (Reply::Lock(double.serve_lock(&request)), Vec::new()),
                Request::Client(ClientRequest::Arrive(arrival)) => {
                    let reply: ClientReply = double.node(node_of(to)).arrive(arrival).await;
                    (Reply::Client(reply), Vec::new())
                }
                Request::Client(ClientRequest::Window(request)) => {
                    let (reply, bytes) = double.node(node_of(to)).access(request, payload).await;
                    (Reply::Client(reply), bytes.map_or_else(Vec::new, |bytes| bytes.to_vec()))
                }
                other => panic!("{other:?}"),
            };
            runtime.sleep(delay()).await;
            let payload = if bytes.is_empty() {
                None
            } else {
                let mut frame = pool.take().await;
                frame[..bytes.len()].copy_from_slice(&bytes);
                Some(Payload::new(Arc::new(frame), 0..bytes.len() as u32))
            };
            Ok(Answer { reply, payload })
        }
        .boxed()
    }
}
