//! Wait list of programs for space in the spool.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    is_full: bool,
    /// Number of rounds in which the packer could remove nothing from the tree.
    idle_rounds: u64,
    /// The packer has ended.
    has_ended: bool,
}

/// Waiters continue when there is space, or when the packer cannot free any.
#[derive(Default)]
pub struct SpaceWait {
    state: Mutex<State>,
    changed: Condvar,
}

impl SpaceWait {
    /// Reports a round of the packer.
    pub fn report(&self, is_full: bool, is_idle: bool) {
        let mut state = self.state.lock();
        state.is_full = is_full;
        state.idle_rounds += u64::from(is_idle);
        self.changed.notify_all();
    }

    /// Waits for space.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        state.is_full = true;
        // A round in progress may have missed files that can be packed.
        let until = state.idle_rounds + 2;
        while state.is_full && state.idle_rounds < until && !state.has_ended {
            self.changed.wait(&mut state);
        }
    }

    /// Ends all waits, as the packer ends.
    pub fn end(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of a program that was killed while it waited for space once kept the packer, which waits for its requests, forever.
    #[test]
    fn waits_end_with_the_packer() {
        let space = SpaceWait::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| space.wait());
            // Until the thread waits.
            while !space.state.lock().is_full {
                std::thread::yield_now();
            }
            space.end();
            waiting.join().expect("it ends");
        });
        space.wait();
    }
}
