//! Last access of a file by programs of this node: which reads count, as with `relatime`.
//!
//! A close reports it to the file's home. Until then this node shows the access by itself.

use super::FileData;
use tameike_core::attr::Times;
use tameike_core::{Attr, Timestamp};

/// A read that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When it was.
    pub time: Timestamp,
    /// The access time that it replaces.
    pub before: Timestamp,
}

impl Access {
    /// Whether a home that has these times takes it for the last access for sure.
    pub fn follows(self, times: Times) -> bool {
        times.counts(self.time) && times.access == self.before && times.change < self.time
    }

    /// Adds the access to attributes from the file's home, which may have been told meanwhile. A time that a program
    /// has set since stands.
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
    /// Last access and change; `None` where the shared file system keeps the former.
    times: Option<Times>,
    /// The last access, until it is passed on for the home.
    access: Option<Access>,
}

impl AccessTimes {
    /// Whether a read from `now` on may be the last access.
    pub(super) fn awaits_access(&self, now: Timestamp) -> bool {
        self.times.is_some_and(|times| times.access <= times.change || times.counts(now))
    }

    /// The content has changed.
    pub(super) fn changed(&mut self, time: Timestamp) {
        if let Some(times) = &mut self.times {
            times.change = times.change.max(time);
        }
    }

    /// Whether there is an access that the home does not know.
    pub(super) fn has_access(&self) -> bool {
        self.access.is_some()
    }
}

impl FileData {
    /// Takes note of times that the home has reported, and [`Access::show_in`] what it does not know yet.
    pub fn learn_times(&self, times: Times) {
        let mut state = self.state.lock();
        let written = state.writes.unknown().map_or(times.change, |unknown| unknown.time);
        state.access.times = Some(Times { change: times.change.max(written), ..times });
        state.revoke_for_access(times.change);
    }

    /// A program reads the file.
    pub fn accessed(&self, now: Timestamp) {
        let known = &mut self.state.lock().access;
        let Some(times) = known.times.filter(|times| times.counts(now)) else { return };
        // An access that the home does not know yet goes on with this one, unless a program has set another time in between.
        let unknown = known.access.filter(|unknown| unknown.time == times.access);
        let before = unknown.map_or(times.access, |unknown| unknown.before);
        known.access = Some(Access { time: now, before });
        known.times = Some(Times { access: now, ..times });
    }

    /// The last access, if the home does not know it.
    pub fn unreported_access(&self) -> Option<Access> {
        self.state.lock().access.access
    }

    /// As [`Self::unreported_access`], to pass it on: `keep` has it before the file loses it.
    pub fn take_access(&self, keep: impl FnOnce(Access)) -> Option<Access> {
        let known = &mut self.state.lock().access;
        let access = known.access?;
        keep(access);
        known.access = None;
        Some(access)
    }

    /// Forgets the last access, which does not count any more.
    pub fn forget_access(&self) {
        self.state.lock().access.access = None;
    }

    /// The content has changed.
    pub(in crate::data) fn changed_at(&self, time: Timestamp) {
        self.state.lock().changed_at(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::home::Home;
    use tameike_core::{InodeId, Layout};

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    /// A file that is opened with these times.
    fn opened(access: i64, change: i64) -> FileData {
        let file = FileData::new(InodeId(7), Layout::Striped, Home::Inode);
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

    /// Who asked for the attributes just when a descriptor was closed was once told of no access: the file had none any
    /// more, and nobody else had it yet.
    #[test]
    fn an_access_is_kept_elsewhere_before_the_file_has_it_no_more() {
        let file = opened(10, 10);
        file.accessed(at(11));
        let mut kept = None;
        file.take_access(|access| {
            assert!(file.state.is_locked(), "nobody finds the file without it");
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
        let elsewhere = FileData::new(InodeId(7), Layout::Striped, Home::Inode);
        elsewhere.accessed(at(20));
        assert_eq!(elsewhere.unreported_access(), None, "a file whose times are not kept here");
    }

    /// What another program has set in between is what the next access replaces.
    #[test]
    fn an_access_after_a_time_was_set_replaces_that() {
        let file = opened(10, 10);
        file.accessed(at(11));
        learn(&file, 5, 12);
        file.accessed(at(13));
        assert_eq!(file.unreported_access(), Some(Access { time: at(13), before: at(5) }));
    }
}
