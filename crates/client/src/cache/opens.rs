//! Open files of the cache view on this node.

use crate::data::{FileData, ReportedFaults};
use crate::handles::Handles;
use crate::passthrough::Identity;
use crate::types::{HandleNumber, OpenMode};
use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tameike_core::InodeId;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::reclaim;
use tameike_io::shared::SharedFile;

/// One open handle.
pub(super) struct OpenFile {
    pub file: Identity,
    pub data: Arc<FileData>,
    /// The shared file, opened with the program's access mode: the open checks permissions, and the descriptor outlives the name.
    pub shared: Arc<dyn SharedFile>,
    /// Path of the shared file. It follows renames, and all handles of the file share it.
    pub path: Arc<Mutex<Vec<u8>>>,
    pub stamp: Stamp,
    pub mode: OpenMode,
    /// Commit count plus 1 at the last announcement of writes to the coordinator; 0 if there was none.
    pub announced: AtomicU64,
    /// Number of units from the start of the file that are announced for writes.
    pub reach: AtomicU64,
    /// Write failures already reported through this handle.
    pub reported: ReportedFaults,
    /// True if the file has lost its last name: reads and writes then pass through to the shared file.
    orphan: AtomicBool,
    /// True if the handle was opened when the file was already an orphan.
    pub is_reopened: bool,
}

impl OpenFile {
    pub(super) fn new(
        file: Identity,
        data: Arc<FileData>,
        shared: Arc<dyn SharedFile>,
        path: Arc<Mutex<Vec<u8>>>,
        stamp: Stamp,
        mode: OpenMode,
    ) -> Self {
        let (announced, reach, orphan) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let reported = data.reported_faults();
        Self { file, data, shared, path, stamp, mode, announced, reach, reported, orphan, is_reopened: false }
    }

    /// Creates another handle of an orphan.
    pub(super) fn again(&self, mode: OpenMode) -> Self {
        let (data, shared, path) = (self.data.clone(), self.shared.clone(), self.path.clone());
        let open = Self::new(self.file, data, shared, path, self.stamp, mode);
        open.set_orphan();
        Self { is_reopened: true, ..open }
    }

    /// Returns true if the handle's writes are announced and no commit has followed.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Acquire) == self.data.commits() + 1
    }

    pub(super) fn is_announced_to(&self, end: u64) -> bool {
        self.is_announced() && end <= self.reach.load(Ordering::Acquire).saturating_mul(UNIT_SIZE as u64)
    }

    /// Returns true if the handle has written to the file and may write more.
    pub(super) fn writes(&self) -> bool {
        self.mode.write && self.announced.load(Ordering::Acquire) > 0 && !self.is_orphan()
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    pub(super) fn set_orphan(&self) {
        self.orphan.store(true, Ordering::Release);
    }

    pub(super) fn refresh_path(&self, path: impl Fn(&Identity) -> Option<Vec<u8>>) {
        if let Some(path) = path(&self.file) {
            *self.path.lock() = path;
        }
    }

    /// Resets the orphan state after a removal that failed.
    pub(super) fn set_named(&self) {
        self.announced.store(0, Ordering::Release);
        self.orphan.store(false, Ordering::Release);
    }
}

/// All open handles.
#[derive(Default)]
pub(super) struct Opens {
    handles: Handles<InodeId, Arc<OpenFile>>,
    opening: Mutex<BTreeMap<InodeId, InProgress>>,
}

/// Opens in progress of one file.
struct InProgress {
    count: usize,
    /// True if another node has begun to remove the file meanwhile.
    is_removed: bool,
    /// Of the last of them.
    path: Vec<u8>,
    stamp: Stamp,
}

/// An open in progress.
pub(super) struct Opening<'a> {
    opens: &'a Opens,
    inode: InodeId,
}

impl Opening<'_> {
    /// Ends the open. Returns true if another node has begun to remove the file meanwhile.
    pub(super) fn end(self) -> bool {
        self.opens.opening.lock().get(&self.inode).is_some_and(|file| file.is_removed)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut opening = self.opens.opening.lock();
        if let Entry::Occupied(mut file) = opening.entry(self.inode) {
            file.get_mut().count -= 1;
            if file.get().count == 0 {
                file.remove();
            }
        }
    }
}

impl Opens {
    /// Begins an open: removals by other nodes are recorded from now on.
    pub(super) fn begin(&self, inode: InodeId, path: &[u8], stamp: Stamp) -> Opening<'_> {
        let mut opening = self.opening.lock();
        let new = || InProgress { count: 0, is_removed: false, path: Vec::new(), stamp };
        let file = opening.entry(inode).or_insert_with(new);
        file.count += 1;
        (file.path, file.stamp) = (path.to_vec(), stamp);
        Opening { opens: self, inode }
    }

    /// The files that are open or being opened and have names, each once.
    pub(super) fn named(&self, wanted: impl Fn(InodeId) -> bool) -> Vec<reclaim::OpenFile> {
        let mut named = BTreeMap::new();
        // An open enters the handles before it leaves this table.
        for (&inode, file) in self.opening.lock().iter().filter(|(inode, _)| wanted(**inode)) {
            named.insert(inode, reclaim::OpenFile { inode, path: file.path.clone(), stamp: file.stamp });
        }
        for (inode, open) in self.handles.all() {
            if wanted(inode) && !open.is_orphan() {
                let path = open.path.lock().clone();
                named.insert(inode, reclaim::OpenFile { inode, path, stamp: open.stamp });
            }
        }
        named.into_values().collect()
    }

    /// Records that another node has begun to remove the file, or that the removal did not happen.
    pub(super) fn set_removed(&self, inode: InodeId, is_removed: bool) {
        if let Some(file) = self.opening.lock().get_mut(&inode) {
            file.is_removed = is_removed;
        }
    }

    pub(super) fn add(&self, open: OpenFile) -> HandleNumber {
        self.handles.add(open.data.inode, |_| Arc::new(open))
    }

    pub(super) fn get(&self, handle: HandleNumber) -> Option<Arc<OpenFile>> {
        self.handles.get(handle)
    }

    pub(super) fn remove(&self, handle: HandleNumber) -> Option<Arc<OpenFile>> {
        self.handles.remove(handle).map(|(_, open, _)| open)
    }

    /// All handles of files with this inode number, including removed files that had it before.
    pub(super) fn with_number(&self, inode: InodeId) -> Vec<Arc<OpenFile>> {
        self.handles.all_of(inode)
    }

    pub(super) fn all_of(&self, file: &Identity) -> Vec<Arc<OpenFile>> {
        let mut opens = self.with_number(file.inode);
        opens.retain(|open| open.file.is(file));
        opens
    }

    pub(super) fn of_file(&self, file: &Identity) -> Option<Arc<OpenFile>> {
        self.find_of(file, |_| true)
    }

    /// The oldest handle of a file for which `fits` returns true.
    pub(super) fn find_of(&self, file: &Identity, fits: impl Fn(&OpenFile) -> bool) -> Option<Arc<OpenFile>> {
        self.handles.find(file.inode, |open| open.file.is(file) && fits(open))
    }

    /// The oldest handle that is not marked as an orphan on this node.
    pub(super) fn named_of(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        self.handles.find(inode, |open| !open.is_orphan())
    }

    /// Files with a handle that has written and may write more.
    pub(super) fn writing(&self) -> BTreeSet<InodeId> {
        let all = self.handles.all().into_iter();
        all.filter(|(_, open)| open.writes()).map(|(inode, _)| inode).collect()
    }

    pub(super) fn refresh_paths(&self, path: impl Fn(&Identity) -> Option<Vec<u8>>) {
        for (_, open) in self.handles.all() {
            open.refresh_path(&path);
        }
    }
}
