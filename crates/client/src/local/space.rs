//! Space and inode accounting of the node-local view.

use parking_lot::{Condvar, Mutex};
use tameike_core::{Errno, Result};

#[derive(Default)]
struct Counts {
    /// Bytes in use.
    used: u64,
    /// Bytes that changes in progress may need.
    reserved: u64,
    inodes: u64,
}

/// Usage and limit of the view.
pub(super) struct LocalSpace {
    capacity: u64,
    counts: Mutex<Counts>,
    /// Notified when a change has ended.
    ended: Condvar,
}

/// Reservation for a change of one file's content; dropping it returns the space.
pub(super) struct Reserved<'a> {
    space: &'a LocalSpace,
    bytes: u64,
}

impl LocalSpace {
    /// Space of an empty tree: only the root uses an inode.
    pub(super) fn new(capacity: u64) -> Self {
        let counts = Counts { inodes: 1, ..Counts::default() };
        Self { capacity, counts: Mutex::new(counts), ended: Condvar::new() }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn used(&self) -> u64 {
        self.counts.lock().used
    }

    pub(super) fn inodes(&self) -> u64 {
        self.counts.lock().inodes
    }

    /// Reserves the space that a change may need. Waits for other changes in progress that may need less than they have reserved;
    /// fails with `ENOSPC` if there is not enough space.
    pub(super) fn reserve(&self, bytes: u64) -> Result<Reserved<'_>> {
        let mut counts = self.counts.lock();
        while bytes > 0 && counts.used + counts.reserved + bytes > self.capacity {
            if counts.reserved == 0 {
                return Err(Errno::ENOSPC.into());
            }
            self.ended.wait(&mut counts);
        }
        counts.reserved += bytes;
        Ok(Reserved { space: self, bytes })
    }

    /// Replaces the `before` bytes of a file by `after`.
    pub(super) fn changed(&self, before: u64, after: u64) {
        let mut counts = self.counts.lock();
        counts.used = (counts.used + after).saturating_sub(before);
    }

    pub(super) fn inode_made(&self) {
        self.counts.lock().inodes += 1;
    }

    /// Counts off an inode and its `bytes` of space.
    pub(super) fn inode_gone(&self, bytes: u64) {
        let mut counts = self.counts.lock();
        counts.inodes = counts.inodes.saturating_sub(1);
        counts.used = counts.used.saturating_sub(bytes);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.space.counts.lock().reserved -= self.bytes;
        self.space.ended.notify_all();
    }
}
