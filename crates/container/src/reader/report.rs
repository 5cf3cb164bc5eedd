//! Report of a finished writer to the process that writes the index, which then need not scan the writer's lanes.

use super::Container;
use crate::format::geometry::LaneId;
use crate::index::{IndexEntry, LaneEnd};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum size of an encoded report, in bytes; a larger one is not sent, and the lanes are scanned.
const SIZE_MAX: usize = 16 << 20;
/// Minimum size of an encoded entry.
const ENTRY_SIZE_MIN: usize = 16;
const MAGIC: [u8; 4] = *b"TMKR";

/// The entries of a writer, all synced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    container: u64,
    /// Ends of its lanes.
    ends: Vec<LaneEnd>,
    entries: Vec<IndexEntry>,
}

impl Report {
    /// Encodes the report for a process on a host of the same architecture; `None` if it is too large.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_stdvec(self).ok()?);
        (bytes.len() <= SIZE_MAX).then_some(bytes)
    }

    /// Decodes the bytes of [`Self::encode`]; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, report) = bytes.split_first_chunk()?;
        if *magic == MAGIC { postcard::from_bytes(report).ok() } else { None }
    }
}

impl Container {
    /// The report of a writer of this process that has [ended](Self::end_writer); `None` if it is too large, or if some entries are not
    /// known any more.
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

    /// Adds the entries that another writer of this container reports. Lanes with an unknown earlier part are scanned all the same, so their
    /// reports are ignored.
    pub fn take_report(&mut self, report: Report) {
        let is_usable = report.container == self.superblock().container
            && report.ends.iter().all(|end| end.is_finished && self.follows_known_end(end));
        if !is_usable {
            return;
        }
        self.record_ends(&report.ends);
        report.entries.into_iter().for_each(|entry| self.add(entry));
    }

    /// Records the ends of lanes, as their writers report them.
    pub(super) fn record_ends(&mut self, ends: &[LaneEnd]) {
        self.ends.extend(ends.iter().map(|end| (end.lane, *end)));
        self.known_ends.extend(ends.iter().map(|end| end.lane));
    }

    /// Subfiles that need no scan: the ends of all their lanes are known.
    pub(super) fn complete_subfiles(&self) -> BTreeSet<u32> {
        let lanes = self.superblock().geometry.lanes;
        let has_all = |number: &u32| {
            (0..lanes).all(|lane| self.known_ends.contains(&LaneId { subfile: *number, lane }))
        };
        self.known_ends.iter().map(|lane| lane.subfile).filter(has_all).collect()
    }

    /// Returns true if everything in a lane before the incarnation that ends here, or before a known part of it, is known.
    pub(super) fn follows_known_end(&self, end: &LaneEnd) -> bool {
        let before = self.ends.get(&end.lane).copied().unwrap_or(LaneEnd::none(end.lane));
        let is_first = before.incarnation() == 0 && end.incarnation() == 1;
        let is_next = before.is_finished && end.incarnation() == before.incarnation() + 1;
        let is_same = !before.is_finished
            && end.incarnation() == before.incarnation()
            && end.sequence >= before.sequence;
        is_first || is_next || is_same
    }
}
