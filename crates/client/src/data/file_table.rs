//! Table of the files whose data this node has: those that are open, and those that are still cached.

use super::file::FileData;
use super::home::{FileVersion, Home};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::{InodeId, Layout, MapEpoch};

/// Files by inode.
#[derive(Default)]
pub(super) struct FileTable(Mutex<BTreeMap<InodeId, Arc<FileData>>>);

impl FileTable {
    /// Returns the file's data for another open handle under the home map of an epoch, and true if the kernel's cached pages are still valid.
    pub(super) fn open(
        &self,
        inode: InodeId,
        (layout, epoch): (Layout, MapEpoch),
        home: Home,
        version: FileVersion,
        beside_kernel: bool,
    ) -> (Arc<FileData>, bool) {
        let mut files = self.0.lock();
        let make = || Arc::new(FileData::new(inode, layout, home.clone(), epoch));
        let file = files.entry(inode).or_insert_with(make).clone();
        // The lock is still held: otherwise a concurrent drop of the idle file could leave two entries.
        let kept = file.opened(home, version, beside_kernel);
        (file, kept)
    }

    pub(super) fn find(&self, inode: InodeId) -> Option<Arc<FileData>> {
        self.0.lock().get(&inode).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<FileData>> {
        self.0.lock().values().cloned().collect()
    }

    /// Drops a file that has no open handle, nothing in memory, and nothing in flight.
    pub(super) fn drop_if_idle(&self, file: &FileData) {
        let mut files = self.0.lock();
        if file.is_idle() {
            files.remove(&file.inode);
        }
    }
}
