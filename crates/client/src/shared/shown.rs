//! Publication of file names in memory shared with programs, which then stat without a request.
//!
//! A name is published while this node holds its lease, no handle is open here, and the attributes include all effects of closed handles.
//! An open hides the name; any other change also ends the lease.

use super::SharedView;
use crate::data::{FileData, dense_blocks};
use crate::types::{FileNumber, Found};
use crate::vfs::SharedNames;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::meta::EntryName;
use tameike_core::{Attr, FileKind, InodeId, Result};

/// The publisher of one view's names.
pub(super) struct Shown {
    names: Arc<dyn SharedNames>,
    root: InodeId,
}

impl Shown {
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

    pub(super) fn limit(&self, until: Duration) {
        self.names.limit(until);
    }

    pub(super) fn hide(&self, entry: &EntryName) {
        self.names.hide(number(self.root, entry.dir), &entry.name);
    }
}

/// The frontend's number of an inode in the view with the root directory `root`.
pub(super) fn number(root: InodeId, inode: InodeId) -> FileNumber {
    if inode == root { FileNumber::ROOT } else { FileNumber(inode.0) }
}

impl SharedView {
    pub(super) fn show_names_in(&self, names: Arc<dyn SharedNames>) {
        self.leases.show_in(Shown::new(names, self.root));
    }

    /// Publishes the file if its name is leased and its attributes stay valid until it is hidden.
    pub(super) fn show_file(&self, inode: InodeId) {
        self.leases.show(inode, |attr| self.settle(attr));
    }

    /// Completes attributes as [`Self::complete`] does, but without requests. Returns false if that is impossible or the file is in use
    /// here.
    fn settle(&self, attr: &mut Attr) -> bool {
        if attr.kind != FileKind::File || (attr.sparse && !attr.inline) {
            return false;
        }
        // An open registers in the engine first and hides the name later, so one of both checks sees it.
        if self.engine.find(attr.inode).is_some_and(|file| !file.is_settled(attr.generation)) {
            return false;
        }
        self.closer.show_accesses(attr);
        attr.blocks = dense_blocks(attr.size);
        true
    }

    pub(super) async fn flush_file(&self, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let flushed = self.engine.flush(file, durable).await;
        self.note_writes(file);
        flushed
    }

    /// Updates the lease after a flush. If the home reported attributes that include the writes, the lease continues with them; otherwise
    /// it ends.
    pub(super) fn note_writes(&self, file: &FileData) {
        if !file.is_written() {
            return;
        }
        match file.reported_attr() {
            Some(attr) => self.leases.wrote(attr),
            None => self.leases.changed(file.inode),
        }
    }
}
