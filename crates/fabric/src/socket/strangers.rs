//! Connections that have not proven themselves yet: so many at a time, and a new one in place of the oldest.
//!
//! An agent proves itself in a few round trips. Who only connects, and sends nothing, would otherwise keep all others out until its time has
//! passed.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_io::os::runtime::{Promise, Resolver, promise};

/// Strangers at one time, by each kind of socket.
pub(super) const STRANGERS_MAX: usize = 256;

/// Those of one kind of socket.
#[derive(Default)]
pub(super) struct Strangers(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// By number, the oldest first; resolving one closes its connection.
    all: BTreeMap<u64, Resolver<()>>,
}

impl Strangers {
    /// Takes in one more: its number, and what comes when it has to go.
    pub(super) fn come(&self) -> (u64, Promise<()>) {
        let (resolver, promise) = promise();
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.all.insert(number, resolver);
        let oldest = if state.all.len() > STRANGERS_MAX { state.all.pop_first() } else { None };
        drop(state);
        if let Some((_, oldest)) = oldest {
            oldest.resolve(());
        }
        (number, promise)
    }

    /// One is no stranger any more, or gone.
    pub(super) fn go(&self, number: u64) {
        self.0.lock().all.remove(&number);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().all.len()
    }
}
