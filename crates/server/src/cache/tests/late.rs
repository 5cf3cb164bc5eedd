//! A shared file system with stale attributes, such as Gfarm.
//!
//! Each node has its own mount, which may show old attributes. A close by a writer sets mtime and ctime to the time of its last write, even
//! after another client has set a different mtime.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::cache::Stamp;
use tameike_core::{InodeId, Timestamp};
use tameike_io::Runtime;
use tameike_io::shared::FileStat;

#[derive(Clone, Copy)]
struct Times {
    mtime: Timestamp,
    ctime: Timestamp,
    /// Time of the last write, not visible before the writer's close.
    written: Timestamp,
}

/// State that all mounts share: the times of files.
pub(super) struct Server {
    runtime: Runtime,
    times: Mutex<BTreeMap<InodeId, Times>>,
}

impl Server {
    pub(super) fn new(runtime: Runtime) -> Arc<Self> {
        Arc::new(Self { runtime, times: Mutex::default() })
    }

    fn with<T>(&self, inode: InodeId, work: impl FnOnce(&mut Times, Timestamp) -> T) -> T {
        let now = self.runtime.now();
        let mut times = self.times.lock();
        work(times.entry(inode).or_insert(Times { mtime: now, ctime: now, written: now }), now)
    }
}

/// Stale attributes that a mount shows for a file.
#[derive(Clone, Copy)]
struct Stale {
    stamp: Stamp,
    /// Number of revalidations of the end of the file until the mount shows the current attributes.
    revalidations: u32,
}

/// A mount on one machine.
pub(super) struct Mount {
    server: Arc<Server>,
    stale: Mutex<BTreeMap<InodeId, Stale>>,
    /// Files that this machine has written and closed, while closes are delayed.
    delayed_closes: Mutex<Option<Vec<InodeId>>>,
}

impl Mount {
    pub(super) fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server, stale: Mutex::default(), delayed_closes: Mutex::default() })
    }

    /// Shows these attributes of the file until its end has been revalidated `revalidations` times.
    pub(super) fn show_stale(&self, stamp: Stamp, revalidations: u32) {
        self.stale.lock().insert(InodeId::cached(stamp.device, stamp.inode), Stale { stamp, revalidations });
    }

    /// Discards all stale attributes.
    pub(super) fn show_current(&self) {
        self.stale.lock().clear();
    }

    /// Delays the closes of this mount until `release`.
    pub(super) fn delay_closes(&self) {
        *self.delayed_closes.lock() = Some(Vec::new());
    }

    /// Sends the delayed closes to the server, and returns their number.
    pub(super) fn release(&self) -> usize {
        let closed = self.delayed_closes.lock().take().unwrap_or_default();
        closed.iter().for_each(|&inode| self.closed(inode));
        closed.len()
    }

    pub(super) fn seen(&self, mut stat: FileStat) -> FileStat {
        let times = self.server.with(stat.inode_id(), |times, _| *times);
        (stat.mtime, stat.ctime) = (times.mtime, times.ctime);
        if let Some(Stale { stamp, .. }) = self.stale.lock().get(&stat.inode_id()) {
            (stat.size, stat.mtime, stat.ctime) = (stamp.size, stamp.mtime, stamp.ctime);
        }
        stat
    }

    /// End of the file for reads, if it is stale.
    pub(super) fn end(&self, inode: InodeId) -> Option<u64> {
        self.stale.lock().get(&inode).map(|old| old.stamp.size)
    }

    pub(super) fn revalidate(&self, inode: InodeId) {
        let mut all = self.stale.lock();
        let Some(old) = all.get_mut(&inode) else { return };
        old.revalidations -= 1;
        if old.revalidations == 0 {
            all.remove(&inode);
        }
    }

    /// Records a write up to `end` through this mount, which extends its stale size.
    pub(super) fn wrote(&self, inode: InodeId, end: u64) {
        self.server.with(inode, |times, now| times.written = now);
        if let Some(old) = self.stale.lock().get_mut(&inode) {
            old.stamp.size = old.stamp.size.max(end);
        }
    }

    pub(super) fn truncated(&self, inode: InodeId) {
        self.stale.lock().remove(&inode);
    }

    pub(super) fn changed(&self, inode: InodeId, change: &AttrChange) {
        self.server.with(inode, |times, now| {
            times.ctime = now;
            match change.mtime {
                Some(SetTime::To(mtime)) => times.mtime = mtime,
                Some(SetTime::Now) => times.mtime = now,
                None => {}
            }
        });
    }

    /// Processes a writer's close of the file.
    pub(super) fn closed(&self, inode: InodeId) {
        match &mut *self.delayed_closes.lock() {
            Some(delayed_closes) => delayed_closes.push(inode),
            None => self.server.with(inode, |times, _| {
                (times.mtime, times.ctime) = (times.written, times.written);
            }),
        }
    }
}
