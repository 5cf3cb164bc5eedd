//! What a node believes about directories it has looked up.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::wire::meta::DirStat;
use tameike_core::{Attr, InodeId, Layout};

/// How long the counts and times of a directory, gathered from other nodes, are believed.
pub const DIRECTORY_STAT_LIFETIME: Duration = Duration::from_millis(100);

/// What children inherit, and where they live.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Belief {
    pub layout: Layout,
    pub mode: u16,
    pub gid: u32,
    pub wide: bool,
    /// Times and counts, and when they were gathered.
    pub stat: Option<(DirStat, Duration)>,
}

/// The directories that the door holds. Entries go when the door forgets them.
#[derive(Default)]
pub(super) struct DirectoryBeliefs(Mutex<BTreeMap<InodeId, Belief>>);

impl DirectoryBeliefs {
    pub(super) fn get(&self, dir: InodeId) -> Option<Belief> {
        self.0.lock().get(&dir).copied()
    }

    pub(super) fn is_wide(&self, dir: InodeId) -> bool {
        self.get(dir).is_some_and(|belief| belief.wide)
    }

    /// Takes note of a directory's own attributes.
    pub(super) fn learn(&self, attr: &Attr) {
        let mut beliefs = self.0.lock();
        let belief = beliefs.entry(attr.inode).or_default();
        (belief.layout, belief.mode, belief.gid) = (attr.layout, attr.mode, attr.gid);
    }

    pub(super) fn set_wide(&self, dir: InodeId, wide: bool) {
        self.0.lock().entry(dir).or_default().wide = wide;
    }

    pub(super) fn set_stat(&self, dir: InodeId, stat: DirStat, now: Duration) {
        let mut beliefs = self.0.lock();
        let belief = beliefs.entry(dir).or_default();
        belief.wide = stat.wide;
        belief.stat = Some((stat, now));
    }

    /// This node has changed the directory.
    pub(super) fn changed(&self, dir: InodeId) {
        if let Some(belief) = self.0.lock().get_mut(&dir) {
            belief.stat = None;
        }
    }

    pub(super) fn fresh_stat(&self, dir: InodeId, now: Duration) -> Option<DirStat> {
        let (stat, gathered) = self.get(dir)?.stat?;
        (now.saturating_sub(gathered) < DIRECTORY_STAT_LIFETIME).then_some(stat)
    }

    pub(super) fn forget(&self, dir: InodeId) {
        self.0.lock().remove(&dir);
    }
}
