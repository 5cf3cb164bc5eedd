//! Admission of new connections: a bound on those that are not authenticated yet. Beyond it, a new connection replaces the
//! oldest.
//!
//! Agents authenticate within a few round trips. So connections that send nothing cannot keep agents out until their time limit
//! expires.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_io::os::runtime::{Promise, Resolver, promise};

/// Bound on unauthenticated connections for each kind of socket.
pub(super) const UNAUTHENTICATED_MAX: usize = 256;

/// The unauthenticated connections of one kind of socket.
#[derive(Default)]
pub(super) struct Admission(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// By number, the oldest first. Resolving one closes its connection.
    all: BTreeMap<u64, Resolver<()>>,
}

impl Admission {
    /// Registers a connection. Returns its number, and a promise that resolves if it must close.
    pub(super) fn enter(&self) -> (u64, Promise<()>) {
        let (resolver, promise) = promise();
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.all.insert(number, resolver);
        let oldest = if state.all.len() > UNAUTHENTICATED_MAX { state.all.pop_first() } else { None };
        drop(state);
        if let Some((_, oldest)) = oldest {
            oldest.resolve(());
        }
        (number, promise)
    }

    /// Removes a connection that is authenticated or closed.
    pub(super) fn leave(&self, number: u64) {
        self.0.lock().all.remove(&number);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().all.len()
    }
}
