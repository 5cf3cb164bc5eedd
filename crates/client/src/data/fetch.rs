//! Fetches of units in flight: one per unit at a time, and others wait for its end.

use super::FileData;
use super::file::FileState;
use std::sync::Arc;
use tameike_core::Generation;

/// Marks a unit as being fetched. Dropping it clears the mark and wakes the readers that wait for the unit.
pub(super) struct FetchInFlight {
    file: Arc<FileData>,
    index: u64,
    epoch: u64,
    generation: Generation,
}

impl FileState {
    /// Marks a unit of `file`, whose state this is, as being fetched.
    pub(super) fn begin_fetch(&mut self, file: &Arc<FileData>, index: u64) -> FetchInFlight {
        self.fetching.insert(index);
        FetchInFlight { file: file.clone(), index, epoch: self.epoch, generation: self.generation }
    }
}

impl FetchInFlight {
    /// Index of the unit.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Cache epoch of the file when the fetch began: what it brings is not cached in a later one.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Version of the file that is fetched.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }
}

impl Drop for FetchInFlight {
    fn drop(&mut self) {
        self.file.state.lock().fetching.remove(&self.index);
        self.file.changed.notify(usize::MAX);
    }
}
