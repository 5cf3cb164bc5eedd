//! Change detection: whether a stamp of the shared file that differs from the record shows a change by another program.
//!
//! A file system may show the effect of a flush late and out of order. A mount of Gfarm shows stale attributes for a second; and on Gfarm
//! the close by the writing node sets the size, the mtime (the time of the write) and the ctime, also after the flush has set another
//! mtime. Such stamps are distinguished from changes by the times at which flushes wrote, and by the ctime that the last flush left.

use super::record::Record;
use std::ops::RangeInclusive;
use tameike_core::Timestamp;
use tameike_core::wire::cache::Stamp;

/// How long after a flush the shared file may show its old attributes.
const STALE_SECONDS: i64 = 10;
/// Flushes this close to each other count as one: the effect of the first may show after the second.
const APART_SECONDS: i64 = 1;

/// What a stamp shows that differs from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The shared file as it was before.
    Stale,
    /// The job's own write.
    Own,
    /// The job's own write with a later chmod or rename; or a change by another program that has set the mtime back.
    Ambiguous,
    /// A change by another program.
    Changed,
}

/// When the job's flushes have written to a shared file.
#[derive(Clone, Debug)]
pub(super) struct OwnWrites {
    times: RangeInclusive<Timestamp>,
    /// How the last flush left the file, if that flush has written all.
    left: Option<Stamp>,
}

impl OwnWrites {
    /// Adds a flush to those that are `known`.
    pub(super) fn new(known: Option<Self>, began: Timestamp, ended: Timestamp, left: Option<Stamp>) -> Self {
        let is_near =
            |known: &Self| known.left.is_none() || began.seconds - known.times.end().seconds <= APART_SECONDS;
        let first = known.filter(is_near).map_or(began, |known| *known.times.start());
        Self { times: first..=ended, left }
    }

    /// Judges a stamp that was seen `now` and differs from the record.
    pub(super) fn judge(&self, record: &Record, stamp: &Stamp, now: Timestamp) -> Verdict {
        let is_recent = now.seconds <= self.times.end().seconds + STALE_SECONDS;
        let known = record.stamp.size;
        let end = if record.dirty { record.size.max(known) } else { known };
        let is_own_size = (known..=end).contains(&stamp.size);
        let Some(left) = self.left else {
            let is_own_time = self.times.contains(&stamp.mtime);
            let is_old = (is_own_time && stamp.size < known) || stamp.ctime < record.stamp.ctime;
            return match (is_own_time && is_own_size, is_old && is_recent) {
                (true, _) => Verdict::Own,
                (false, true) => Verdict::Stale,
                (false, false) => Verdict::Changed,
            };
        };
        // A change after the flush has a later ctime.
        let is_before = stamp.ctime < left.ctime;
        let is_own_time = (*self.times.start()..left.ctime).contains(&stamp.mtime);
        if is_before && is_own_time && is_own_size {
            Verdict::Own
        } else if is_recent && (is_before || *stamp == left) {
            Verdict::Stale
        } else if !is_before && is_own_time && stamp.size == known {
            Verdict::Ambiguous
        } else {
            Verdict::Changed
        }
    }
}
