//! Background flush: whenever there is something to flush and the node is quiet (BB-5).

use super::CacheService;
use super::flush::Patience;
use futures_util::future::select;
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{InodeId, Result};

/// Pause before a file is tried again that had to give way to foreground requests.
const GAVE_WAY_PAUSE: Duration = Duration::from_millis(100);
/// Pauses before a file is tried again that could not be flushed.
const FAILED_PAUSE_MIN: Duration = Duration::from_secs(1);
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(60);

/// When to try a file again.
#[derive(Clone, Copy, Default)]
pub(super) struct Wait {
    /// Not before this time of the monotonic clock.
    until: Duration,
    /// Flushes that failed in a row.
    failures: u32,
}

enum Next {
    Nothing,
    In(Duration),
    Now(Vec<InodeId>),
}

impl CacheService {
    /// Flushes dirty files in the background from now on, until the service is dropped.
    pub fn start_flusher(self: &Arc<Self>) {
        let (weak, dirtied) = (Arc::downgrade(self), self.dirtied.clone());
        let (runtime, activity) = (self.parts.runtime.clone(), self.parts.activity.clone());
        self.parts.runtime.spawn(async move {
            loop {
                let changed = dirtied.listen();
                let Some(next) = weak.upgrade().map(|service| service.next_due()) else { return };
                match next {
                    Next::Nothing => changed.await,
                    Next::In(time) => {
                        let _ = select(runtime.sleep(time), changed).await;
                    }
                    Next::Now(inodes) => {
                        activity.until_quiet().await;
                        let Some(service) = weak.upgrade() else { return };
                        service.flush_some(inodes).await;
                    }
                }
            }
        });
    }

    /// The file has something to flush.
    pub(super) fn mark_dirty(&self, inode: InodeId) {
        let new = self.dirty.lock().insert(inode, Wait::default()).is_none();
        if new {
            self.dirtied.notify(usize::MAX);
        }
    }

    fn next_due(&self) -> Next {
        let now = self.parts.runtime.clock.monotonic();
        let dirty = self.dirty.lock();
        let batch = 4 * self.parts.flush_parallel.max(1);
        let due: Vec<_> =
            dirty.iter().filter(|(_, wait)| wait.until <= now).map(|(&id, _)| id).take(batch).collect();
        match dirty.values().map(|wait| wait.until).min() {
            None => Next::Nothing,
            Some(_) if !due.is_empty() => Next::Now(due),
            Some(until) => Next::In(until.saturating_sub(now)),
        }
    }

    async fn flush_some(&self, inodes: Vec<InodeId>) {
        let flush = |inode| async move {
            if !self.parts.activity.is_quiet() {
                return;
            }
            let outcome = self.flush_file(inode, &[], Patience::GivesWay).await;
            self.postpone(inode, outcome);
        };
        stream::iter(inodes).for_each_concurrent(self.parts.flush_parallel.max(1), flush).await;
    }

    /// Sets when a file that is still dirty is tried again.
    fn postpone(&self, inode: InodeId, outcome: Result<bool>) {
        let now = self.parts.runtime.clock.monotonic();
        let mut dirty = self.dirty.lock();
        let Some(wait) = dirty.get_mut(&inode) else { return };
        match outcome {
            Ok(_) => wait.until = now + GAVE_WAY_PAUSE,
            Err(fault) => {
                let pause = FAILED_PAUSE_MIN * 2_u32.pow(wait.failures.min(6));
                wait.until = now + pause.min(FAILED_PAUSE_MAX);
                if wait.failures == 0 {
                    log::warn!("cannot flush {inode} yet: {fault}");
                }
                wait.failures += 1;
            }
        }
    }

    /// Flushes a file now, because a node has no more room or a name is about to go.
    pub(super) async fn write_back(&self, inode: InodeId) -> Result<()> {
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(()) };
        let homes = self.homes_reached(inode, &file.state().record);
        self.flush_file(inode, &homes, Patience::Urgent).await.map(|_| ())
    }
}

impl Drop for CacheService {
    fn drop(&mut self) {
        self.dirtied.notify(usize::MAX);
    }
}
