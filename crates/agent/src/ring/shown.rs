//! Shares names of one view with programs, which look them up without a request.

use super::convert::status_of;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Found, SharedNames};
use tameike_ring::server::NameTable;

/// Shared names of one view.
pub(crate) struct ShownView {
    table: Arc<NameTable>,
    /// Index by which programs know the view.
    view: usize,
}

impl ShownView {
    pub(super) fn new(table: Arc<NameTable>, view: usize) -> Self {
        Self { table, view }
    }

    /// Shares a directory that programs may search, by parent and name. The entry is valid until `until` and while the count of
    /// directory changes is `changes`.
    pub(super) fn show_directory(
        &self,
        (above, name): &(FileNumber, Vec<u8>),
        directory: FileNumber,
        changes: u64,
        until: Duration,
    ) {
        self.table.show_directory(self.view, (above.0, name), directory.0, changes, until);
    }

    pub(crate) fn directories_changed(&self, changes: u64) {
        self.table.directories_changed(self.view, changes);
    }
}

impl SharedNames for ShownView {
    fn is_used(&self) -> bool {
        self.table.is_used()
    }

    fn show(&self, dir: FileNumber, name: &[u8], found: &Found, until: Duration) -> bool {
        self.table.show_file(self.view, dir.0, name, &status_of(found.file, &found.attr), until)
    }

    fn hide(&self, dir: FileNumber, name: &[u8]) {
        self.table.hide_file(self.view, dir.0, name);
    }

    fn limit(&self, until: Duration) {
        self.table.limit_files(self.view, until);
    }
}
