//! Group commit of directory syncs: concurrent flushes share the fsync of a directory.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Fault, Result};

/// Directories that a caller waits for.
#[derive(Default)]
pub(super) struct DirSyncs(Mutex<BTreeMap<Vec<u8>, Awaited>>);

#[derive(Default)]
struct Awaited {
    /// Number of callers that wait.
    count: usize,
    dir: Arc<Dir>,
}

#[derive(Default)]
struct Dir {
    /// Number of calls so far.
    calls: AtomicU64,
    /// Locked by the caller that runs the sync.
    outcome: async_lock::Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    /// Value of `calls` when the last successful sync began.
    synced: u64,
    /// Value of `calls` when the last failed sync ended, and its error: the kernel reports an error only once.
    failed: Option<(u64, Fault)>,
}

/// One caller's wait for a sync of a directory; ends when dropped.
struct Waiting<'a> {
    syncs: &'a DirSyncs,
    path: &'a [u8],
    dir: Arc<Dir>,
}

impl<'a> Waiting<'a> {
    fn begin(syncs: &'a DirSyncs, path: &'a [u8]) -> Self {
        let mut dirs = syncs.0.lock();
        let awaited = dirs.entry(path.to_vec()).or_default();
        awaited.count += 1;
        Self { syncs, path, dir: awaited.dir.clone() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut dirs = self.syncs.0.lock();
        let Some(awaited) = dirs.get_mut(self.path) else { return };
        awaited.count -= 1;
        if awaited.count == 0 {
            dirs.remove(self.path);
        }
    }
}

impl DirSyncs {
    /// Returns when a directory sync that began after this call has ended. The caller runs `sync` itself or shares that of another caller.
    /// A failed sync fails all callers that waited for it.
    pub(super) async fn share<F: Future<Output = Result<()>>>(
        &self,
        path: &[u8],
        sync: impl FnOnce() -> F,
    ) -> Result<()> {
        let waiting = Waiting::begin(self, path);
        let dir = &*waiting.dir;
        let number = dir.calls.fetch_add(1, Ordering::AcqRel) + 1;
        let mut outcome = dir.outcome.lock().await;
        match &outcome.failed {
            Some((failed, fault)) if number <= *failed => return Err(fault.clone()),
            _ if number <= outcome.synced => return Ok(()),
            _ => {}
        }
        let seen = dir.calls.load(Ordering::Acquire);
        let done = sync().await;
        match &done {
            Ok(()) => outcome.synced = seen,
            Err(fault) => outcome.failed = Some((dir.calls.load(Ordering::Acquire), fault.clone())),
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::cell::{Cell, RefCell};
    use tameike_core::Errno;
    use tameike_io::os::runtime::yield_now;

    #[test]
    fn calls_during_a_sync_share_the_next_one() {
        let syncs = DirSyncs::default();
        let syncs_run = Cell::new(0);
        let sync = || async {
            syncs_run.set(syncs_run.get() + 1);
            yield_now().await;
            Ok(())
        };
        let calls = (0..8).map(|_| syncs.share(b"d", sync));
        let done = pollster::block_on(join_all(calls));
        assert!(done.iter().all(Result::is_ok));
        assert_eq!(syncs_run.get(), 2);
        assert!(syncs.0.lock().is_empty());
    }

    #[test]
    fn a_dropped_call_leaves_no_state() {
        let syncs = DirSyncs::default();
        let mut calls = Box::pin(syncs.share(b"d", std::future::pending));
        assert!(futures_util::FutureExt::now_or_never(&mut calls).is_none());
        assert_eq!(syncs.0.lock().len(), 1);
        drop(calls);
        assert!(syncs.0.lock().is_empty());
        assert!(pollster::block_on(syncs.share(b"d", || async { Ok(()) })).is_ok());
    }

    #[test]
    fn directories_are_independent_and_a_failure_reaches_every_waiting_caller() {
        let syncs = DirSyncs::default();
        let syncs_run = RefCell::new(Vec::new());
        let (syncs_ref, syncs_run_ref) = (&syncs, &syncs_run);
        let share = |dir: &'static [u8], fails: bool| {
            syncs_ref.share(dir, move || async move {
                syncs_run_ref.borrow_mut().push(dir);
                yield_now().await;
                if fails { Err(Errno::EIO.into()) } else { Ok(()) }
            })
        };
        // The kernel reports a failure only once: the next sync of the same directory would succeed.
        let calls = [share(b"a", true), share(b"a", false), share(b"a", false), share(b"b", false)];
        let done = pollster::block_on(join_all(calls));
        assert_eq!(done.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(*syncs_run.borrow(), [b"a", b"b"]);
        assert!(syncs.0.lock().is_empty());
        assert!(pollster::block_on(share(b"a", false)).is_ok());
    }
}
