//! The mounts of one view on a node, whose kernels cache directories.
//!
//! A home delays a change of a directory until other nodes have dropped what they may cache of it. Mounts of one agent are one node to the home, so
//! the agent does the same between them: a change through one mount returns when what other mounts may cache has expired. A reply that a change has
//! overtaken must not be cached.

use super::{ATTRIBUTES_LINGER, CACHED_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tameike_client::vfs::FileNumber;
use tameike_io::Runtime;

/// What kernels may cache of a directory.
struct Cached {
    /// The mount; `None` for several.
    mount: Option<u64>,
    until: Duration,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<FileNumber, Cached>,
    last_mount: u64,
}

/// All mounts of a view.
#[derive(Default)]
pub(crate) struct Mounts {
    count: AtomicUsize,
    /// Counts changes of directories through any of them.
    changes: AtomicU64,
    state: Mutex<State>,
}

/// One of several mounts, until dropped.
pub(crate) struct OneMount {
    runtime: Runtime,
    mounts: Arc<Mounts>,
    number: u64,
}

impl OneMount {
    pub(crate) fn new(runtime: Runtime, mounts: Arc<Mounts>) -> Self {
        mounts.count.fetch_add(1, Ordering::SeqCst);
        let number = {
            let mut state = mounts.state.lock();
            state.last_mount += 1;
            state.last_mount
        };
        Self { runtime, mounts, number }
    }

    /// Returns whether no other mount exists.
    pub(crate) fn is_alone(&self) -> bool {
        self.mounts.count.load(Ordering::SeqCst) <= 1
    }

    /// Count of changes of directories. Read it before reading a directory for the kernel.
    pub(super) fn changes(&self) -> u64 {
        self.mounts.changes.load(Ordering::SeqCst)
    }

    /// Returns whether this mount's kernel may cache a directory that was read when the count of changes was `changes`.
    pub(super) fn may_cache(&self, dir: FileNumber, changes: u64) -> bool {
        if self.is_alone() {
            return true;
        }
        let now = self.runtime.clock.monotonic();
        let mut state = self.mounts.state.lock();
        if state.directories.len() >= CACHED_MAX {
            state.directories.retain(|_, cached| cached.until > now);
        }
        if self.changes() != changes || state.directories.len() >= CACHED_MAX {
            return false;
        }
        let until = now + ATTRIBUTES_LINGER;
        let cached = state.directories.entry(dir).or_insert(Cached { mount: Some(self.number), until });
        let is_own = cached.until <= now || cached.mount == Some(self.number);
        *cached = Cached { mount: is_own.then_some(self.number), until };
        true
    }

    /// Waits until no other mount's kernel has the directory as it was before a change through this one. Call it after the change.
    pub(crate) async fn changed(&self, dir: FileNumber) {
        let now = self.runtime.clock.monotonic();
        let until = {
            let state = self.mounts.state.lock();
            self.mounts.changes.fetch_add(1, Ordering::SeqCst);
            let others = state.directories.get(&dir).filter(|cached| cached.mount != Some(self.number));
            others.map_or(now, |cached| cached.until)
        };
        if until > now {
            self.runtime.sleep(until - now).await;
        }
    }
}

impl Drop for OneMount {
    fn drop(&mut self) {
        self.mounts.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_io::os::simulated::Simulation;

    const DIR: FileNumber = FileNumber(7);

    /// Time until a change through a mount returns.
    fn change(simulation: &Simulation, mount: &Arc<OneMount>) -> Duration {
        let runtime = simulation.runtime();
        let (start, end) = (runtime.clock.monotonic(), Arc::new(Mutex::new(None)));
        let (ended, mount, clock) = (end.clone(), mount.clone(), runtime.clock.clone());
        runtime.spawn(async move {
            mount.changed(DIR).await;
            *ended.lock() = Some(clock.monotonic());
        });
        simulation.finish();
        let end = *end.lock();
        end.expect("the change returns") - start
    }

    fn mounts() -> (Simulation, [Arc<OneMount>; 2]) {
        let (simulation, mounts) = (Simulation::new(7), Arc::<Mounts>::default());
        let two = [0, 1].map(|_| Arc::new(OneMount::new(simulation.runtime(), mounts.clone())));
        (simulation, two)
    }

    #[test]
    fn a_change_waits_for_what_other_mounts_may_cache() {
        let (simulation, [one, two]) = mounts();
        assert!(one.may_cache(DIR, one.changes()));
        assert_eq!(change(&simulation, &one), Duration::ZERO, "only its own kernel has it");
        assert!(one.may_cache(DIR, one.changes()));
        assert_eq!(change(&simulation, &two), ATTRIBUTES_LINGER);
        assert!(two.may_cache(DIR, two.changes()) && one.may_cache(DIR, one.changes()));
        assert_eq!(change(&simulation, &two), ATTRIBUTES_LINGER, "both kernels have it");
        assert!(two.may_cache(DIR, two.changes()));
        assert_eq!(change(&simulation, &two), Duration::ZERO, "what both had has expired");
    }

    #[test]
    fn a_reply_that_a_change_has_overtaken_is_not_cached() {
        let (simulation, [one, two]) = mounts();
        let changes = one.changes();
        change(&simulation, &two);
        assert!(!one.may_cache(DIR, changes));
        drop(two);
        assert!(one.may_cache(DIR, changes), "no other mount changes it");
    }
}
