//! Versions of the pages and attributes that the node's kernel caches of a file.

use super::FileData;
use crate::data::home::FileVersion;
use tameike_core::Generation;

/// Versions for which the kernel's cache is valid.
#[derive(Default)]
pub(super) struct KernelPages {
    /// Generation for which all that the kernel caches is valid.
    cached: Option<Generation>,
    /// Generation for which the kernel's pages are known to be valid. Opens do not set it: the kernel still has the pages that it drops at
    /// an open while the reply is in flight.
    pages: Option<Generation>,
}

impl KernelPages {
    /// Records an open of this version. Returns true if the kernel's cached pages are still valid.
    pub(super) fn opened(&mut self, generation: Generation, beside_kernel: bool) -> bool {
        let is_kept = self.cached == Some(generation);
        if !beside_kernel {
            self.cached = Some(generation);
        }
        is_kept && !beside_kernel
    }

    /// Has the next open drop the kernel's pages.
    pub(super) fn forget_cached(&mut self) {
        self.cached = None;
    }

    /// Records that the kernel's pages may be of no version.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Records the new generation that a write of this node created; `is_alone` is true if no other node wrote in between.
    pub(super) fn own_change(&mut self, from: Generation, to: Generation, is_alone: bool) {
        for known in [&mut self.cached, &mut self.pages] {
            *known = (is_alone && *known == Some(from)).then_some(to);
        }
    }
}

impl FileData {
    /// Adopts a version like [`Self::refresh`], for reads through open handles. Returns the generation if the kernel's pages may be of
    /// another one. The caller must then drop them and call [`Self::pages_dropped`].
    pub fn revalidate(&self, version: FileVersion) -> Option<Generation> {
        let mut state = self.state.lock();
        state.adopt(version);
        let generation = state.content.generation();
        (state.kernel.pages != Some(generation)).then_some(generation)
    }

    /// Returns true if the kernel may still have pages older than this.
    pub fn has_pages_before(&self, generation: Generation) -> bool {
        self.state.lock().kernel.pages < Some(generation)
    }

    /// Records that the kernel has dropped its attributes and all pages older than this.
    pub fn pages_dropped(&self, generation: Generation) {
        let kernel = &mut self.state.lock().kernel;
        kernel.pages = kernel.pages.max(Some(generation));
    }

    /// Records a write whose bytes the kernel's pages may lack: the next open drops the pages.
    pub fn mark_pages_stale(&self) {
        self.state.lock().kernel.forget();
    }

    /// Returns true if no such write happened since the kernel last opened the file.
    pub fn keeps_pages(&self) -> bool {
        self.state.lock().kernel.cached.is_some()
    }
}
