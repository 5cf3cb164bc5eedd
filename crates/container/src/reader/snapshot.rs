//! The state of a container that one process sends to others of the same job, so that they open the container without reading it.
//!
//! ```text
//! 0            32
//! +------------+-------+
//! | superblock | State | postcard
//! +------------+-------+
//! ```

use super::Container;
use crate::format::superblock::{self, SIZE, Superblock};
use crate::index::{INDEX_NAME, Index};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tameike_core::wire::cache::Stamp;
use tameike_io::shared::SharedFs;

/// State of a container that is empty, or whose index is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    superblock: Superblock,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// Number of files with external content.
    external: u64,
    /// Stamp of the index file or, if there is none, of the superblock's file.
    stamp: Stamp,
    index: Option<IndexSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IndexSnapshot {
    /// Checksum of the index, from [`Index::sum`].
    sum: u32,
    /// The whole index, if it is small.
    #[serde(with = "serde_bytes")]
    bytes: Option<Vec<u8>>,
}

impl Snapshot {
    /// Encodes the state for processes on hosts of the same architecture.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.superblock.encode(0).to_vec();
        // Encoding into memory cannot fail.
        bytes.extend(postcard::to_stdvec(&self.state).unwrap_or_default());
        bytes
    }

    /// Decodes the bytes of [`Self::encode`]; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (superblock, state) = bytes.split_first_chunk::<SIZE>()?;
        let (superblock, _) = Superblock::decode(superblock).ok()?;
        Some(Self { superblock, state: postcard::from_bytes(state).ok()? })
    }

    /// Returns true if the file with the stamp has not changed.
    fn is_as_it_was(&self, fs: &dyn SharedFs) -> bool {
        let name = if self.state.index.is_some() { INDEX_NAME } else { superblock::NAME };
        fs.stat(name).is_ok_and(|stat| stat.stamp() == self.state.stamp)
    }
}

impl Container {
    /// The state for other processes; `None` if they must scan lanes themselves, or if there is damage.
    pub fn snapshot(&self) -> Option<Snapshot> {
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
        let index =
            self.index.as_ref().map(|index| IndexSnapshot { sum: index.sum(), bytes: index.whole_bytes() });
        let state = State { external: self.external as u64, stamp, index };
        Some(Snapshot { superblock: self.superblock(), state })
    }

    /// Opens a container by another process's state; `None` if the container differs, so that the caller must open it as usual.
    pub fn open_snapshot(fs: Arc<dyn SharedFs>, snapshot: &Snapshot) -> Option<Self> {
        let Snapshot { superblock, state: State { external, stamp, index } } = snapshot;
        let index = match index {
            Some(IndexSnapshot { bytes: Some(bytes), .. }) if snapshot.is_as_it_was(&*fs) => {
                Some(Index::from_bytes(bytes.clone(), *stamp, superblock.container).ok()?)
            }
            // The index names its container.
            Some(IndexSnapshot { sum, .. }) => {
                let index = Index::of_container(&*fs, superblock.container).ok()?;
                Some(index.filter(|index| index.sum() == *sum)?)
            }
            None => {
                let is_it = || Superblock::read(&*fs).is_ok_and(|found| found == *superblock);
                (snapshot.is_as_it_was(&*fs) || is_it()).then_some(None)?
            }
        };
        Some(Self { external: *external as usize, ..Self::unseen(fs, *superblock, index, false) })
    }
}
