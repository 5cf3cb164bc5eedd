//! Grants of frames of open files to programs of this node.

use super::file::{FileData, FrameGranter, GrantKey};
use super::frames::FrameCache;
use std::sync::Arc;
use tameike_io::Runtime;

/// Grants frames of a view.
pub(super) struct FileGranter {
    runtime: Runtime,
    frames: Arc<FrameCache>,
    /// `None` if the view grants no frames.
    table: Option<Arc<dyn FrameGranter>>,
}

impl FileGranter {
    pub(super) fn new(
        runtime: Runtime,
        frames: Arc<FrameCache>,
        table: Option<Arc<dyn FrameGranter>>,
    ) -> Self {
        Self { runtime, frames, table }
    }
}

/// An open file whose frames programs of this node may be granted.
#[derive(Clone)]
pub struct Grantable {
    granter: Arc<FileGranter>,
    file: Arc<FileData>,
}

impl Grantable {
    pub(super) fn new(granter: &Arc<FileGranter>, file: &Arc<FileData>) -> Self {
        Self { granter: granter.clone(), file: file.clone() }
    }

    /// Returns the key by which programs find the grants; it stays the same while the file is open. `None` if nothing will be granted.
    pub fn key(&self) -> Option<GrantKey> {
        self.file.grant_key(self.granter.table.as_ref()?)
    }

    /// Grants the bytes that a program has just read, out of `wanted` ones. Returns false if they are not in one frame.
    pub fn grant(&self, offset: u64, length: usize, wanted: u32) -> bool {
        self.file.grant(offset, length, wanted, self.granter.runtime.now())
    }

    /// Grants inline content that has just arrived with its inode record, and publishes the end of the file. It does so before the first
    /// read, where that read would be no access that this node must count. It does not wait for a frame.
    pub fn grant_inline(&self) {
        let now = self.granter.runtime.now();
        let Some(lacks_frame) = self.file.can_grant_inline(now) else { return };
        let frame = if lacks_frame { self.granter.frames.take_now() } else { None };
        self.file.grant_inline(frame, now, |unit| self.granter.frames.enter(&self.file, unit, 0));
    }

    /// Revokes all grants of the file.
    pub fn revoke(&self) {
        self.file.revoke();
    }
}
