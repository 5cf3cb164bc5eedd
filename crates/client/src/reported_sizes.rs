//! Sizes of files that this node has reported to the kernel within the last two seconds.
//!
//! The kernel ignores the attributes of a reply if it has applied others of the file since it sent the request, or was made to drop them.
//! Threads apply replies late on a busy node: an old reply that is applied between a later request and its reply makes the kernel keep the
//! old size until that expires. A program that opens the file then reads to the old end through the page cache. So a file of which two
//! sizes were reported is opened with direct I/O, which does not depend on the kernel's size. Kernels that cannot map such files
//! are made to drop their attributes instead; then a request for attributes by another program, whose reply is just being applied, may
//! be lost.

use crate::types::FileNumber;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::limits::DIRECTORY_LIFETIME;

/// Longest time until the kernel applies the attributes of a reply, on a busy node.
const LATE: Duration = Duration::from_secs(1);
/// Largest number of files in one period.
const FILES_MAX: usize = 1 << 15;

#[derive(Clone, Copy)]
struct Reported {
    size: u64,
    /// When another size than before was reported.
    changed: Option<Duration>,
}

/// The sizes of the current period and of the one before it.
#[derive(Default)]
struct State {
    /// Start of the current period.
    since: Duration,
    current: BTreeMap<FileNumber, Reported>,
    last: BTreeMap<FileNumber, Reported>,
}

impl State {
    fn advance(&mut self, now: Duration) {
        if now >= self.since + LATE || self.current.len() >= FILES_MAX {
            let has_gap = now >= self.since + 2 * LATE;
            self.last = std::mem::take(&mut self.current);
            if has_gap {
                self.last.clear();
            }
            self.since = now;
        }
    }
}

/// Sizes that were reported to the kernel by LOOKUP and GETATTR.
#[derive(Default)]
pub struct ReportedSizes(Mutex<State>);

impl ReportedSizes {
    /// Records that the agent is about to report a size. `now` is the time of the monotonic clock.
    pub fn record(&self, file: FileNumber, size: u64, now: Duration) {
        let mut state = self.0.lock();
        state.advance(now);
        let known = state.current.get(&file).or_else(|| state.last.get(&file)).copied();
        let changed = known.and_then(|known| if known.size == size { known.changed } else { Some(now) });
        state.current.insert(file, Reported { size, changed });
    }

    /// Returns true if the kernel may have a size other than the last reported one.
    pub fn conflict(&self, file: FileNumber, now: Duration) -> bool {
        let mut state = self.0.lock();
        state.advance(now);
        let known = state.current.get(&file).or_else(|| state.last.get(&file));
        known.and_then(|known| known.changed).is_some_and(|changed| now < changed + LATE + DIRECTORY_LIFETIME)
    }

    /// As [`Self::conflict`], until another size is reported. The caller invalidates the kernel's attributes.
    pub fn take_conflict(&self, file: FileNumber, now: Duration) -> bool {
        let conflicts = self.conflict(file, now);
        let State { current, last, .. } = &mut *self.0.lock();
        for reported in [current.get_mut(&file), last.get_mut(&file)].into_iter().flatten() {
            reported.changed = None;
        }
        conflicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sizes_conflict_once_and_for_a_while() {
        let (sizes, file) = (ReportedSizes::default(), FileNumber(7));
        let at = |milliseconds| Duration::from_secs(100) + Duration::from_millis(milliseconds);
        sizes.record(file, 5, at(0));
        sizes.record(file, 5, at(10));
        assert!(!sizes.take_conflict(file, at(20)));
        sizes.record(file, 6, at(900));
        assert!(!sizes.take_conflict(FileNumber(8), at(900)));
        sizes.record(file, 6, at(1100));
        assert!(sizes.conflict(file, at(1200)) && sizes.conflict(file, at(1300)));
        assert!(sizes.take_conflict(file, at(1200)));
        assert!(!sizes.take_conflict(file, at(1200)));
        sizes.record(file, 9, at(1300));
        sizes.record(file, 9, at(2350));
        assert!(sizes.conflict(file, at(2390)), "an old reply may be late");
        assert!(!sizes.conflict(file, at(2410)), "no reply is so late");
        sizes.record(file, 7, at(5000));
        assert!(!sizes.take_conflict(file, at(5000)), "the other size was reported long before");
    }
}
