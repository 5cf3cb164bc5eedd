//! The regions and windows to which the process is attached. It detaches from them when it calls exit(3) or returns from `main`.

use parking_lot::Mutex;
use std::sync::Once;
use std::time::Duration;
use tameike_ring::client::{Answer, Client};

/// A region to which the process is attached.
#[derive(Clone, Copy)]
pub struct Attached {
    /// Connection to the agent.
    pub client: &'static Client,
    /// The agent's number of the region.
    pub region: u64,
}

static ALL: Mutex<Vec<Attached>> = Mutex::new(Vec::new());
static AT_EXIT: Once = Once::new();
/// Time limit for the lock at exit: a signal handler may have called exit(3) while its thread held the lock.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

impl Attached {
    fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.client, other.client) && self.region == other.region
    }

    /// Detaches the process from the region.
    pub fn close(&self) -> Answer<()> {
        self.client.close_region(self.region)
    }
}

/// Adds a region.
pub fn add(attached: Attached) {
    AT_EXIT.call_once(|| {
        // If no more functions can be registered, the region counts as failed when the process ends.
        // SAFETY: the function lives as long as the process.
        let _ = unsafe { libc::atexit(detach_all) };
    });
    ALL.lock().push(attached);
}

/// Removes a region; false if it was removed before.
pub fn remove(attached: Attached) -> bool {
    let mut all = ALL.lock();
    let place = all.iter().position(|other| other.is(&attached));
    place.map(|place| all.swap_remove(place)).is_some()
}

extern "C" fn detach_all() {
    let all = ALL.try_lock_for(LOCK_WAIT_MAX).map(|mut all| std::mem::take(&mut *all));
    // In a child, those of the parent are broken.
    let own = all.into_iter().flatten().filter(|attached| !attached.client.is_broken());
    // The process cannot report failures any more.
    own.for_each(|attached| {
        let _: Answer<()> = attached.close();
    });
}
