//! What a process that has opened a container tells others that open it at the same moment, so that they need not look for themselves.
//!
//! ```text
//! 0                32        36          40         48
//! +---------------+---------+-----------+----------+
//! | superblock    | 1 if it | sum of    | files    |
//! |               | has an  | the index | outside  |
//! |               | index   | u32       | u64      |
//! +---------------+---------+-----------+----------+
//! ```

use super::super::index::Index;
use super::super::superblock::{SIZE, Superblock};
use super::Container;
use std::sync::Arc;
use tameike_io::shared::SharedFs;

/// What was found of a container: either it is empty, or its index has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    superblock: Superblock,
    /// [`Index::sum`].
    index: Option<u32>,
    outside: u64,
}

impl Known {
    /// Its encoded size, in bytes.
    pub const SIZE: usize = SIZE + 16;

    /// For others on hosts like this one.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..SIZE].copy_from_slice(&self.superblock.encode(0));
        bytes[SIZE..SIZE + 4].copy_from_slice(&u32::from(self.index.is_some()).to_le_bytes());
        bytes[SIZE + 4..SIZE + 8].copy_from_slice(&self.index.unwrap_or(0).to_le_bytes());
        bytes[SIZE + 8..].copy_from_slice(&self.outside.to_le_bytes());
        bytes
    }

    /// What [`Self::encode`] told; nothing for other bytes.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let (superblock, rest) = bytes.split_first_chunk::<SIZE>()?;
        let (superblock, _) = Superblock::decode(superblock).ok()?;
        let (has_index, rest) = rest.split_first_chunk::<4>()?;
        let (sum, rest) = rest.split_first_chunk::<4>()?;
        let index = (u32::from_le_bytes(*has_index) != 0).then_some(u32::from_le_bytes(*sum));
        Some(Self { superblock, index, outside: rest.first_chunk().copied().map(u64::from_le_bytes)? })
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
        let known = Known {
            superblock: self.superblock(),
            index: self.index.as_ref().map(Index::sum),
            outside: self.outside as u64,
        };
        (is_plain && has_all && !self.is_by_records).then_some(known)
    }

    /// Opens a container of which another process has told; nothing where that is not what is here: then it is to be opened as ever.
    pub fn open_known(fs: Arc<dyn SharedFs>, known: &Known) -> Option<Self> {
        let index = match known.index {
            // It tells which container it is of.
            Some(sum) => {
                let index = Index::of_container(&*fs, known.superblock.container).ok()?;
                Some(index.filter(|index| index.sum() == sum)?)
            }
            None => {
                let is_it = Superblock::read(&*fs).is_ok_and(|found| found == known.superblock);
                is_it.then_some(None)?
            }
        };
        Some(Self { outside: known.outside as usize, ..Self::unseen(fs, known.superblock, index, false) })
    }
}
