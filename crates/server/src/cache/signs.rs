//! What a look at the shared file tells after flushes of our own.
//!
//! A file system may show what a flush did after the flush has ended, and out of turn. A mount of Gfarm's shows for a second what
//! it has seen; and it is the close of a node that wrote which gives the file its size and the time of the write, as that of the
//! last change of attributes, too, also after the flush has set another one. Such looks are told from changes by others by the
//! times at which flushes wrote, and by the last change of attributes with which the last one left the file.

use super::record::Record;
use std::ops::RangeInclusive;
use tameike_core::Timestamp;
use tameike_core::wire::cache::Stamp;

/// For how long after a flush the shared file may show what it was before.
const SHOWN_OLD_SECONDS: i64 = 10;
/// Flushes this close to each other are one: what the first one did may show after the second.
const APART_SECONDS: i64 = 1;

/// What a shared file that is not as it was left tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Nothing: it is shown as it was before.
    Old,
    /// What the job itself has written.
    Own,
    /// The job's own write, after which somebody has renamed the file or changed its mode; or a change by others with its time set
    /// back.
    Doubtful,
    /// A change by others.
    Change,
}

/// When flushes of our own have written to a shared file.
#[derive(Clone, Debug)]
pub(super) struct Written {
    times: RangeInclusive<Timestamp>,
    /// How the last one left the file, if others are not to do the rest.
    left: Option<Stamp>,
}

impl Written {
    /// A flush has written since `began`, after those that are `known`.
    pub(super) fn new(known: Option<Self>, began: Timestamp, ended: Timestamp, left: Option<Stamp>) -> Self {
        let is_near =
            |known: &Self| known.left.is_none() || began.seconds - known.times.end().seconds <= APART_SECONDS;
        let first = known.filter(is_near).map_or(began, |known| *known.times.start());
        Self { times: first..=ended, left }
    }

    /// What this look, which is not as the record says, tells `now`.
    pub(super) fn sign(&self, record: &Record, look: &Stamp, now: Timestamp) -> Sign {
        let is_recent = now.seconds <= self.times.end().seconds + SHOWN_OLD_SECONDS;
        let known = record.stamp.size;
        let end = if record.dirty { record.size.max(known) } else { known };
        let is_own_size = (known..=end).contains(&look.size);
        let Some(left) = self.left else {
            let is_own_time = self.times.contains(&look.mtime);
            let is_old = (is_own_time && look.size < known) || look.ctime < record.stamp.ctime;
            return match (is_own_time && is_own_size, is_old && is_recent) {
                (true, _) => Sign::Own,
                (false, true) => Sign::Old,
                (false, false) => Sign::Change,
            };
        };
        // What came after the flush has a later change of attributes.
        let is_before = look.ctime < left.ctime;
        let is_own_time = (*self.times.start()..left.ctime).contains(&look.mtime);
        if is_before && is_own_time && is_own_size {
            Sign::Own
        } else if is_recent && (is_before || *look == left) {
            Sign::Old
        } else if !is_before && is_own_time && look.size == known {
            Sign::Doubtful
        } else {
            Sign::Change
        }
    }
}
