//! Files that are open in the cache view on this node.

use crate::data::{FileData, ReportedFaults};
use crate::handles::Handles;
use crate::passthrough::Identity;
use crate::types::{HandleNumber, OpenMode};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tameike_core::InodeId;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::Stamp;
use tameike_io::shared::SharedFile;

/// One handle.
pub(super) struct OpenFile {
    pub file: Identity,
    pub data: Arc<FileData>,
    /// The shared file, opened as the program asked: it has checked the rights, and outlives the name.
    pub shared: Arc<dyn SharedFile>,
    /// Path of the shared file, which follows renames; shared by all handles of the file.
    pub path: Arc<Mutex<Vec<u8>>>,
    pub stamp: Stamp,
    pub mode: OpenMode,
    /// As of which of the file's commits the coordinator knows that this handle writes, counted from 1; 0 stands for never.
    pub announced: AtomicU64,
    /// Units of the file that the coordinator knows it may write to, from the first on.
    pub reach: AtomicU64,
    /// Failures of writes that were reported to its holder.
    pub reported: ReportedFaults,
    /// Whether the file has lost its last name: reads and writes then pass through to the shared file.
    orphan: AtomicBool,
    /// Whether it was opened when it was an orphan already.
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

    /// One more handle of an orphan.
    pub(super) fn again(&self, mode: OpenMode) -> Self {
        let (data, shared, path) = (self.data.clone(), self.shared.clone(), self.path.clone());
        let open = Self::new(self.file, data, shared, path, self.stamp, mode);
        open.set_orphan();
        Self { is_reopened: true, ..open }
    }

    /// Whether the coordinator knows that this handle writes, and has been told of no commit since.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Acquire) == self.data.commits() + 1
    }

    /// Whether [`Self::is_announced`], and that it may write up to byte `end`.
    pub(super) fn is_announced_to(&self, end: u64) -> bool {
        self.is_announced() && end <= self.reach.load(Ordering::Acquire).saturating_mul(UNIT_SIZE as u64)
    }

    /// Whether its holder has written to the file, and may go on.
    pub(super) fn writes(&self) -> bool {
        self.mode.write && self.announced.load(Ordering::Acquire) > 0 && !self.is_orphan()
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    pub(super) fn set_orphan(&self) {
        self.orphan.store(true, Ordering::Release);
    }

    /// Takes the path that `path` tells for the file now, if it has one.
    pub(super) fn refresh_path(&self, path: impl Fn(&Identity) -> Option<Vec<u8>>) {
        if let Some(path) = path(&self.file) {
            *self.path.lock() = path;
        }
    }

    /// The name was not removed after all.
    pub(super) fn set_named(&self) {
        self.announced.store(0, Ordering::Release);
        self.orphan.store(false, Ordering::Release);
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Opens {
    handles: Handles<InodeId, Arc<OpenFile>>,
    /// Files that are being opened: how often, and whether another node has begun to remove them meanwhile.
    opening: Mutex<BTreeMap<InodeId, (usize, bool)>>,
}

/// A file that is being opened.
pub(super) struct Opening<'a> {
    opens: &'a Opens,
    inode: InodeId,
}

impl Opening<'_> {
    /// It is open; whether another node has begun to remove it meanwhile.
    pub(super) fn end(self) -> bool {
        self.opens.opening.lock().get(&self.inode).is_some_and(|(_, removed)| *removed)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut opening = self.opens.opening.lock();
        if let Some((count, _)) = opening.get_mut(&self.inode) {
            *count -= 1;
            if *count == 0 {
                opening.remove(&self.inode);
            }
        }
    }
}

impl Opens {
    /// A file is about to be opened: from now on it is known when another node begins to remove it.
    pub(super) fn begin(&self, inode: InodeId) -> Opening<'_> {
        self.opening.lock().entry(inode).or_default().0 += 1;
        Opening { opens: self, inode }
    }

    /// Another node has begun to remove a file.
    pub(super) fn mark_removed(&self, inode: InodeId) {
        if let Some((_, removed)) = self.opening.lock().get_mut(&inode) {
            *removed = true;
        }
    }

    /// It has not removed it.
    pub(super) fn mark_kept(&self, inode: InodeId) {
        if let Some((_, removed)) = self.opening.lock().get_mut(&inode) {
            *removed = false;
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

    /// All handles of the file that has an inode number, and of those that had it before and are still open.
    pub(super) fn with_number(&self, inode: InodeId) -> Vec<Arc<OpenFile>> {
        self.handles.all_of(inode)
    }

    /// All handles of a file.
    pub(super) fn all_of(&self, file: &Identity) -> Vec<Arc<OpenFile>> {
        let mut opens = self.with_number(file.inode);
        opens.retain(|open| open.file.is(file));
        opens
    }

    /// The oldest handle of a file.
    pub(super) fn of_file(&self, file: &Identity) -> Option<Arc<OpenFile>> {
        self.find_of(file, |_| true)
    }

    /// The oldest handle of a file that fits.
    pub(super) fn find_of(&self, file: &Identity, fits: impl Fn(&OpenFile) -> bool) -> Option<Arc<OpenFile>> {
        self.handles.find(file.inode, |open| open.file.is(file) && fits(open))
    }

    /// A handle of a file that has not lost its last name, as far as this node has taken note of that.
    pub(super) fn named_of(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        self.handles.find(inode, |open| !open.is_orphan())
    }

    /// Files whose holders have written to them, and may go on.
    pub(super) fn writing(&self) -> BTreeSet<InodeId> {
        self.handles
            .all()
            .into_iter()
            .filter(|(_, open)| open.writes())
            .map(|(_, open)| open.data.inode)
            .collect()
    }

    /// Gives every open file the path that `path` tells for it now.
    pub(super) fn refresh_paths(&self, path: impl Fn(&Identity) -> Option<Vec<u8>>) {
        for (_, open) in self.handles.all() {
            open.refresh_path(&path);
        }
    }
}
