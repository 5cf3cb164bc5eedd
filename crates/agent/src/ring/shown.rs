//! Names of one view that programs look up without asking.

use super::convert::status_of;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Found, ShownNames};
use tameike_ring::server::NameTable;

/// Where the names of one view are shown.
pub(crate) struct ShownView {
    table: Arc<NameTable>,
    /// Its index among those that programs were told of.
    view: usize,
}

impl ShownView {
    pub(super) fn new(table: Arc<NameTable>, view: usize) -> Self {
        Self { table, view }
    }

    /// Shows a directory that programs may search, by its name in the one above: until that time, while changes of
    /// directories have been so many.
    pub(super) fn show_directory(
        &self,
        (above, name): &(FileNumber, Vec<u8>),
        directory: FileNumber,
        changes: u64,
        until: Duration,
    ) {
        self.table.show_directory(self.view, (above.0, name), directory.0, changes, until);
    }

    /// Changes of directories have been so many.
    pub(crate) fn directories_changed(&self, changes: u64) {
        self.table.directories_changed(self.view, changes);
    }
}

impl ShownNames for ShownView {
    fn is_used(&self) -> bool {
        self.table.is_used()
    }

    fn show(&self, dir: FileNumber, name: &[u8], found: &Found, until: Duration) -> bool {
        self.table.show_file(self.view, dir.0, name, &status_of(found.file, &found.attr), until)
    }

    fn hide(&self, dir: FileNumber, name: &[u8]) {
        self.table.hide_file(self.view, dir.0, name);
    }
}
