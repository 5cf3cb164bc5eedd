//! Version of a file's content that this node knows: its size, its generation, and the content that lies in the inode record.

use super::FileData;
use crate::data::home::FileVersion;
use tameike_core::{Errno, Fault, Generation, Result};

/// The known version of a file's content.
#[derive(Default)]
pub(super) struct ContentVersion {
    /// Size as this node sees it, its own writes included.
    size: u64,
    generation: Generation,
    /// Whether the content lies in the inode record, which it leaves for good.
    is_inline: bool,
    /// Inline content of `generation`.
    inline: Option<Vec<u8>>,
    /// Generation of which all but this node's unsynced writes is durable.
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

    /// Whether the content lies in the inode record.
    pub(super) fn is_inline(&self) -> bool {
        self.is_inline
    }

    /// The content that lies in the inode record, if it is here.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        self.inline.as_deref().filter(|_| self.is_inline)
    }

    /// Whether the content lies in the inode record, and is not here.
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

    /// Takes over the home's version, except for its size. `is_first` says whether this node knows nothing of the file yet: later,
    /// an answer from before the content has left the inode record does not bring it back there.
    pub(super) fn adopt(&mut self, version: FileVersion, is_first: bool) {
        self.generation = version.generation;
        self.is_inline = version.inline && (self.is_inline || is_first);
        if version.content.is_some() {
            self.inline = version.content;
        }
    }

    /// A write of this node has made a new generation; `is_alone` says whether no other node wrote in between.
    pub(super) fn own_change(&mut self, generation: Generation, is_inline: bool, is_alone: bool) {
        let is_durable = is_alone && self.durable == Some(self.generation);
        self.durable = is_durable.then_some(generation);
        self.inline = None;
        self.generation = generation;
        self.is_inline &= is_inline;
    }
}

impl FileData {
    /// Size as this node sees it.
    pub fn size(&self) -> u64 {
        self.state.lock().content.size
    }

    /// Whether this node knows of a newer version than this one.
    pub fn is_beyond(&self, generation: Generation) -> bool {
        self.state.lock().content.generation > generation
    }

    #[cfg(test)]
    pub(in crate::data) fn generation(&self) -> Generation {
        self.state.lock().content.generation
    }

    /// Whether the content lies in the inode record.
    pub(in crate::data) fn is_inline(&self) -> bool {
        self.state.lock().content.is_inline
    }

    /// The inline content of a unit: all of it is in the first one, and the others are holes.
    pub(in crate::data) fn inline_content(&self, index: u64) -> InlineContent {
        let state = self.state.lock();
        match (state.content.is_inline, index, &state.content.inline) {
            (false, ..) => InlineContent::InUnits,
            (true, 0, None) => InlineContent::Missing,
            (true, 0, Some(content)) => InlineContent::Bytes(content.clone()),
            (true, ..) => InlineContent::Bytes(Vec::new()),
        }
    }

    /// Takes over inline content that the home has sent.
    ///
    /// # Errors
    /// `EPROTO` when the home sent none.
    pub(in crate::data) fn learn_inline(&self, version: FileVersion) -> Result<()> {
        let known = &mut self.state.lock().content;
        if !known.is_inline || version.generation < known.generation {
            // It has left the record, or changed, meanwhile.
            return Ok(());
        }
        known.is_inline = version.inline;
        known.inline = version.content;
        if known.lacks_inline() {
            return Err(Fault::new(Errno::EPROTO, format!("the home sent no content of {}", self.inode)));
        }
        Ok(())
    }

    /// The content has left the inode record.
    pub(in crate::data) fn left_inline(&self) {
        let content = &mut self.state.lock().content;
        (content.is_inline, content.inline) = (false, None);
    }

    /// Whether all but this node's unsynced writes is durable in this version.
    pub(in crate::data) fn is_durable(&self, generation: Generation) -> bool {
        self.state.lock().content.durable == Some(generation)
    }

    /// All of this version is durable.
    pub(in crate::data) fn set_durable(&self, generation: Generation) {
        self.state.lock().content.durable = Some(generation);
    }

    /// Has inline content come with an open.
    #[cfg(test)]
    pub(in crate::data) fn set_inline(&self, content: Vec<u8>) {
        self.state.lock().content.inline = Some(content);
    }
}

/// Content of a unit that lies in the inode record.
pub(in crate::data) enum InlineContent {
    /// The bytes.
    Bytes(Vec<u8>),
    /// The content is inline, and not here any more.
    Missing,
    /// The content is in units.
    InUnits,
}
