//! Lends an open file to programs of this node.

use super::file::LendingKey;
use super::{DataEngine, FileData};
use std::sync::Arc;

/// A file that is open on this node, as programs may be lent it.
#[derive(Clone)]
pub struct Lendable {
    engine: Arc<DataEngine>,
    file: Arc<FileData>,
}

impl Lendable {
    pub(crate) fn new(engine: &Arc<DataEngine>, file: &Arc<FileData>) -> Self {
        Self { engine: engine.clone(), file: file.clone() }
    }

    /// By which programs find what is lent; the same until the file is not open any more. None when nothing will be.
    pub fn key(&self) -> Option<LendingKey> {
        self.file.lending_key(self.engine.lender.as_ref()?)
    }

    /// A program has read these bytes, of so many that it wanted, and may do so by itself from now on, if they are in one frame;
    /// whether they are.
    pub fn lend(&self, offset: u64, length: usize, wanted: u32) -> bool {
        self.file.lend(offset, length, wanted, self.engine.runtime.now())
    }

    /// Lends the content of a file that lies in its inode record, which has just come with it, and shows its end: before it is read,
    /// where the read would be no access that this node must count. It waits for no frame.
    pub fn lend_small(&self) {
        let now = self.engine.runtime.now();
        let Some(lacks_frame) = self.file.lends_inline(now) else { return };
        let frame = if lacks_frame { self.engine.frame_now() } else { None };
        self.file.lend_inline(frame, now, |unit| self.engine.frames.enter(&self.file, unit, 0));
    }

    /// Recalls all that is lent of it.
    pub fn recall(&self) {
        self.file.recall();
    }
}
