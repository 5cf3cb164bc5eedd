//! Versions of what the node's kernel has cached of a file: its pages and attributes.

use super::FileData;
use crate::data::home::FileVersion;
use tameike_core::Generation;

/// Versions for which the kernel's cache is valid.
#[derive(Default)]
pub(super) struct KernelPages {
    /// Generation for which all that the kernel caches is valid.
    cached: Option<Generation>,
    /// Generation for which the kernel's pages are known to be valid. Opens do not set it: what the kernel drops at an open, it
    /// still has while the answer is in flight.
    pages: Option<Generation>,
}

impl KernelPages {
    /// The file is opened in this version; whether what the kernel has cached of it is still valid.
    pub(super) fn opened(&mut self, generation: Generation, beside_kernel: bool) -> bool {
        let is_kept = self.cached == Some(generation);
        if !beside_kernel {
            self.cached = Some(generation);
        }
        is_kept && !beside_kernel
    }

    /// What the kernel has cached is kept by no later open.
    pub(super) fn forget_cached(&mut self) {
        self.cached = None;
    }

    /// What the kernel has cached may be of no version.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// A write of this node has made a new generation; `is_alone` says whether no other node wrote in between.
    pub(super) fn own_change(&mut self, from: Generation, to: Generation, is_alone: bool) {
        for known in [&mut self.cached, &mut self.pages] {
            *known = (is_alone && *known == Some(from)).then_some(to);
        }
    }
}

impl FileData {
    /// As [`Self::refresh`], for reads through open handles. Returns the generation when the kernel's pages may be of another
    /// one: they must be dropped, and [`Self::pages_dropped`] be called.
    pub fn revalidate(&self, version: FileVersion) -> Option<Generation> {
        let mut state = self.state.lock();
        state.adopt(version);
        let generation = state.content.generation();
        (state.kernel.pages != Some(generation)).then_some(generation)
    }

    /// Whether the kernel may still have pages that are older than this.
    pub fn has_pages_before(&self, generation: Generation) -> bool {
        self.state.lock().kernel.pages < Some(generation)
    }

    /// The kernel has dropped all pages that are older than this, and attributes.
    pub fn pages_dropped(&self, generation: Generation) {
        let kernel = &mut self.state.lock().kernel;
        kernel.pages = kernel.pages.max(Some(generation));
    }

    /// This node has written bytes that the kernel's pages may lack: they are not kept by the next open.
    pub fn mark_pages_stale(&self) {
        self.state.lock().kernel.forget();
    }

    /// Whether it has not, since it opened the file last.
    pub fn keeps_pages(&self) -> bool {
        self.state.lock().kernel.cached.is_some()
    }
}
