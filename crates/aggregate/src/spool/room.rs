//! Whether the spool has room for new files, and who waits for it.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    is_full: bool,
    /// Times at which the packer has looked through the tree and found nothing that could leave it.
    idle_rounds: u64,
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
        while state.is_full && state.idle_rounds < until {
            self.changed.wait(&mut state);
        }
    }
}
