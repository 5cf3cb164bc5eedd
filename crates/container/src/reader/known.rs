//! What a process that has opened a container tells others that open it at the same moment, so that they need not look for themselves.
//!
//! ```text
//! 0            32
//! +------------+------+
//! | superblock | Seen | postcard
//! +------------+------+
//! ```

use super::super::index::{INDEX_NAME, Index};
use super::Container;
use crate::format::superblock;
use crate::format::superblock::{SIZE, Superblock};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tameike_core::wire::cache::Stamp;
use tameike_io::shared::SharedFs;

/// What was found of a container: either it is empty, or its index has all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    superblock: Superblock,
    seen: Seen,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    /// Files with content of others.
    outside: u64,
    /// What the file of the index was like or, where there is none, that of the superblock.
    stamp: Stamp,
    index: Option<SeenIndex>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SeenIndex {
    /// [`Index::sum`].
    sum: u32,
    /// All of it, unless that is much.
    #[serde(with = "serde_bytes")]
    bytes: Option<Vec<u8>>,
}

impl Known {
    /// For others on hosts like this one.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.superblock.encode(0).to_vec();
        // Into memory nothing can fail.
        bytes.extend(postcard::to_stdvec(&self.seen).unwrap_or_default());
        bytes
    }

    /// What [`Self::encode`] told; nothing for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (superblock, seen) = bytes.split_first_chunk::<SIZE>()?;
        let (superblock, _) = Superblock::decode(superblock).ok()?;
        Some(Self { superblock, seen: postcard::from_bytes(seen).ok()? })
    }

    /// Whether the file that its stamp is of is still as it was.
    fn is_as_it_was(&self, fs: &dyn SharedFs) -> bool {
        let name = if self.seen.index.is_some() { INDEX_NAME } else { superblock::NAME };
        fs.stat(name).is_ok_and(|stat| stat.stamp() == self.seen.stamp)
    }
}

impl Container {
    /// What others may be told: nothing where they have to look for what was added, or is damaged.
    pub fn known(&self) -> Option<Known> {
        let is_plain = self.added.is_empty() && self.damage.is_empty() && self.refused.is_empty();
        let has_all = match &self.index {
            Some(index) => {
                index.lanes().iter().all(|end| end.is_finished) && self.ends().len() == index.lanes().len()
            }
            None => self.ends().is_empty(),
        };
        if !is_plain || !has_all || self.is_by_records {
            return None;
        }
        let stamp = match &self.index {
            Some(index) => index.stamp(),
            None => self.records.fs().stat(superblock::NAME).ok()?.stamp(),
        };
        let index = self.index.as_ref().map(|index| SeenIndex { sum: index.sum(), bytes: index.told() });
        let seen = Seen { outside: self.outside as u64, stamp, index };
        Some(Known { superblock: self.superblock(), seen })
    }

    /// Opens a container of which another process has told; nothing where that is not what is here: then it is to be opened as ever.
    pub fn open_known(fs: Arc<dyn SharedFs>, known: &Known) -> Option<Self> {
        let Known { superblock, seen: Seen { outside, stamp, index } } = known;
        let index = match index {
            Some(SeenIndex { bytes: Some(bytes), .. }) if known.is_as_it_was(&*fs) => {
                Some(Index::of_told(bytes.clone(), *stamp, superblock.container).ok()?)
            }
            // It tells which container it is of.
            Some(SeenIndex { sum, .. }) => {
                let index = Index::of_container(&*fs, superblock.container).ok()?;
                Some(index.filter(|index| index.sum() == *sum)?)
            }
            None => {
                let is_it = || Superblock::read(&*fs).is_ok_and(|found| found == *superblock);
                (known.is_as_it_was(&*fs) || is_it()).then_some(None)?
            }
        };
        Some(Self { outside: *outside as usize, ..Self::unseen(fs, *superblock, index, false) })
    }
}
