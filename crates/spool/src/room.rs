//! Whether the spool has room for new files, and who waits for it.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    is_full: bool,
    /// Times at which the packer has looked through the tree and found nothing that could leave it.
    idle_rounds: u64,
    /// The packer looks no more.
    has_ended: bool,
}

/// Those who wait are let on when there is room, and when waiting does not make any.
#[derive(Default)]
pub struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

impl Room {
    /// The packer has looked through the tree.
    pub fn tell(&self, is_full: bool, is_idle: bool) {
        let mut state = self.state.lock();
        state.is_full = is_full;
        state.idle_rounds += u64::from(is_idle);
        self.changed.notify_all();
    }

    /// Waits.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        state.is_full = true;
        // One that has begun before may have missed what is to leave.
        let until = state.idle_rounds + 2;
        while state.is_full && state.idle_rounds < until && !state.has_ended {
            self.changed.wait(&mut state);
        }
    }

    /// Lets all go: the packer ends. A program that waited was ended before it.
    pub fn end(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of a program that was ended while it waited for room kept the packer, which waits for its requests, for ever.
    #[test]
    fn nobody_waits_for_a_packer_that_ends() {
        let room = Room::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| room.wait());
            // It has begun to wait.
            while !room.state.lock().is_full {
                std::thread::yield_now();
            }
            room.end();
            waiting.join().expect("it ends");
        });
        room.wait();
    }
}
