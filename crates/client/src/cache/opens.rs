//! Files that are open in the cache view on this node.

use crate::data::{FileData, Told};
use crate::vfs::{FileNumber, HandleNumber, OpenMode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

#[derive(Default)]
pub(super) struct Opens {
    handles: Mutex<BTreeMap<HandleNumber, Arc<OpenFile>>>,
    last: AtomicU64,
}

impl Opens {
    pub(super) fn add(&self, open: OpenFile) -> HandleNumber {
        let handle = HandleNumber(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        self.handles.lock().insert(handle, Arc::new(open));
        handle
    }

    pub(super) fn get(&self, handle: HandleNumber) -> Option<Arc<OpenFile>> {
        self.handles.lock().get(&handle).cloned()
    }

    pub(super) fn remove(&self, handle: HandleNumber) -> Option<Arc<OpenFile>> {
        self.handles.lock().remove(&handle)
    }

    /// All handles of a file.
    pub(super) fn all_of(&self, file: FileNumber) -> Vec<Arc<OpenFile>> {
        self.handles.lock().values().filter(|open| open.number == file).cloned().collect()
    }

    pub(super) fn of_file(&self, file: FileNumber) -> Option<Arc<OpenFile>> {
        self.handles.lock().values().find(|open| open.number == file).cloned()
    }

    /// Gives every open file the path that `path` tells for it now.
    pub(super) fn refresh_paths(&self, path: impl Fn(FileNumber) -> Option<Vec<u8>>) {
        let opens: Vec<_> = self.handles.lock().values().cloned().collect();
        for open in opens {
            if let Some(new) = path(open.number) {
                *open.path.lock() = new;
            }
        }
    }
}
