//! Cache of directories for path walks, each with the lookup that keeps its number valid.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Vfs};
use tameike_core::Attr;

/// Largest number of cached directories.
const KEPT_MAX: usize = 1 << 10;

/// A counted lookup of a file; dropping it forgets the lookup.
pub(super) struct Lookup<V: Vfs> {
    vfs: Arc<V>,
    pub file: FileNumber,
}

impl<V: Vfs> Lookup<V> {
    pub(super) fn new(vfs: &Arc<V>, file: FileNumber) -> Self {
        Self { vfs: vfs.clone(), file }
    }

    /// Leaves the lookup counted: another owner forgets it.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl<V: Vfs> Drop for Lookup<V> {
    fn drop(&mut self) {
        self.vfs.forget(self.file, 1);
    }
}

/// A directory on a path.
pub(super) struct Directory<V: Vfs> {
    pub file: FileNumber,
    pub attr: Attr,
    /// `None` for directories where paths start, whose lookups the kernel holds.
    _lookup: Option<Lookup<V>>,
}

impl<V: Vfs> Directory<V> {
    pub(super) fn new(file: FileNumber, attr: Attr, lookup: Option<Lookup<V>>) -> Self {
        Self { file, attr, _lookup: lookup }
    }
}

pub(super) type Key = (FileNumber, Vec<u8>);

/// Directories of recent path walks.
pub(super) struct DirectoryCache<V: Vfs>(Mutex<Kept<V>>);

struct Kept<V: Vfs> {
    /// By parent and name; a directory where paths start by its number and an empty name.
    directories: BTreeMap<Key, (Arc<Directory<V>>, Duration)>,
    /// Count of directory changes for which the entries are valid.
    changes: u64,
}

impl<V: Vfs> Default for DirectoryCache<V> {
    fn default() -> Self {
        Self(Mutex::new(Kept { directories: BTreeMap::new(), changes: 0 }))
    }
}

impl<V: Vfs> DirectoryCache<V> {
    pub(super) fn find(&self, key: &Key, changes: u64, now: Duration) -> Option<Arc<Directory<V>>> {
        let mut kept = self.0.lock();
        if kept.changes != changes {
            let old = std::mem::take(&mut kept.directories);
            kept.changes = changes;
            drop(kept);
            drop(old); // outside the lock, as it forgets lookups
            return None;
        }
        let (directory, until) = kept.directories.get(key)?;
        if *until > now {
            return Some(directory.clone());
        }
        let old = kept.directories.remove(key);
        drop(kept);
        drop(old);
        None
    }

    /// Adds a directory that a walk found when the count of changes was `changes`.
    pub(super) fn keep(&self, key: Key, directory: Arc<Directory<V>>, changes: u64, until: Duration) {
        let mut kept = self.0.lock();
        if kept.changes != changes {
            return;
        }
        let old = if kept.directories.len() >= KEPT_MAX {
            std::mem::take(&mut kept.directories)
        } else {
            BTreeMap::new()
        };
        let replaced = kept.directories.insert(key, (directory, until));
        drop(kept);
        drop((old, replaced));
    }
}
