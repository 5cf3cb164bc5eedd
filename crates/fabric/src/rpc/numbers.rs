//! Numbers of the calls that may be repeated at another primary.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::wire::call::CallNumber;

#[derive(Default)]
struct State {
    last: u64,
    pending: BTreeSet<u64>,
}

/// The numbers of a caller.
#[derive(Default)]
pub(super) struct Numbers(Mutex<State>);

impl Numbers {
    pub(super) fn next(self: &Arc<Self>) -> Numbered {
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        state.pending.insert(number);
        Numbered { numbers: self.clone(), number }
    }
}

/// The number of a call that has not ended.
pub(super) struct Numbered {
    numbers: Arc<Numbers>,
    number: u64,
}

impl Numbered {
    /// The number, with the end of the finished ones as of now.
    pub(super) fn current(&self) -> CallNumber {
        let finished = self.numbers.0.lock().pending.first().copied().unwrap_or(self.number);
        CallNumber { number: self.number, finished }
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.numbers.0.lock().pending.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_before_the_oldest_pending_one_are_finished() {
        let numbers = Arc::<Numbers>::default();
        let (one, two, three) = (numbers.next(), numbers.next(), numbers.next());
        assert_eq!(three.current(), CallNumber { number: 3, finished: 1 });
        drop(two);
        assert_eq!(three.current().finished, 1);
        drop(one);
        assert_eq!(three.current(), CallNumber { number: 3, finished: 3 });
        drop(three);
        assert_eq!(numbers.next().current(), CallNumber { number: 4, finished: 4 });
    }
}
