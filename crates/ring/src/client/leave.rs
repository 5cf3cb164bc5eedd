//! Closing without waiting.

use super::{Answer, Client};
use crate::layout::{LEFT, left};
use std::sync::atomic::{AtomicU64, Ordering};

impl Client {
    /// Ends a handle through which nothing was changed: of its close there is nothing to be told, so that the agent is not
    /// waited for. An agent that is gone may be believed to be there for as long as it is by who looks names up.
    pub fn leave(&self, handle: u64) -> Answer<()> {
        if self.is_broken() || !self.is_agent_there() {
            return Answer::Broken;
        }
        let put = |place: &AtomicU64| {
            place.compare_exchange(0, handle, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        // There is no handle 0, which would say that there is none.
        if handle == 0 || !left(&self.arena).any(put) {
            return self.close(handle);
        }
        if !self.hand_over_near(LEFT) {
            self.announce(LEFT);
        }
        Answer::Done(())
    }
}
