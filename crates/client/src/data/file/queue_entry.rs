//! Entry of a unit in an eviction queue, with its use counts.

use super::FileData;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::InodeId;

/// Limit of the use count.
const USES_MAX: u8 = 3;

/// A unit in an eviction queue, while it is in memory. Its methods take no lock.
pub(in crate::data) struct QueueEntry {
    file: Weak<FileData>,
    inode: InodeId,
    index: u64,
    /// Uses since the unit entered memory, less those that eviction scans have consumed.
    uses: AtomicU8,
    /// True if any program has accessed it since it entered memory.
    is_accessed: AtomicBool,
    /// True if another node is known to have it in memory.
    is_elsewhere: AtomicBool,
    /// True if it was spared once since its last use.
    is_spared: AtomicBool,
}

impl QueueEntry {
    pub(in crate::data) fn new(file: &Arc<FileData>, index: u64) -> Self {
        let (uses, is_accessed, is_elsewhere, is_spared) = Default::default();
        Self {
            file: Arc::downgrade(file),
            inode: file.inode,
            index,
            uses,
            is_accessed,
            is_elsewhere,
            is_spared,
        }
    }

    /// Returns the unit's file, if the node still has it, and its index.
    pub(in crate::data) fn unit(&self) -> Option<(Arc<FileData>, u64)> {
        Some((self.file.upgrade()?, self.index))
    }

    /// Returns the unit's name, even after its file is dropped.
    pub(in crate::data) fn name(&self) -> (InodeId, u64) {
        (self.inode, self.index)
    }

    pub(in crate::data) fn mark_accessed(&self) {
        self.is_accessed.store(true, Ordering::Relaxed);
    }

    pub(in crate::data) fn is_accessed(&self) -> bool {
        self.is_accessed.load(Ordering::Relaxed)
    }

    pub(in crate::data) fn used(&self) {
        let uses = self.uses.load(Ordering::Relaxed);
        // Two concurrent uses may count as one.
        self.uses.store((uses + 1).min(USES_MAX), Ordering::Relaxed);
        self.is_spared.store(false, Ordering::Relaxed);
    }

    pub(in crate::data) fn take_uses(&self) -> u8 {
        self.uses.swap(0, Ordering::Relaxed)
    }

    pub(in crate::data) fn take_use(&self) -> u8 {
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.saturating_sub(1), Ordering::Relaxed);
        uses
    }

    pub(in crate::data) fn set_elsewhere(&self, is_elsewhere: bool) {
        self.is_elsewhere.store(is_elsewhere, Ordering::Relaxed);
    }

    /// Returns true, once per use, if no other node is known to have the unit, or if it was read ahead and is still unread.
    pub(in crate::data) fn is_spared_now(&self) -> bool {
        let is_spareable =
            !self.is_elsewhere.load(Ordering::Relaxed) || !self.is_accessed.load(Ordering::Relaxed);
        is_spareable && !self.is_spared.swap(true, Ordering::Relaxed)
    }
}
