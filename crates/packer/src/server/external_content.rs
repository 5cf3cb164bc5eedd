//! Tracks the external files of a container: those that this job promotes, and those whose packed files were removed.

use super::pending_promotions::PendingPromotions;
use crate::external::remove;
use std::sync::Arc;
use tameike_container::format::external;
use tameike_core::Result;
use tameike_io::shared::{SharedFile, SharedFs};

/// An external file whose packed file was removed.
struct Removed {
    /// The count of changes that must be durable before the external file is removed.
    changes: u64,
    number: u64,
}

/// What a sync of the container must sync before it.
pub struct UnsyncedExternal {
    /// The container's directory, where it has new external files.
    dir: Option<Arc<dyn SharedFs>>,
    /// The file of the pending promotions, where it has new ones.
    promotions: Option<Arc<dyn SharedFile>>,
}

impl UnsyncedExternal {
    /// Syncs the pending promotions, then the directory.
    pub fn sync(&self) -> Result<()> {
        self.promotions.as_ref().map_or(Ok(()), |promotions| promotions.sync())?;
        self.dir.as_ref().map_or(Ok(()), |dir| dir.sync_dir(b""))
    }
}

/// The external files of a container.
pub struct ExternalContent {
    /// The container's directory.
    pub dir: Arc<dyn SharedFs>,
    /// None where another job writes the container.
    promotions: Option<PendingPromotions>,
    removed: Vec<Removed>,
    /// The directory has external files that no sync has covered.
    pub has_new_files: bool,
}

impl ExternalContent {
    /// Tracks the external files in a container's directory.
    pub fn new(dir: Arc<dyn SharedFs>, promotions: Option<PendingPromotions>) -> Self {
        Self { dir, promotions, removed: Vec::new(), has_new_files: false }
    }

    /// Records that this job promotes an external file.
    pub fn add_promotion(&mut self, number: u64) -> Result<()> {
        self.promotions.as_mut().map_or(Ok(()), |promotions| promotions.add(number))
    }

    /// The numbers of the external files that this job promotes.
    pub fn promotions(&self) -> impl Iterator<Item = u64> {
        self.promotions.iter().flat_map(PendingPromotions::numbers)
    }

    /// Whether this job promotes an external file.
    pub fn is_pending(&self, number: u64) -> bool {
        self.promotions.as_ref().is_some_and(|promotions| promotions.has(number))
    }

    /// Forgets the pending promotions.
    pub fn end_promotions(&mut self) -> Result<()> {
        self.promotions.as_mut().map_or(Ok(()), PendingPromotions::clear)
    }

    /// Schedules the removal of an external file for when this count of changes is durable.
    pub fn schedule_removal(&mut self, number: u64, changes: u64) {
        self.removed.push(Removed { changes, number });
    }

    /// The count of external files that are scheduled for removal.
    pub fn removals(&self) -> usize {
        self.removed.len()
    }

    /// Removes the scheduled external files that need no more durable changes than these.
    pub fn remove_until(&mut self, durable_changes: u64) {
        for Removed { number, .. } in
            self.removed.extract_if(.., |removed| removed.changes <= durable_changes)
        {
            if let Err(fault) = remove(&*self.dir, &external::name(number)) {
                log::warn!("content of a file that was removed stays in the container's directory: {fault}");
            }
        }
    }

    /// Returns what the next sync of the container must sync before it, and counts that as synced.
    pub fn begin_sync(&mut self) -> UnsyncedExternal {
        UnsyncedExternal {
            dir: std::mem::take(&mut self.has_new_files).then(|| self.dir.clone()),
            promotions: self.promotions.as_mut().and_then(PendingPromotions::begin_sync),
        }
    }
}
