//! Syncs of directories, which files that are flushed at the same time share.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Fault, Result};

/// Directories that somebody waits for.
#[derive(Default)]
pub(super) struct DirSyncs(Mutex<BTreeMap<Vec<u8>, Awaited>>);

#[derive(Default)]
struct Awaited {
    /// How many wait.
    count: usize,
    dir: Arc<Dir>,
}

#[derive(Default)]
struct Dir {
    /// How often it was asked for.
    asked: AtomicU64,
    /// Who holds it syncs.
    ended: async_lock::Mutex<Ended>,
}

#[derive(Default)]
struct Ended {
    /// How often it had been asked for when the last sync began that succeeded.
    synced: u64,
    /// The same when the last sync ended that failed, and how it did: the system tells it once.
    failed: Option<(u64, Fault)>,
}

/// Waits for a sync of a directory, until dropped.
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
    /// Returns when a sync of the directory has ended that began after this call: one that `sync` makes, or another one's.
    ///
    /// # Errors
    /// Those of `sync`, for all that wait when it fails.
    pub(super) async fn share<F: Future<Output = Result<()>>>(
        &self,
        path: &[u8],
        sync: impl FnOnce() -> F,
    ) -> Result<()> {
        let waiting = Waiting::begin(self, path);
        let dir = &*waiting.dir;
        let number = dir.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut ended = dir.ended.lock().await;
        match &ended.failed {
            Some((asked, fault)) if number <= *asked => return Err(fault.clone()),
            _ if number <= ended.synced => return Ok(()),
            _ => {}
        }
        let asked = dir.asked.load(Ordering::Acquire);
        let done = sync().await;
        match &done {
            Ok(()) => ended.synced = asked,
            Err(fault) => ended.failed = Some((dir.asked.load(Ordering::Acquire), fault.clone())),
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
    fn who_asks_while_one_is_under_way_shares_the_next() {
        let syncs = DirSyncs::default();
        let made = Cell::new(0);
        let sync = || async {
            made.set(made.get() + 1);
            yield_now().await;
            Ok(())
        };
        let asked = (0..8).map(|_| syncs.share(b"d", sync));
        let done = pollster::block_on(join_all(asked));
        assert!(done.iter().all(Result::is_ok));
        assert_eq!(made.get(), 2);
        assert!(syncs.0.lock().is_empty());
    }

    #[test]
    fn who_gives_up_leaves_nothing() {
        let syncs = DirSyncs::default();
        let mut asked = Box::pin(syncs.share(b"d", std::future::pending));
        assert!(futures_util::FutureExt::now_or_never(&mut asked).is_none());
        assert_eq!(syncs.0.lock().len(), 1);
        drop(asked);
        assert!(syncs.0.lock().is_empty());
        assert!(pollster::block_on(syncs.share(b"d", || async { Ok(()) })).is_ok());
    }

    #[test]
    fn directories_share_nothing_and_no_failure_is_a_success() {
        let syncs = DirSyncs::default();
        let made = RefCell::new(Vec::new());
        let (syncs_then, made_then) = (&syncs, &made);
        let ask = |dir: &'static [u8], fails: bool| {
            syncs_then.share(dir, move || async move {
                made_then.borrow_mut().push(dir);
                yield_now().await;
                if fails { Err(Errno::EIO.into()) } else { Ok(()) }
            })
        };
        // The kernel tells a failure once: the next sync of the same directory would succeed.
        let asked = [ask(b"a", true), ask(b"a", false), ask(b"a", false), ask(b"b", false)];
        let done = pollster::block_on(join_all(asked));
        assert_eq!(done.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(*made.borrow(), [b"a", b"b"]);
        assert!(syncs.0.lock().is_empty());
        assert!(pollster::block_on(ask(b"a", false)).is_ok());
    }
}
