//! Client side of remote procedure calls: calls that wait for their reply.

use super::{Attempt, Outcome};
use crate::GrantId;
use crate::times::PeerTimes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::call::{CALLS_MAX, CallId, CallNumber, RequestHeader, Scope};
use tameike_core::wire::codec::encode;
use tameike_core::{NodeId, Result};
use tameike_io::os::runtime::Resolver;
use tameike_io::slab::Payload;

/// Age of a call at its first resend; the interval doubles each time.
const RESEND_AFTER: Duration = Duration::from_secs(5);

pub(super) struct Call {
    request: Arc<Request>,
    payload: Option<Payload>,
    scope: Scope,
    number: Option<CallNumber>,
    pub source: Option<(GrantId, u32)>,
    pub target: Option<GrantId>,
    accepts_location: bool,
    pub resolver: Resolver<Outcome>,
    /// False while the message is being sent.
    sent: bool,
    /// Since its begin, in whole ticks.
    age: Duration,
    resend_at: Duration,
}

impl Call {
    pub(super) fn new(
        Attempt { request, payload, scope, number, accepts_location }: Attempt,
        source: Option<(GrantId, u32)>,
        target: Option<GrantId>,
        resolver: Resolver<Outcome>,
    ) -> Self {
        Self {
            request,
            payload,
            scope,
            number,
            source,
            target,
            accepts_location,
            resolver,
            sent: false,
            age: Duration::ZERO,
            resend_at: RESEND_AFTER,
        }
    }
}

/// Carries one call at a time.
#[derive(Default)]
struct Slot {
    sequence: u64,
    call: Option<Call>,
}

/// Slots per peer that are kept while no call is pending.
const SLOTS_KEPT: usize = 4;

#[derive(Default)]
struct Peer {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// At least the sequence number of any earlier slot: new slots continue from here.
    last: u64,
}

impl Peer {
    /// Frees the memory of a burst of calls after its end.
    fn shrink(&mut self) {
        if self.slots.len() > SLOTS_KEPT && self.free.len() == self.slots.len() {
            self.last = self.slots.iter().map(|slot| slot.sequence).max().unwrap_or(self.last);
            (self.slots, self.free) = Default::default();
        }
    }
}

#[derive(Default)]
struct State {
    peers: BTreeMap<NodeId, Peer>,
    ticking: bool,
}

impl State {
    fn slot(&mut self, to: NodeId, id: CallId) -> Option<&mut Slot> {
        let slot = self.peers.get_mut(&to)?.slots.get_mut(id.slot as usize)?;
        (slot.sequence == id.sequence).then_some(slot)
    }
}

/// The work of one tick.
#[derive(Default)]
pub(super) struct Round {
    pub probe: Vec<NodeId>,
    pub resend: Vec<(NodeId, CallId)>,
}

pub(super) struct Calls {
    epoch: u64,
    times: PeerTimes,
    state: Mutex<State>,
}

impl Calls {
    pub(super) fn new(epoch: u64, times: PeerTimes) -> Self {
        Self { epoch, times, state: Mutex::default() }
    }

    /// Registers a call and assigns its id. Returns the call if [`CALLS_MAX`] calls are pending. The number of slots is the peak
    /// of concurrent calls since the peer last had none.
    pub(super) fn insert(&self, to: NodeId, call: Call) -> std::result::Result<CallId, Box<Call>> {
        let mut state = self.state.lock();
        let peer = state.peers.entry(to).or_default();
        let place = match peer.free.pop() {
            Some(place) => place,
            None if peer.slots.len() < CALLS_MAX as usize => {
                peer.slots.push(Slot { sequence: peer.last, call: None });
                peer.slots.len() as u32 - 1
            }
            None => return Err(Box::new(call)),
        };
        let slot = &mut peer.slots[place as usize];
        slot.sequence += 1;
        slot.call = Some(call);
        Ok(CallId { epoch: self.epoch, slot: place, sequence: slot.sequence })
    }

    /// Removes a call if it is still pending.
    pub(super) fn remove(&self, to: NodeId, id: CallId) -> Option<Call> {
        let mut state = self.state.lock();
        let call = state.slot(to, id).filter(|_| id.epoch == self.epoch)?.call.take()?;
        if let Some(peer) = state.peers.get_mut(&to) {
            peer.free.push(id.slot);
            peer.shrink();
        }
        Some(call)
    }

    /// Encodes the message of a pending call.
    pub(super) fn message(&self, to: NodeId, id: CallId) -> Option<(Result<Vec<u8>>, Option<Payload>)> {
        let (request, payload, header) = {
            let mut state = self.state.lock();
            let call = state.slot(to, id)?.call.as_mut()?;
            call.sent = false;
            let source = call.source.map(|(grant, length)| (grant.0, length));
            let target = call.target.map(|grant| grant.0);
            (
                call.request.clone(),
                call.payload.clone(),
                RequestHeader {
                    id,
                    source,
                    target,
                    places: call.accepts_location,
                    scope: call.scope,
                    number: call.number,
                },
            )
        };
        Some((encode(&(header, &*request)), payload))
    }

    /// Notes that the message is in flight (`whole`), or that its connection broke.
    pub(super) fn sent(&self, to: NodeId, id: CallId, whole: bool) {
        let mut state = self.state.lock();
        if let Some(call) = state.slot(to, id).and_then(|slot| slot.call.as_mut()) {
            call.sent = true;
            if !whole {
                call.resend_at = call.age + self.times.tick;
            }
        }
    }

    /// Pending calls to `to` whose message is not being sent now.
    pub(super) fn waiting_for(&self, to: NodeId) -> Vec<CallId> {
        self.select(to, |call| call.sent)
    }

    /// True if a call to `to` is pending.
    pub(super) fn any_to(&self, to: NodeId) -> bool {
        let state = self.state.lock();
        state.peers.get(&to).is_some_and(|peer| peer.free.len() < peer.slots.len())
    }

    pub(super) fn all_to(&self, to: NodeId) -> Vec<CallId> {
        self.select(to, |_| true)
    }

    /// Pending calls to `to`, with their scopes.
    pub(super) fn scopes_to(&self, to: NodeId) -> Vec<(CallId, Scope)> {
        let state = self.state.lock();
        let slots = state.peers.get(&to).map_or(&[][..], |peer| &peer.slots);
        let pending = slots.iter().enumerate();
        pending.filter_map(|(place, slot)| Some((self.id(place, slot), slot.call.as_ref()?.scope))).collect()
    }

    /// The incarnation of the caller.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn select(&self, to: NodeId, wanted: impl Fn(&Call) -> bool) -> Vec<CallId> {
        let state = self.state.lock();
        let slots = state.peers.get(&to).map_or(&[][..], |peer| &peer.slots);
        let hits = slots.iter().enumerate().filter(|(_, slot)| slot.call.as_ref().is_some_and(&wanted));
        hits.map(|(place, slot)| self.id(place, slot)).collect()
    }

    fn id(&self, place: usize, slot: &Slot) -> CallId {
        CallId { epoch: self.epoch, slot: place as u32, sequence: slot.sequence }
    }

    /// The interval of ticks.
    pub(super) fn tick_interval(&self) -> Duration {
        self.times.tick
    }

    /// True if the caller must start the tick task.
    pub(super) fn start_ticking(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().ticking, true)
    }

    /// Counts a tick. Returns `None`, which ends the tick task, if no call is pending. Once a reply is late, all peers called so
    /// far are probed, so that the time limits of several unreachable peers run concurrently.
    pub(super) fn tick(&self) -> Option<Round> {
        let mut state = self.state.lock();
        let mut round = Round::default();
        let (mut waiting, mut probe) = (false, false);
        for (node, peer) in &mut state.peers {
            for (place, slot) in peer.slots.iter_mut().enumerate() {
                let Some(call) = &mut slot.call else { continue };
                waiting = true;
                call.age += self.times.tick;
                probe |= call.age >= self.times.probe_after;
                if call.sent && call.age >= call.resend_at {
                    call.resend_at = 2 * call.age.max(RESEND_AFTER);
                    let id = CallId { epoch: self.epoch, slot: place as u32, sequence: slot.sequence };
                    round.resend.push((*node, id));
                }
            }
        }
        if probe {
            round.probe.extend(state.peers.keys());
        }
        state.ticking = waiting;
        waiting.then_some(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::wire::admin::AdminRequest;
    use tameike_io::os::runtime::promise;

    fn call() -> Call {
        let request = Arc::new(Request::Admin(AdminRequest::Status));
        Call::new(
            Attempt { request, payload: None, scope: Scope::Node, number: None, accepts_location: false },
            None,
            None,
            promise().0,
        )
    }

    #[test]
    fn a_burst_of_calls_leaves_no_memory_and_ids_are_unique() {
        let (calls, peer) = (Calls::new(7, PeerTimes::new(crate::peer_limit(false))), NodeId(3));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let insert = |_| calls.insert(peer, call()).unwrap_or_else(|_| panic!("too many calls"));
            let all: Vec<CallId> = (0..100).map(insert).collect();
            assert!(all.iter().all(|id| seen.insert((id.slot, id.sequence))));
            assert!(calls.any_to(peer) && !calls.any_to(NodeId(4)));
            for id in all {
                assert!(calls.remove(peer, id).is_some());
                assert!(calls.remove(peer, id).is_none(), "the call has ended");
            }
            assert!(!calls.any_to(peer));
            assert_eq!(calls.state.lock().peers[&peer].slots.capacity(), 0);
        }
    }
}
