//! What a writer that has ended tells the process that writes the index, which need not look for it then.

use super::super::index::{IndexEntry, LaneEnd};
use super::Container;
use crate::format::geometry::LaneId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A report is no larger, in bytes, encoded: what is more is looked for.
const SIZE_MAX: usize = 16 << 20;
/// An entry is no smaller, encoded.
const ENTRY_SIZE_MIN: usize = 16;
const MAGIC: [u8; 4] = *b"TMKR";

/// What a writer has put, all of which it has synced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    container: u64,
    /// Where its lanes end.
    ends: Vec<LaneEnd>,
    entries: Vec<IndexEntry>,
}

impl Report {
    /// For a process on a host like this one; nothing where it is too large.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_stdvec(self).ok()?);
        (bytes.len() <= SIZE_MAX).then_some(bytes)
    }

    /// What [`Self::encode`] told; nothing for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, report) = bytes.split_first_chunk()?;
        if *magic == MAGIC { postcard::from_bytes(report).ok() } else { None }
    }
}

impl Container {
    /// What was put to lanes that a writer of this process has [ended](Self::end_writer); nothing where that is too much, or where some of it is not known
    /// any more.
    pub fn report(&self, ends: &[LaneEnd]) -> Option<Report> {
        let lanes: BTreeSet<_> = ends.iter().map(|end| end.lane).collect();
        let own = || self.added.values().filter(|entry| lanes.contains(&entry.lane));
        let is_small = own().nth(SIZE_MAX / ENTRY_SIZE_MIN).is_none();
        let container = self.superblock().container;
        let has_all = self.displaced.is_disjoint(&lanes);
        (is_small && has_all).then(|| Report {
            container,
            ends: ends.to_vec(),
            entries: own().cloned().collect(),
        })
    }

    /// Believes what another writer of this container reports. A lane of which this process does not know all that was there before is looked at all
    /// the same.
    pub fn take_report(&mut self, report: Report) {
        let is_believed = report.container == self.superblock().container
            && report.ends.iter().all(|end| end.is_finished && self.goes_on(end));
        if !is_believed {
            return;
        }
        self.tell_ends(&report.ends);
        report.entries.into_iter().for_each(|entry| self.add(entry));
    }

    /// Writers have told how their lanes end.
    pub(super) fn tell_ends(&mut self, ends: &[LaneEnd]) {
        self.ends.extend(ends.iter().map(|end| (end.lane, *end)));
        self.told.extend(ends.iter().map(|end| end.lane));
    }

    /// Subfiles that need not be looked at: the writer of each of their lanes has told how it ends.
    pub(super) fn told_subfiles(&self) -> BTreeSet<u32> {
        let lanes = self.superblock().geometry.lanes;
        let has_all =
            |number: &u32| (0..lanes).all(|lane| self.told.contains(&LaneId { subfile: *number, lane }));
        self.told.iter().map(|lane| lane.subfile).filter(has_all).collect()
    }

    /// Whether what is known of a lane is all that it had before the life that ends so, or the beginning of that.
    pub(super) fn goes_on(&self, end: &LaneEnd) -> bool {
        let before = self.ends.get(&end.lane).copied().unwrap_or(LaneEnd::none(end.lane));
        let is_first = before.life() == 0 && end.life() == 1;
        let is_next = before.is_finished && end.life() == before.life() + 1;
        let is_same = !before.is_finished && end.life() == before.life() && end.sequence >= before.sequence;
        is_first || is_next || is_same
    }
}
