//! A shared file system that shows late what was done to it, as Gfarm does.
//!
//! Each node has a mount of its own, which may go on showing what it has seen before. The time of a write comes to the file when
//! who wrote closes it, as that of the last change of attributes, too: also after somebody has set another one.

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
    /// Of the last write, not shown before its close.
    written: Timestamp,
}

/// What all mounts share: the times of files.
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

/// What a mount shows of a file in place of what it is.
#[derive(Clone, Copy)]
struct Old {
    stamp: Stamp,
    /// So many questions for the end of the file bring nothing new.
    looks: u32,
}

/// A mount on one machine.
pub(super) struct Mount {
    server: Arc<Server>,
    old: Mutex<BTreeMap<InodeId, Old>>,
    /// Files that this machine has written and closed, while closes are held back.
    held_back: Mutex<Option<Vec<InodeId>>>,
}

impl Mount {
    pub(super) fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server, old: Mutex::default(), held_back: Mutex::default() })
    }

    /// From now on the mount shows the file so, until it was asked for the end of the file `looks` times.
    pub(super) fn remember(&self, stamp: Stamp, looks: u32) {
        self.old.lock().insert(InodeId::cached(stamp.device, stamp.inode), Old { stamp, looks });
    }

    /// What was remembered is forgotten.
    pub(super) fn forget(&self) {
        self.old.lock().clear();
    }

    /// From now on closes are held back.
    pub(super) fn close_late(&self) {
        *self.held_back.lock() = Some(Vec::new());
    }

    /// Closes reach the server again; so many were held back.
    pub(super) fn release(&self) -> usize {
        let closed = self.held_back.lock().take().unwrap_or_default();
        closed.iter().for_each(|&inode| self.closed(inode));
        closed.len()
    }

    pub(super) fn seen(&self, mut stat: FileStat) -> FileStat {
        let times = self.server.with(stat.inode_id(), |times, _| *times);
        (stat.mtime, stat.ctime) = (times.mtime, times.ctime);
        if let Some(Old { stamp, .. }) = self.old.lock().get(&stat.inode_id()) {
            (stat.size, stat.mtime, stat.ctime) = (stamp.size, stamp.mtime, stamp.ctime);
        }
        stat
    }

    /// Where reads find the end of the file.
    pub(super) fn end(&self, inode: InodeId) -> Option<u64> {
        self.old.lock().get(&inode).map(|old| old.stamp.size)
    }

    pub(super) fn revalidate(&self, inode: InodeId) {
        let mut all = self.old.lock();
        let Some(old) = all.get_mut(&inode) else { return };
        old.looks -= 1;
        if old.looks == 0 {
            all.remove(&inode);
        }
    }

    /// Bytes up to `end` were written here: the mount knows that the file has them.
    pub(super) fn wrote(&self, inode: InodeId, end: u64) {
        self.server.with(inode, |times, now| times.written = now);
        if let Some(old) = self.old.lock().get_mut(&inode) {
            old.stamp.size = old.stamp.size.max(end);
        }
    }

    pub(super) fn was_cut(&self, inode: InodeId) {
        self.old.lock().remove(&inode);
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

    /// Who has written the file closes it.
    pub(super) fn closed(&self, inode: InodeId) {
        match &mut *self.held_back.lock() {
            Some(held_back) => held_back.push(inode),
            None => self.server.with(inode, |times, _| {
                (times.mtime, times.ctime) = (times.written, times.written);
            }),
        }
    }
}
