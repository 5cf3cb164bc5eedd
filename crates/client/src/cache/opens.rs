//! Files that are open in the cache view on this node.

use crate::data::{FileData, Told};
use crate::handles::Handles;
use crate::vfs::{FileNumber, HandleNumber, OpenMode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::wire::cache::Stamp;
use tameike_io::shared::SharedFile;

/// One handle.
pub(super) struct OpenFile {
    pub number: FileNumber,
    pub data: Arc<FileData>,
    /// The shared file, opened as the program asked: it has checked the rights, and outlives the name.
    pub shared: Arc<dyn SharedFile>,
    /// Path of the shared file, which follows renames; shared by all handles of the file.
    pub path: Arc<Mutex<Vec<u8>>>,
    pub stamp: Stamp,
    pub mode: OpenMode,
    /// Whether the coordinator knows that this handle writes.
    pub announced: AtomicBool,
    /// What its holder knows of writes that went wrong.
    pub told: Told,
    /// Whether the file has lost its last name: reads and writes then pass through to the shared file.
    orphan: AtomicBool,
    /// Whether it was opened when it was an orphan already.
    pub is_reopened: bool,
}

impl OpenFile {
    pub(super) fn new(
        number: FileNumber,
        data: Arc<FileData>,
        shared: Arc<dyn SharedFile>,
        path: Arc<Mutex<Vec<u8>>>,
        stamp: Stamp,
        mode: OpenMode,
    ) -> Self {
        let (announced, orphan) = (AtomicBool::new(false), AtomicBool::new(false));
        let told = data.told();
        Self { number, data, shared, path, stamp, mode, announced, told, orphan, is_reopened: false }
    }

    /// One more handle of an orphan.
    pub(super) fn again(&self, mode: OpenMode) -> Self {
        let (data, shared, path) = (self.data.clone(), self.shared.clone(), self.path.clone());
        let open = Self::new(self.number, data, shared, path, self.stamp, mode);
        open.set_orphan();
        Self { is_reopened: true, ..open }
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    pub(super) fn set_orphan(&self) {
        self.orphan.store(true, Ordering::Release);
    }

    /// The name was not removed after all.
    pub(super) fn set_named(&self) {
        self.announced.store(false, Ordering::Release);
        self.orphan.store(false, Ordering::Release);
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Opens(Handles<Arc<OpenFile>>);

impl Opens {
    pub(super) fn add(&self, open: OpenFile) -> HandleNumber {
        self.0.add(open.number, |_| Arc::new(open))
    }

    pub(super) fn get(&self, handle: HandleNumber) -> Option<Arc<OpenFile>> {
        self.0.get(handle)
    }

    pub(super) fn remove(&self, handle: HandleNumber) -> Option<Arc<OpenFile>> {
        self.0.remove(handle).map(|(_, open, _)| open)
    }

    /// All handles of a file.
    pub(super) fn all_of(&self, file: FileNumber) -> Vec<Arc<OpenFile>> {
        self.0.all_of(file)
    }

    pub(super) fn of_file(&self, file: FileNumber) -> Option<Arc<OpenFile>> {
        self.0.find(file, |_| true)
    }

    /// Gives every open file the path that `path` tells for it now.
    pub(super) fn refresh_paths(&self, path: impl Fn(FileNumber) -> Option<Vec<u8>>) {
        for (file, open) in self.0.all() {
            if let Some(new) = path(file) {
                *open.path.lock() = new;
            }
        }
    }
}
