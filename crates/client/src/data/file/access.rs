//! Last access of a file by programs of this node, with `relatime` semantics.
//!
//! A close reports it to the file's home. Until then this node adds it to the attributes itself.

use super::FileData;
use tameike_core::attr::Times;
use tameike_core::{Attr, Timestamp};

/// A read that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Time of the read.
    pub time: Timestamp,
    /// The access time that it replaces.
    pub before: Timestamp,
}

impl Access {
    /// Returns true if a home with these times will certainly take this as the last access.
    pub fn follows(self, times: Times) -> bool {
        times.counts(self.time) && times.access == self.before && times.change < self.time
    }

    /// Adds the access to attributes from the file's home, which may know the access by now. A time that a program has set since takes
    /// precedence.
    pub fn show_in(self, attr: &mut Attr) {
        let times = attr.times();
        if times.counts(self.time) && (times.access == self.before || times.change < self.time) {
            attr.atime = self.time;
        }
    }
}

/// Access and change times of one file, as this node knows them.
#[derive(Default)]
pub(super) struct AccessTimes {
    /// Last access and change; `None` if the shared file system keeps the access time.
    times: Option<Times>,
    /// The last access, if it is not reported yet.
    access: Option<Access>,
}

impl AccessTimes {
    /// Returns true if a read at or after `now` may be the last access.
    pub(super) fn awaits_access(&self, now: Timestamp) -> bool {
        self.times.is_some_and(|times| times.access <= times.change || times.counts(now))
    }

    pub(super) fn changed(&mut self, time: Timestamp) {
        if let Some(times) = &mut self.times {
            times.change = times.change.max(time);
        }
    }

    /// Returns true if the home does not know the last access.
    pub(super) fn has_access(&self) -> bool {
        self.access.is_some()
    }
}

impl FileData {
    /// Records the times that the home reported; [`Access::show_in`] has added the unreported access to them.
    pub fn learn_times(&self, times: Times) {
        let mut state = self.state.lock();
        let written = state.writes.unknown().map_or(times.change, |unknown| unknown.time);
        state.access.times = Some(Times { change: times.change.max(written), ..times });
        state.revoke_for_access(times.change);
    }

    /// Records a read by a program.
    pub fn accessed(&self, now: Timestamp) {
        let known = &mut self.state.lock().access;
        let Some(times) = known.times.filter(|times| times.counts(now)) else { return };
        // This access extends an unreported one, unless a program has set the time in between.
        let unknown = known.access.filter(|unknown| unknown.time == times.access);
        let before = unknown.map_or(times.access, |unknown| unknown.before);
        known.access = Some(Access { time: now, before });
        known.times = Some(Times { access: now, ..times });
    }

    /// Returns the last access, if the home does not know it.
    pub fn unreported_access(&self) -> Option<Access> {
        self.state.lock().access.access
    }

    /// Takes the unreported access. `keep` stores it elsewhere before the file loses it.
    pub fn take_access(&self, keep: impl FnOnce(Access)) -> Option<Access> {
        let known = &mut self.state.lock().access;
        let access = known.access?;
        keep(access);
        known.access = None;
        Some(access)
    }

    /// Drops the last access, which no longer counts.
    pub fn forget_access(&self) {
        self.state.lock().access.access = None;
    }

    pub(in crate::data) fn changed_at(&self, time: Timestamp) {
        self.state.lock().changed_at(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::home::Home;
    use tameike_core::{InodeId, Layout, MapEpoch};

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    /// Opens a file with these times.
    fn opened(access: i64, change: i64) -> FileData {
        let file = FileData::new(InodeId(7), Layout::Striped, Home::Inode, MapEpoch(1));
        learn(&file, access, change);
        file
    }

    fn learn(file: &FileData, access: i64, change: i64) {
        file.learn_times(Times { access: at(access), change: at(change) });
    }

    #[test]
    fn reads_count_once_after_each_change() {
        let file = opened(10, 10);
        file.accessed(at(11));
        file.accessed(at(12));
        assert_eq!(file.unreported_access(), Some(Access { time: at(11), before: at(10) }));
        file.state.lock().wrote(0, 1, at(13));
        file.accessed(at(14));
        file.accessed(at(15));
        let last = Some(Access { time: at(14), before: at(10) });
        assert_eq!(file.take_access(|_| ()), last);
        assert_eq!(file.take_access(|_| ()), None);
    }

    /// A stat concurrent with a close once missed the access: the file had already dropped it, and the report did not have it yet.
    #[test]
    fn an_access_is_kept_elsewhere_before_the_file_has_it_no_more() {
        let file = opened(10, 10);
        file.accessed(at(11));
        let mut kept = None;
        file.take_access(|access| {
            assert!(file.state.is_locked(), "no task can see the file without the access");
            kept = Some(access);
        });
        assert_eq!((kept.map(|access| access.time), file.unreported_access()), (Some(at(11)), None));
    }

    #[test]
    fn reads_that_do_not_count_leave_nothing_to_tell() {
        let file = opened(11, 10);
        file.accessed(at(12));
        assert_eq!(file.unreported_access(), None);
        file.accessed(at(11 + 24 * 60 * 60));
        assert!(file.unreported_access().is_some());
        let elsewhere = FileData::new(InodeId(7), Layout::Striped, Home::Inode, MapEpoch(1));
        elsewhere.accessed(at(20));
        assert_eq!(elsewhere.unreported_access(), None, "the node does not keep this file's times");
    }

    /// The next access replaces the time that another program has set.
    #[test]
    fn an_access_after_a_time_was_set_replaces_that() {
        let file = opened(10, 10);
        file.accessed(at(11));
        learn(&file, 5, 12);
        file.accessed(at(13));
        assert_eq!(file.unreported_access(), Some(Access { time: at(13), before: at(5) }));
    }
}
