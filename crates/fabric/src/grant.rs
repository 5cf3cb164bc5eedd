//! Grants given to peers, and pending gets.
//!
//! A frame has one owner: the table, or the reader that is filling it. If the agent revokes a grant during a put, the reader owns
//! the frame until the last byte has arrived, finds no grant, and returns the frame to its pool. So a put never writes to a frame
//! that is already reused.

use crate::GrantId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Fault, NodeId, Result};
use tameike_io::os::runtime::Resolver;
use tameike_io::slab::{Frame, Payload};

enum Grant {
    Read(Payload),
    Write(Frame),
    /// A reader holds the frame.
    Filling,
}

/// A get that waits for its bytes.
pub(crate) struct PendingGet {
    pub from: NodeId,
    pub frame: Frame,
    pub length: u32,
    pub resolver: Resolver<(Frame, Result<()>)>,
}

/// All grants and gets of this agent.
pub(crate) struct Grants {
    /// Starts at a random number, so that a grant of an earlier incarnation of this agent is never valid in this one.
    next: AtomicU64,
    grants: Mutex<BTreeMap<u64, Grant>>,
    gets: Mutex<BTreeMap<u64, PendingGet>>,
}

impl Grants {
    pub(crate) fn new(first: u64) -> Self {
        Self { next: AtomicU64::new(first), grants: Mutex::default(), gets: Mutex::default() }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn add(&self, grant: Grant) -> GrantId {
        let number = self.number();
        self.grants.lock().insert(number, grant);
        GrantId(number)
    }

    pub(crate) fn add_write(&self, frame: Frame) -> GrantId {
        self.add(Grant::Write(frame))
    }

    pub(crate) fn add_read(&self, payload: Payload) -> GrantId {
        self.add(Grant::Read(payload))
    }

    pub(crate) fn revoke(&self, grant: GrantId) -> Option<Frame> {
        match self.grants.lock().remove(&grant.0) {
            Some(Grant::Write(frame)) => Some(frame),
            Some(Grant::Read(_) | Grant::Filling) | None => None,
        }
    }

    /// The first `length` bytes of a payload granted for reading.
    pub(crate) fn readable(&self, grant: u64, length: u32) -> Option<Payload> {
        match self.grants.lock().get(&grant) {
            Some(Grant::Read(payload)) if payload.len() >= length as usize => Some(payload.slice(0..length)),
            Some(Grant::Read(_) | Grant::Write(_) | Grant::Filling) | None => None,
        }
    }

    /// Takes a frame granted for writing out of the table, to fill it.
    pub(crate) fn begin_fill(&self, grant: u64) -> Option<Frame> {
        let mut grants = self.grants.lock();
        let slot = grants.get_mut(&grant).filter(|slot| matches!(slot, Grant::Write(_)))?;
        match std::mem::replace(slot, Grant::Filling) {
            Grant::Write(frame) => Some(frame),
            Grant::Read(_) | Grant::Filling => None,
        }
    }

    /// Returns a filled frame. False if the grant was revoked meanwhile: then the frame returns to its pool.
    pub(crate) fn end_fill(&self, grant: u64, frame: Frame) -> bool {
        match self.grants.lock().get_mut(&grant) {
            Some(slot) => {
                *slot = Grant::Write(frame);
                true
            }
            None => false,
        }
    }

    pub(crate) fn begin_get(&self, get: PendingGet) -> u64 {
        let number = self.number();
        self.gets.lock().insert(number, get);
        number
    }

    /// Removes a get of `from`, to complete it.
    pub(crate) fn take_get(&self, number: u64, from: NodeId) -> Option<PendingGet> {
        let mut gets = self.gets.lock();
        if gets.get(&number)?.from == from { gets.remove(&number) } else { None }
    }

    /// True if a get from `from` is pending.
    pub(crate) fn any_get(&self, from: NodeId) -> bool {
        self.gets.lock().values().any(|get| get.from == from)
    }

    /// Fails the gets from a peer that lost a connection; `None` means all peers.
    pub(crate) fn fail_gets(&self, from: Option<NodeId>, fault: &Fault) {
        let failed: BTreeMap<_, _> = {
            let mut gets = self.gets.lock();
            let is_from = |get: &PendingGet| from.is_none_or(|from| from == get.from);
            let (failed, kept) = std::mem::take(&mut *gets).into_iter().partition(|(_, get)| is_from(get));
            *gets = kept;
            failed
        };
        failed.into_values().for_each(|get| get.resolver.resolve((get.frame, Err(fault.clone()))));
    }
}
