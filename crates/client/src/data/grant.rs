//! Lends open files to programs of this node.

use super::file::{FileData, FrameGranter, GrantKey};
use super::frames::FrameCache;
use std::sync::Arc;
use tameike_io::Runtime;

/// Lends what is in the frames of a view.
pub(super) struct FileGranter {
    runtime: Runtime,
    frames: Arc<FrameCache>,
    /// None where no frames are lent.
    lender: Option<Arc<dyn FrameGranter>>,
}

impl FileGranter {
    pub(super) fn new(
        runtime: Runtime,
        frames: Arc<FrameCache>,
        lender: Option<Arc<dyn FrameGranter>>,
    ) -> Self {
        Self { runtime, frames, lender }
    }
}

/// A file that is open on this node, as programs may be lent it.
#[derive(Clone)]
pub struct Grantable {
    lender: Arc<FileGranter>,
    file: Arc<FileData>,
}

impl Grantable {
    pub(super) fn new(lender: &Arc<FileGranter>, file: &Arc<FileData>) -> Self {
        Self { lender: lender.clone(), file: file.clone() }
    }

    /// By which programs find what is lent; the same until the file is not open any more. None when nothing will be.
    pub fn key(&self) -> Option<GrantKey> {
        self.file.lending_key(self.lender.lender.as_ref()?)
    }

    /// A program has read these bytes, of so many that it wanted, and may do so by itself from now on, if they are in one frame;
    /// whether they are.
    pub fn grant(&self, offset: u64, length: usize, wanted: u32) -> bool {
        self.file.grant(offset, length, wanted, self.lender.runtime.now())
    }

    /// Lends the content of a file that lies in its inode record, which has just come with it, and shows its end: before it is read,
    /// where the read would be no access that this node must count. It waits for no frame.
    pub fn lend_small(&self) {
        let now = self.lender.runtime.now();
        let Some(lacks_frame) = self.file.lends_inline(now) else { return };
        let frame = if lacks_frame { self.lender.frames.take_now() } else { None };
        self.file.lend_inline(frame, now, |unit| self.lender.frames.enter(&self.file, unit, 0));
    }

    /// Recalls all that is lent of it.
    pub fn revoke(&self) {
        self.file.revoke();
    }
}
