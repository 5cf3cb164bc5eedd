//! What the kernel of the node has cached of a file beside this room: its pages.

use super::FileData;
use super::file::adopt;
use super::home::FileVersion;
use tameike_core::Generation;

impl FileData {
    /// As [`Self::refresh`], for who reads on through open handles. Tells the generation when the kernel's pages may be
    /// of another one: they must be dropped, and that be told to [`Self::pages_dropped`].
    pub fn revalidate(&self, version: FileVersion) -> Option<Generation> {
        let mut state = self.state.lock();
        adopt(&mut state, version);
        (state.pages != Some(state.generation)).then_some(state.generation)
    }

    /// Whether the kernel may still have pages that are older than this.
    pub fn has_pages_before(&self, generation: Generation) -> bool {
        self.state.lock().pages < Some(generation)
    }

    /// The kernel has dropped all pages that are older than this, and attributes.
    pub fn pages_dropped(&self, generation: Generation) {
        let mut state = self.state.lock();
        state.pages = state.pages.max(Some(generation));
    }

    /// This node has written bytes that the kernel's pages may lack: they are not kept by the next open.
    pub fn pages_passed(&self) {
        let mut state = self.state.lock();
        (state.kernel, state.pages) = (None, None);
    }

    /// Whether it has not, since it opened the file last.
    pub fn keeps_pages(&self) -> bool {
        self.state.lock().kernel.is_some()
    }
}
