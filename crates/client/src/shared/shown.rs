//! Names of files that programs are shown, so that they need not ask.
//!
//! A file is shown while this node holds its name and nothing happens to it here: no handle is open, and all that was done
//! through those that were is in the attributes. An open hides it; what else changes it ends what is held of it.

use super::SharedView;
use crate::data::{FileData, dense_blocks};
use crate::types::{FileNumber, Found};
use crate::vfs::SharedNames;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::meta::EntryName;
use tameike_core::{Attr, FileKind, InodeId, Result};

/// Where a view shows names.
pub(super) struct Shown {
    names: Arc<dyn SharedNames>,
    root: InodeId,
}

impl Shown {
    /// There, for the view with this root.
    pub(super) fn new(names: Arc<dyn SharedNames>, root: InodeId) -> Self {
        Self { names, root }
    }

    pub(super) fn is_used(&self) -> bool {
        self.names.is_used()
    }

    pub(super) fn show(&self, entry: &EntryName, attr: Attr, until: Duration) -> bool {
        let found = Found { file: number(self.root, attr.inode), attr };
        self.names.show(number(self.root, entry.dir), &entry.name, &found, until)
    }

    pub(super) fn hide(&self, entry: &EntryName) {
        self.names.hide(number(self.root, entry.dir), &entry.name);
    }
}

/// The number by which frontends know an inode of the view with this root.
pub(super) fn number(root: InodeId, inode: InodeId) -> FileNumber {
    if inode == root { FileNumber::ROOT } else { FileNumber(inode.0) }
}

impl SharedView {
    pub(super) fn show_names_in(&self, names: Arc<dyn SharedNames>) {
        self.held.show_in(Shown::new(names, self.root));
    }

    /// Shows the file, if its name is held and whoever asked would be told the same until it is hidden.
    pub(super) fn show_file(&self, inode: InodeId) {
        self.held.show(inode, |attr| self.settle(attr));
    }

    /// As [`Self::complete`], where nobody needs to be asked, and nothing is happening to the file.
    fn settle(&self, attr: &mut Attr) -> bool {
        if attr.kind != FileKind::File || (attr.sparse && !attr.inline) {
            return false;
        }
        // Before an open is told, it is found here, or hides what was shown.
        if self.engine.find(attr.inode).is_some_and(|file| !file.is_settled(attr.generation)) {
            return false;
        }
        self.closer.show_accesses(attr);
        attr.blocks = dense_blocks(attr.size);
        true
    }

    pub(super) async fn flush_file(&self, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let flushed = self.engine.flush(file, durable).await;
        self.take_note_of_writes(file);
        flushed
    }

    /// The home may have been told of writes: this node answers for the attributes that it has told since, if it has.
    pub(super) fn take_note_of_writes(&self, file: &FileData) {
        if !file.is_written() {
            return;
        }
        match file.reported_attr() {
            Some(attr) => self.held.wrote(attr),
            None => self.held.changed(file.inode),
        }
    }
}
