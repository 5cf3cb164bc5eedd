//! [`KernelPages`] of the views whose files are in the data engine.

use crate::data::FileData;
use crate::types::HandleNumber;
use crate::vfs::KernelPages;
use std::sync::Arc;
use tameike_core::{Generation, Result};

/// An open file of the data engine.
pub(crate) struct EngineFile {
    pub data: Arc<FileData>,
    /// Reads and writes go to the shared file: the generations of the engine are not those of the kernel's pages.
    pub is_detached: bool,
}

/// A view whose files are in the data engine.
pub(crate) trait OnEngine: Send + Sync + 'static {
    /// Returns the file of a handle, or `EBADF`.
    fn engine_file(&self, handle: HandleNumber) -> Result<EngineFile>;
}

impl<V: OnEngine> KernelPages for V {
    fn has_pages_before(&self, handle: HandleNumber, generation: Generation) -> bool {
        let has_pages = |open: EngineFile| open.is_detached || open.data.has_pages_before(generation);
        self.engine_file(handle).is_ok_and(has_pages)
    }

    fn pages_dropped(&self, handle: HandleNumber, generation: Generation) {
        let _ = self.engine_file(handle).map(|open| open.data.pages_dropped(generation));
    }

    fn mark_pages_stale(&self, handle: HandleNumber) {
        let _ = self.engine_file(handle).map(|open| open.data.mark_pages_stale());
    }

    fn keeps_pages(&self, handle: HandleNumber) -> bool {
        self.engine_file(handle).is_ok_and(|open| open.data.keeps_pages())
    }
}
