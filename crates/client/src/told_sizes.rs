//! Sizes of files that the kernel was told a moment ago.
//!
//! The kernel takes no attributes if others of the file came after their request. So where an old answer is taken between a
//! later request and its answer, the kernel goes by the old size until its time is over. A reader that opens the file then
//! would find an end that is not there any more. The open of a file of which two sizes were told has the kernel ask again.

use crate::vfs::FileNumber;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long after its answer a thread may take attributes, on a busy machine.
const LATE: Duration = Duration::from_secs(1);
/// Files of which sizes are known at a time, twice.
const FILES_MAX: usize = 1 << 15;

#[derive(Clone, Copy)]
struct Told {
    size: u64,
    /// Whether another size was told not long before.
    differs: bool,
}

#[derive(Default)]
struct State {
    /// Since when `new` takes what is told.
    since: Duration,
    new: BTreeMap<FileNumber, Told>,
    old: BTreeMap<FileNumber, Told>,
}

impl State {
    fn age(&mut self, now: Duration) {
        if now >= self.since + LATE || self.new.len() >= FILES_MAX {
            let is_long_ago = now >= self.since + 2 * LATE;
            self.old = std::mem::take(&mut self.new);
            if is_long_ago {
                self.old.clear();
            }
            self.since = now;
        }
    }
}

/// Sizes that the kernel was told by look-ups and as attributes.
#[derive(Default)]
pub struct ToldSizes(Mutex<State>);

impl ToldSizes {
    /// The kernel is told a size, at this time of the monotonic clock.
    pub fn note(&self, file: FileNumber, size: u64, now: Duration) {
        let mut state = self.0.lock();
        state.age(now);
        let known = state.new.get(&file).or_else(|| state.old.get(&file)).copied();
        let differs = known.is_some_and(|known| known.differs || known.size != size);
        state.new.insert(file, Told { size, differs });
    }

    /// Whether the kernel may go by another size than the one that it was told last. Whoever asks has it ask again.
    pub fn take_doubt(&self, file: FileNumber, now: Duration) -> bool {
        let mut state = self.0.lock();
        state.age(now);
        let State { new, old, .. } = &mut *state;
        let told = new.remove(&file);
        let before = old.remove(&file);
        let Some(told) = told.or(before) else { return false };
        new.insert(file, Told { differs: false, ..told });
        told.differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sizes_are_in_doubt_once_and_for_a_while() {
        let (sizes, file) = (ToldSizes::default(), FileNumber(7));
        let at = |milliseconds| Duration::from_secs(100) + Duration::from_millis(milliseconds);
        sizes.note(file, 5, at(0));
        sizes.note(file, 5, at(10));
        assert!(!sizes.take_doubt(file, at(20)));
        sizes.note(file, 6, at(900));
        assert!(!sizes.take_doubt(FileNumber(8), at(900)));
        sizes.note(file, 6, at(1100));
        assert!(sizes.take_doubt(file, at(1200)));
        assert!(!sizes.take_doubt(file, at(1200)));
        sizes.note(file, 7, at(5000));
        assert!(!sizes.take_doubt(file, at(5000)), "the other size was told long before");
    }
}
