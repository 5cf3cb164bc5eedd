//! Version of a file's content that this node knows: its size, its generation and its inline content.

use super::FileData;
use crate::data::home::FileVersion;
use tameike_core::{Errno, Fault, Generation, Result};

/// The known version of a file's content.
#[derive(Default)]
pub(super) struct ContentVersion {
    /// Size as this node sees it, with its own writes.
    size: u64,
    generation: Generation,
    /// True if the content is in the inode record. Once it has moved to units, it never returns.
    is_inline: bool,
    /// Inline content of `generation`.
    inline: Option<Vec<u8>>,
    /// Generation that is durable except for this node's unsynced writes.
    durable: Option<Generation>,
}

impl ContentVersion {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn is_inline(&self) -> bool {
        self.is_inline
    }

    pub(super) fn inline(&self) -> Option<&[u8]> {
        self.inline.as_deref().filter(|_| self.is_inline)
    }

    pub(super) fn lacks_inline(&self) -> bool {
        self.is_inline && self.inline.is_none()
    }

    pub(super) fn forget_inline(&mut self) {
        self.inline = None;
    }

    pub(super) fn truncate_inline(&mut self, size: u64) {
        if let Some(content) = &mut self.inline {
            content.truncate(size as usize);
        }
    }

    /// Adopts the home's version except for its size. Only the first version (`is_first`) may set `inline`: a later one may be a stale
    /// answer from before the content moved to units.
    pub(super) fn adopt(&mut self, version: FileVersion, is_first: bool) {
        self.generation = version.generation;
        self.is_inline = version.inline && (self.is_inline || is_first);
        if version.content.is_some() {
            self.inline = version.content;
        }
    }

    /// Records the new generation that a write of this node created; `is_alone` is true if no other node wrote in between.
    pub(super) fn own_change(&mut self, generation: Generation, is_inline: bool, is_alone: bool) {
        let is_durable = is_alone && self.durable == Some(self.generation);
        self.durable = is_durable.then_some(generation);
        self.inline = None;
        self.generation = generation;
        self.is_inline &= is_inline;
    }
}

impl FileData {
    /// Returns the size as this node sees it.
    pub fn size(&self) -> u64 {
        self.state.lock().content.size
    }

    /// Returns true if this node knows a newer version.
    pub fn is_beyond(&self, generation: Generation) -> bool {
        self.state.lock().content.generation > generation
    }

    #[cfg(test)]
    pub(in crate::data) fn generation(&self) -> Generation {
        self.state.lock().content.generation
    }

    pub(in crate::data) fn is_inline(&self) -> bool {
        self.state.lock().content.is_inline
    }

    /// Returns the inline content of a unit: the first unit has all of it, the others are holes.
    pub(in crate::data) fn inline_content(&self, index: u64) -> InlineContent {
        let state = self.state.lock();
        match (state.content.is_inline, index, &state.content.inline) {
            (false, ..) => InlineContent::InUnits,
            (true, 0, None) => InlineContent::Missing,
            (true, 0, Some(content)) => InlineContent::Bytes(content.clone()),
            (true, ..) => InlineContent::Bytes(Vec::new()),
        }
    }

    /// Adopts inline content that the home has sent. Fails with `EPROTO` if it sent none.
    pub(in crate::data) fn learn_inline(&self, version: FileVersion) -> Result<()> {
        let known = &mut self.state.lock().content;
        if !known.is_inline || version.generation < known.generation {
            // The content has moved to units or changed meanwhile.
            return Ok(());
        }
        known.is_inline = version.inline;
        known.inline = version.content;
        if known.lacks_inline() {
            return Err(Fault::new(Errno::EPROTO, format!("the home sent no content of {}", self.inode)));
        }
        Ok(())
    }

    pub(in crate::data) fn left_inline(&self) {
        let content = &mut self.state.lock().content;
        (content.is_inline, content.inline) = (false, None);
    }

    /// Returns true if this version is durable except for this node's unsynced writes.
    pub(in crate::data) fn is_durable(&self, generation: Generation) -> bool {
        self.state.lock().content.durable == Some(generation)
    }

    /// Records that all of this version is durable.
    pub(in crate::data) fn set_durable(&self, generation: Generation) {
        self.state.lock().content.durable = Some(generation);
    }

    /// Stores inline content, as an open does.
    #[cfg(test)]
    pub(in crate::data) fn set_inline(&self, content: Vec<u8>) {
        self.state.lock().content.inline = Some(content);
    }
}

/// Inline content of a unit.
pub(in crate::data) enum InlineContent {
    /// The content.
    Bytes(Vec<u8>),
    /// The content is inline, and this node no longer has it.
    Missing,
    /// The content is in units.
    InUnits,
}
