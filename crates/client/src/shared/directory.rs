//! Cached state of the directories that this node has looked up.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::limits::DIRECTORY_LIFETIME;
use tameike_core::wire::meta::DirStat;
use tameike_core::{Attr, InodeId, NodeId};

/// Cached state of one directory: the last reply of its own home and of each node with children, with the time of receipt.
#[derive(Default)]
struct CachedDirectory {
    attr: Option<(Attr, Duration)>,
    parts: BTreeMap<NodeId, (DirStat, Duration)>,
    sharded: bool,
}

impl CachedDirectory {
    fn set_sharded(&mut self, sharded: bool) {
        if std::mem::replace(&mut self.sharded, sharded) != sharded {
            self.parts.clear(); // entries have moved
        }
    }
}

/// Cached state of the directories that the frontend references; [`Self::forget`] removes an entry.
#[derive(Default)]
pub(super) struct DirectoryCache {
    known: Mutex<BTreeMap<InodeId, CachedDirectory>>,
    /// Time of this node's last rename. Older attributes may be those of the renamed directory.
    renamed: Mutex<Duration>,
}

impl DirectoryCache {
    pub(super) fn is_sharded(&self, dir: InodeId) -> bool {
        self.known.lock().get(&dir).is_some_and(|cached| cached.sharded)
    }

    pub(super) fn learn(&self, attr: &Attr, now: Duration) {
        self.known.lock().entry(attr.inode).or_default().attr = Some((attr.clone(), now));
    }

    /// Returns the last attributes from the directory's home, of any age. New children inherit from them.
    pub(super) fn own_attr(&self, dir: InodeId) -> Option<Attr> {
        Some(self.known.lock().get(&dir)?.attr.as_ref()?.0.clone())
    }

    /// Returns the attributes of [`Self::own_attr`] if they are fresh and no rename followed.
    pub(super) fn fresh_attr(&self, dir: InodeId, now: Duration) -> Option<Attr> {
        let directories = self.known.lock();
        let (attr, received) = directories.get(&dir)?.attr.as_ref()?;
        (is_fresh(*received, now) && *received > *self.renamed.lock()).then(|| attr.clone())
    }

    pub(super) fn set_sharded(&self, dir: InodeId, sharded: bool) {
        self.known.lock().entry(dir).or_default().set_sharded(sharded);
    }

    /// Stores the stat of the children that `node` keeps.
    pub(super) fn set_part(&self, dir: InodeId, node: NodeId, part: DirStat, now: Duration) {
        let mut directories = self.known.lock();
        let cached = directories.entry(dir).or_default();
        cached.set_sharded(part.sharded);
        // Replies may arrive out of order.
        let newer =
            |(old, received): &(DirStat, Duration)| is_fresh(*received, now) && old.changed > part.changed;
        if !cached.parts.get(&node).is_some_and(newer) {
            cached.parts.insert(node, (part, now));
        }
    }

    /// Invalidates the children's stats after this node has changed the directory.
    pub(super) fn changed(&self, dir: InodeId) {
        if let Some(cached) = self.known.lock().get_mut(&dir) {
            cached.parts.clear();
        }
    }

    /// Invalidates what homes that have moved to other nodes have replied. Any of them may have a part of a sharded directory.
    pub(super) fn homes_moved(&self, is_moved: impl Fn(InodeId) -> bool) {
        for (dir, cached) in &mut *self.known.lock() {
            if cached.sharded || is_moved(*dir) {
                cached.attr = None;
                cached.parts.clear();
            }
        }
    }

    /// Sums the stats of all `nodes` with children of the directory. Returns None unless all are fresh.
    pub(super) fn fresh_stat(&self, dir: InodeId, nodes: &[NodeId], now: Duration) -> Option<DirStat> {
        let directories = self.known.lock();
        let cached = directories.get(&dir)?;
        let mut all = DirStat::default();
        for node in nodes {
            let (part, received) = cached.parts.get(node)?;
            all.gather(is_fresh(*received, now).then_some(*part)?);
        }
        Some(all)
    }

    /// Records a rename by this node: if it moved a directory, it changed the directory's times.
    pub(super) fn renamed(&self, now: Duration) {
        *self.renamed.lock() = now;
    }

    pub(super) fn forget(&self, dir: InodeId) {
        self.known.lock().remove(&dir);
    }
}

fn is_fresh(received: Duration, now: Duration) -> bool {
    now.saturating_sub(received) < DIRECTORY_LIFETIME
}
