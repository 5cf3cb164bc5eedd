//! Entry of a unit in an eviction queue, with what is known of its use.

use super::FileData;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::InodeId;

/// Uses are counted up to this.
const USES_MAX: u8 = 3;

/// A unit in an eviction queue, as long as it is in memory. Its methods take no lock.
pub(in crate::data) struct QueueEntry {
    file: Weak<FileData>,
    inode: InodeId,
    index: u64,
    /// Uses since it came, or came round.
    uses: AtomicU8,
    /// Whether any program has used it since it came.
    is_met: AtomicBool,
    /// Whether another node is known to have it in memory, too.
    is_elsewhere: AtomicBool,
    /// Whether it went round once more.
    is_spared: AtomicBool,
}

impl QueueEntry {
    pub(in crate::data) fn new(file: &Arc<FileData>, index: u64) -> Self {
        let (uses, is_met, is_elsewhere, is_spared) = Default::default();
        Self { file: Arc::downgrade(file), inode: file.inode, index, uses, is_met, is_elsewhere, is_spared }
    }

    /// The unit's file, if the node still has it, and its index.
    pub(in crate::data) fn unit(&self) -> Option<(Arc<FileData>, u64)> {
        Some((self.file.upgrade()?, self.index))
    }

    /// The unit's name, also when its file is gone.
    pub(in crate::data) fn name(&self) -> (InodeId, u64) {
        (self.inode, self.index)
    }

    /// A program has begun to use it.
    pub(in crate::data) fn meet(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    pub(in crate::data) fn is_met(&self) -> bool {
        self.is_met.load(Ordering::Relaxed)
    }

    /// A program has used it again.
    pub(in crate::data) fn used(&self) {
        let uses = self.uses.load(Ordering::Relaxed);
        // Two at the same time may count as one.
        self.uses.store((uses + 1).min(USES_MAX), Ordering::Relaxed);
        self.is_spared.store(false, Ordering::Relaxed);
    }

    /// Uses so far, which count from 0 from now on.
    pub(in crate::data) fn take_uses(&self) -> u8 {
        self.uses.swap(0, Ordering::Relaxed)
    }

    /// Uses so far, of which one counts no more from now on.
    pub(in crate::data) fn take_use(&self) -> u8 {
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.saturating_sub(1), Ordering::Relaxed);
        uses
    }

    /// Another node has it in memory, too, or no longer has it in this version.
    pub(in crate::data) fn set_elsewhere(&self, is_elsewhere: bool) {
        self.is_elsewhere.store(is_elsewhere, Ordering::Relaxed);
    }

    /// Whether it goes round once more: no other node is known to have it, or it was read ahead and no program has used it yet.
    pub(in crate::data) fn is_spared_now(&self) -> bool {
        let is_dear = !self.is_elsewhere.load(Ordering::Relaxed) || !self.is_met.load(Ordering::Relaxed);
        is_dear && !self.is_spared.swap(true, Ordering::Relaxed)
    }
}
