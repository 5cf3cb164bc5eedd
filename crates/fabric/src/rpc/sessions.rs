//! Server side of at-most-once execution: the requests that were executed already.
//!
//! The server keeps only the last call of each slot of a caller, so the caller's peak of concurrent calls bounds the memory. A
//! caller takes about 60 bytes, and each slot 48 bytes plus the last reply, if the request changed something. A restarted caller
//! has a new epoch, and thus a new session.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_core::NodeId;
use tameike_core::wire::call::{CALLS_MAX, CallId};

/// Sessions kept per node: one of its current incarnation, and one of the previous, whose requests may still be in flight.
const SESSIONS_MAX: usize = 2;

/// How to handle a request that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Execute it.
    Execute,
    /// Ignore it: it is in execution, or its caller has given it up.
    Ignore,
    /// Send this reply again.
    Repeat(Vec<u8>),
    /// Refuse it again: its caller has another home map, or had one when the request arrived first.
    Refuse,
}

#[derive(Default)]
enum State {
    /// May be executed: it changes nothing, or was not executed.
    #[default]
    Repeatable,
    Running,
    Answered(Box<[u8]>),
    /// Must not be executed: its caller sends it under a new number, perhaps to another node.
    Refused,
}

#[derive(Default)]
struct Slot {
    sequence: u64,
    state: State,
}

struct Session {
    epoch: u64,
    slots: Vec<Slot>,
}

#[derive(Default)]
pub(super) struct Sessions(Mutex<BTreeMap<NodeId, Vec<Session>>>);

impl Sessions {
    pub(super) fn begin(&self, from: NodeId, id: CallId) -> Begin {
        if id.slot >= CALLS_MAX {
            log::error!("{from} has more than {CALLS_MAX} calls at the same time");
            return Begin::Ignore;
        }
        let mut nodes = self.0.lock();
        let sessions = nodes.entry(from).or_default();
        let place = sessions.iter().position(|session| session.epoch == id.epoch).unwrap_or_else(|| {
            sessions.insert(0, Session { epoch: id.epoch, slots: Vec::new() });
            sessions.truncate(SESSIONS_MAX);
            0
        });
        let slots = &mut sessions[place].slots;
        if slots.len() <= id.slot as usize {
            slots.resize_with(id.slot as usize + 1, Slot::default);
        }
        let slot = &mut slots[id.slot as usize];
        if id.sequence < slot.sequence {
            return Begin::Ignore;
        }
        if id.sequence == slot.sequence {
            match &slot.state {
                State::Repeatable => {}
                State::Running => return Begin::Ignore,
                State::Answered(reply) => return Begin::Repeat(reply.to_vec()),
                State::Refused => return Begin::Refuse,
            }
        }
        *slot = Slot { sequence: id.sequence, state: State::Running };
        Begin::Execute
    }

    /// True if a request of a node is in execution.
    pub(super) fn is_serving(&self, from: NodeId) -> bool {
        let nodes = self.0.lock();
        let sessions = nodes.get(&from).into_iter().flatten();
        sessions.flat_map(|session| &session.slots).any(|slot| matches!(slot.state, State::Running))
    }

    /// Records the end of a request, with the reply to repeat. Without a reply the request may be executed again.
    pub(super) fn finish(&self, from: NodeId, id: CallId, reply: Option<Vec<u8>>) {
        let state = reply.map_or(State::Repeatable, |reply| State::Answered(reply.into()));
        self.set(from, id, state);
    }

    /// Records the refusal of a request, which is not executed if it arrives again.
    pub(super) fn refuse(&self, from: NodeId, id: CallId) {
        self.set(from, id, State::Refused);
    }

    fn set(&self, from: NodeId, id: CallId, state: State) {
        let mut nodes = self.0.lock();
        let session = nodes.get_mut(&from).and_then(|all| all.iter_mut().find(|one| one.epoch == id.epoch));
        let slot = session.and_then(|session| session.slots.get_mut(id.slot as usize));
        if let Some(slot) = slot.filter(|slot| slot.sequence == id.sequence) {
            slot.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: NodeId = NodeId(3);

    fn id(slot: u32, sequence: u64) -> CallId {
        CallId { epoch: 9, slot, sequence }
    }

    #[test]
    fn a_request_is_executed_once() {
        let sessions = Sessions::default();
        assert_eq!(sessions.begin(CALLER, id(5, 1)), Begin::Execute);
        assert_eq!(sessions.begin(CALLER, id(5, 1)), Begin::Ignore);
        assert!(sessions.is_serving(CALLER) && !sessions.is_serving(NodeId(4)));
        sessions.finish(CALLER, id(5, 1), Some(vec![1]));
        assert!(!sessions.is_serving(CALLER));
        assert_eq!(sessions.begin(CALLER, id(5, 1)), Begin::Repeat(vec![1]));
        assert_eq!(sessions.begin(CALLER, id(5, 2)), Begin::Execute);
        assert_eq!(sessions.begin(CALLER, id(5, 1)), Begin::Ignore);
        // The end of an abandoned call must not affect the next call in its slot.
        sessions.finish(CALLER, id(5, 1), Some(vec![1]));
        assert_eq!(sessions.begin(CALLER, id(5, 2)), Begin::Ignore);
    }

    #[test]
    fn a_refused_request_is_not_executed_later() {
        let sessions = Sessions::default();
        assert_eq!(sessions.begin(CALLER, id(0, 1)), Begin::Execute);
        sessions.refuse(CALLER, id(0, 1));
        assert!(!sessions.is_serving(CALLER));
        assert_eq!(sessions.begin(CALLER, id(0, 1)), Begin::Refuse);
        assert_eq!(sessions.begin(CALLER, id(0, 2)), Begin::Execute);
        assert_eq!(sessions.begin(CALLER, id(0, 1)), Begin::Ignore);
    }

    #[test]
    fn read_only_requests_may_be_executed_again() {
        let sessions = Sessions::default();
        assert_eq!(sessions.begin(CALLER, id(0, 1)), Begin::Execute);
        sessions.finish(CALLER, id(0, 1), None);
        assert_eq!(sessions.begin(CALLER, id(0, 1)), Begin::Execute);
    }

    #[test]
    fn a_restarted_caller_has_a_new_session_and_the_oldest_is_dropped() {
        let sessions = Sessions::default();
        for epoch in 1..=3 {
            assert_eq!(sessions.begin(CALLER, CallId { epoch, slot: 0, sequence: 1 }), Begin::Execute);
        }
        assert_eq!(sessions.begin(CALLER, CallId { epoch: 2, slot: 0, sequence: 1 }), Begin::Ignore);
        assert_eq!(sessions.0.lock()[&CALLER].len(), SESSIONS_MAX);
        assert_eq!(sessions.begin(CALLER, id(CALLS_MAX, 1)), Begin::Ignore);
    }
}
