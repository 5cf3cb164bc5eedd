//! A model of the connections of the socket fabric, on top of the simulated one.
//!
//! The first message between two agents connects them, at both ends. If an agent exceeds its limit of peers, it closes the
//! connection that was idle for longest, except those to neighbours and those on which a message is expected.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::{Cluster, NodeId};
use tameike_fabric::{Fabric, FabricLayer, GetFuture, GrantId, Lane, Receiver, SendFuture};
use tameike_io::{Frame, Payload};

/// The connections of one agent.
#[derive(Default)]
struct End {
    receiver: Option<Arc<dyn Receiver>>,
    neighbours: BTreeSet<NodeId>,
    /// Connected peers, with the turn of the last message.
    peers: BTreeMap<NodeId, u64>,
    most: usize,
}

#[derive(Default)]
struct State {
    ends: Vec<End>,
    turn: u64,
    opened: u64,
}

pub(super) struct Links {
    bound: usize,
    state: Mutex<State>,
}

impl Links {
    pub fn new(cluster: &Cluster, bound: usize) -> Arc<Self> {
        let end = |node: NodeId| End {
            neighbours: cluster.neighbours(node).into_iter().collect(),
            ..End::default()
        };
        let ends = cluster.nodes().iter().map(|info| end(info.id)).collect();
        Arc::new(Self { bound, state: Mutex::new(State { ends, ..State::default() }) })
    }

    /// Records a message, and connects the agents if necessary.
    fn record(&self, from: NodeId, to: NodeId) {
        let state = &mut *self.state.lock();
        state.turn += 1;
        let turn = state.turn;
        let is_new = state.ends[from.0 as usize].peers.insert(to, turn).is_none();
        state.ends[to.0 as usize].peers.insert(from, turn);
        if is_new {
            state.opened += 1;
            self.close_idle(state, from);
            self.close_idle(state, to);
        }
    }

    fn close_idle(&self, state: &mut State, node: NodeId) {
        let end = &state.ends[node.0 as usize];
        let mut beyond = end.peers.len().saturating_sub(self.bound);
        if beyond > 0 {
            let turn = state.turn;
            let can_go = |(peer, used): (&NodeId, &u64)| {
                (!end.neighbours.contains(peer) && *used < turn).then_some((*used, *peer))
            };
            let mut idle: Vec<_> = end.peers.iter().filter_map(can_go).collect();
            idle.sort_unstable();
            for (_, peer) in idle {
                if beyond == 0 {
                    break;
                }
                if !state.expects(node, peer) && !state.expects(peer, node) {
                    state.ends[node.0 as usize].peers.remove(&peer);
                    state.ends[peer.0 as usize].peers.remove(&node);
                    beyond -= 1;
                }
            }
        }
        let end = &mut state.ends[node.0 as usize];
        end.most = end.most.max(end.peers.len());
    }

    /// Closes connections that have become idle.
    pub fn settle(&self) {
        let state = &mut *self.state.lock();
        state.turn += 1;
        (0..state.ends.len()).for_each(|node| self.close_idle(state, NodeId(node as u32)));
    }

    /// Returns for each agent its current and its maximum number of connections.
    pub fn counts(&self) -> Vec<(usize, usize)> {
        self.state.lock().ends.iter().map(|end| (end.peers.len(), end.most)).collect()
    }

    /// Returns the number of connections opened.
    pub fn opened(&self) -> u64 {
        self.state.lock().opened
    }
}

impl State {
    fn expects(&self, node: NodeId, of: NodeId) -> bool {
        self.ends[node.0 as usize].receiver.as_ref().is_some_and(|receiver| receiver.is_expecting(of))
    }
}

/// The fabric of an agent, with connections recorded.
pub(super) struct LinkedFabric {
    pub inner: Arc<dyn Fabric>,
    pub links: Arc<Links>,
}

impl LinkedFabric {
    fn record(&self, to: NodeId) {
        self.links.record(self.local(), to);
    }
}

impl FabricLayer for LinkedFabric {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        self.record(to);
        self.inner.send(to, lane, body, payload)
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        self.record(to);
        self.inner.put(to, grant, source, body)
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        self.record(from);
        self.inner.get(from, grant, frame, length)
    }

    fn attach(&self, receiver: Arc<dyn Receiver>) {
        self.links.state.lock().ends[self.local().0 as usize].receiver = Some(receiver.clone());
        self.inner.attach(receiver);
    }
}
