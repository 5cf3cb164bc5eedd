//! Close without a reply.

use super::{Answer, Client};
use crate::layout::{LEFT, left};
use std::sync::atomic::{AtomicU64, Ordering};

impl Client {
    /// Closes a handle through which nothing was changed, so that the close cannot fail, without waiting for the agent. A failure of the
    /// agent may go undetected for as long as in lookups of names.
    pub fn leave(&self, handle: u64) -> Answer<()> {
        if self.is_broken() || !self.is_agent_there() {
            return Answer::Broken;
        }
        let put = |place: &AtomicU64| {
            place.compare_exchange(0, handle, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        // 0 means "no handle" in the shared places.
        if handle == 0 || !left(&self.arena).any(put) {
            return self.close(handle);
        }
        if !self.hand_over_near(LEFT) {
            self.announce(LEFT);
        }
        Answer::Done(())
    }
}
