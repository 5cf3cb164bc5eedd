//! Which reads of a file by programs of this node count as its last access, as with `relatime`.
//!
//! The file's home is told with a close. Until then this node shows the access by itself.

use super::FileData;
use super::file::FileState;
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

impl FileState {
    /// The content has changed.
    pub(super) fn changed_at(&mut self, time: Timestamp) {
        if let Some(times) = &mut self.times {
            times.change = times.change.max(time);
        }
        self.recall_for_access(time);
    }
}

impl FileData {
    /// Takes note of times that the home has told, and [`Access::show_in`] what it does not know yet.
    pub fn learn_times(&self, times: Times) {
        let mut state = self.state.lock();
        let written = state.untold().map_or(times.change, |untold| untold.time);
        state.times = Some(Times { change: times.change.max(written), ..times });
        state.recall_for_access(times.change);
    }

    /// A program reads the file.
    pub fn accessed(&self, now: Timestamp) {
        let mut state = self.state.lock();
        let Some(times) = state.times.filter(|times| times.counts(now)) else { return };
        // What is not told yet goes on with this one, unless somebody has set another time in between.
        let untold = state.access.filter(|untold| untold.time == times.access);
        let before = untold.map_or(times.access, |untold| untold.before);
        state.access = Some(Access { time: now, before });
        state.times = Some(Times { access: now, ..times });
    }

    /// The last access, if the home was not told.
    pub fn untold_access(&self) -> Option<Access> {
        self.state.lock().access
    }

    /// As [`Self::untold_access`], for who tells it: `keep` has it before the file has it no more.
    pub fn take_access(&self, keep: impl FnOnce(Access)) -> Option<Access> {
        let mut state = self.state.lock();
        let access = state.access?;
        keep(access);
        state.access = None;
        Some(access)
    }

    /// Forgets the last access, which does not count any more.
    pub fn forget_access(&self) {
        self.state.lock().access = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Home;
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
        assert_eq!(file.untold_access(), Some(Access { time: at(11), before: at(10) }));
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
        assert_eq!((kept.map(|access| access.time), file.untold_access()), (Some(at(11)), None));
    }

    #[test]
    fn reads_that_do_not_count_leave_nothing_to_tell() {
        let file = opened(11, 10);
        file.accessed(at(12));
        assert_eq!(file.untold_access(), None);
        file.accessed(at(11 + 24 * 60 * 60));
        assert!(file.untold_access().is_some());
        let elsewhere = FileData::new(InodeId(7), Layout::Striped, Home::Inode);
        elsewhere.accessed(at(20));
        assert_eq!(elsewhere.untold_access(), None, "a file whose times are not kept here");
    }

    /// What another program has set in between is what the next access replaces.
    #[test]
    fn an_access_after_a_time_was_set_replaces_that() {
        let file = opened(10, 10);
        file.accessed(at(11));
        learn(&file, 5, 12);
        file.accessed(at(13));
        assert_eq!(file.untold_access(), Some(Access { time: at(13), before: at(5) }));
    }
}
