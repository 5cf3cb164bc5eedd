//! What a node believes about directories it has looked up.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::limits::DIRECTORY_LIFETIME;
use tameike_core::wire::meta::DirStat;
use tameike_core::{Attr, InodeId, NodeId};

/// One directory: what its own home and each home of its children said, and when.
#[derive(Default)]
struct Belief {
    attr: Option<(Attr, Duration)>,
    parts: BTreeMap<NodeId, (DirStat, Duration)>,
    sharded: bool,
}

impl Belief {
    fn set_sharded(&mut self, sharded: bool) {
        if std::mem::replace(&mut self.sharded, sharded) != sharded {
            self.parts.clear(); // entries have moved
        }
    }
}

/// The directories that the frontend holds. Entries go when the frontend forgets them.
#[derive(Default)]
pub(super) struct DirectoryBeliefs {
    known: Mutex<BTreeMap<InodeId, Belief>>,
    /// When this node last renamed something: attributes from before may be those of what was renamed.
    renamed: Mutex<Duration>,
}

impl DirectoryBeliefs {
    pub(super) fn is_sharded(&self, dir: InodeId) -> bool {
        self.known.lock().get(&dir).is_some_and(|belief| belief.sharded)
    }

    /// Takes note of what a directory's home said of it.
    pub(super) fn learn(&self, attr: &Attr, now: Duration) {
        self.known.lock().entry(attr.inode).or_default().attr = Some((attr.clone(), now));
    }

    /// What a directory's home said of it last: what children inherit.
    pub(super) fn own_attr(&self, dir: InodeId) -> Option<Attr> {
        Some(self.known.lock().get(&dir)?.attr.as_ref()?.0.clone())
    }

    /// As [`Self::own_attr`], if it was said just now.
    pub(super) fn fresh_attr(&self, dir: InodeId, now: Duration) -> Option<Attr> {
        let beliefs = self.known.lock();
        let (attr, said) = beliefs.get(&dir)?.attr.as_ref()?;
        (is_fresh(*said, now) && *said > *self.renamed.lock()).then(|| attr.clone())
    }

    pub(super) fn set_sharded(&self, dir: InodeId, sharded: bool) {
        self.known.lock().entry(dir).or_default().set_sharded(sharded);
    }

    /// Takes note of what `home` said of the children that it keeps.
    pub(super) fn set_part(&self, dir: InodeId, home: NodeId, part: DirStat, now: Duration) {
        let mut beliefs = self.known.lock();
        let belief = beliefs.entry(dir).or_default();
        belief.set_sharded(part.sharded);
        // Answers may overtake each other.
        let newer = |(old, said): &(DirStat, Duration)| is_fresh(*said, now) && old.changed > part.changed;
        if !belief.parts.get(&home).is_some_and(newer) {
            belief.parts.insert(home, (part, now));
        }
    }

    /// This node has changed the directory.
    pub(super) fn changed(&self, dir: InodeId) {
        if let Some(belief) = self.known.lock().get_mut(&dir) {
            belief.parts.clear();
        }
    }

    /// What all `homes` of a directory's children said just now, gathered.
    pub(super) fn fresh_stat(&self, dir: InodeId, homes: &[NodeId], now: Duration) -> Option<DirStat> {
        let beliefs = self.known.lock();
        let belief = beliefs.get(&dir)?;
        let mut all = DirStat::default();
        for home in homes {
            let (part, said) = belief.parts.get(home)?;
            all.gather(is_fresh(*said, now).then_some(*part)?);
        }
        Some(all)
    }

    /// This node has renamed something, perhaps a directory, which changes its times.
    pub(super) fn renamed(&self, now: Duration) {
        *self.renamed.lock() = now;
    }

    pub(super) fn forget(&self, dir: InodeId) {
        self.known.lock().remove(&dir);
    }
}

fn is_fresh(said: Duration, now: Duration) -> bool {
    now.saturating_sub(said) < DIRECTORY_LIFETIME
}
