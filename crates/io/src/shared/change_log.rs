//! The changes that a node has made to the shared directory and a mirror may lack, in bounded memory.
//!
//! A change is recorded after it was made, by path. Changes of one path are combined until they are reported. A reported change is
//! kept until it is acknowledged, and a later change of its path gets a number of its own. If too many changes wait, the log forgets
//! them and reports that everything may have changed.

use crate::os::runtime::Clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::InodeId;
use tameike_core::changes::{Change, Changes, Content, NumberedChange};

/// Changes that are kept: about 16 MiB with paths of 100 bytes.
pub const CHANGES_MAX: usize = 64 << 10;
/// Changes in one report: about 512 KiB.
pub const REPORTED_MAX: usize = 4096;

/// The log of one node.
pub struct ChangeLog {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By number: all changes that are not acknowledged.
    changes: BTreeMap<u64, Logged>,
    /// The changes that are not reported, for combination with later ones.
    unreported: HashMap<(Vec<u8>, Option<InodeId>), u64>,
    /// Number of the last change that was reported.
    reported: u64,
}

struct Logged {
    /// Time of the first change that this one combines.
    time: Duration,
    change: Change,
}

impl ChangeLog {
    /// An empty log.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Records a change of a path: of its name and attributes, and of the content of a file.
    pub fn record(&self, path: &[u8], inode: Option<InodeId>, content: Content) {
        let key = (path.to_vec(), inode);
        let mut state = self.state.lock();
        let known = state.unreported.get(&key).copied();
        if let Some(logged) = known.and_then(|number| state.changes.get_mut(&number)) {
            if let Change::Path { content: earlier, .. } = &mut logged.change {
                earlier.merge(content);
            }
            return;
        }
        let number = self.add(&mut state, Change::Path { path: path.to_vec(), inode, content });
        if let Some(number) = number {
            state.unreported.insert(key, number);
        }
    }

    /// Records that a file has another path.
    pub fn record_rename(&self, from: &[u8], to: &[u8]) {
        self.add(&mut self.state.lock(), Change::Renamed { from: from.to_vec(), to: to.to_vec() });
    }

    /// Returns the number of the change; `None` if the log was full.
    fn add(&self, state: &mut State, change: Change) -> Option<u64> {
        let time = self.clock.monotonic();
        state.last += 1;
        let number = state.last;
        if state.changes.len() < CHANGES_MAX {
            state.changes.insert(number, Logged { time, change });
            return Some(number);
        }
        let first = state.changes.values().map(|logged| logged.time).min().unwrap_or(time);
        state.changes.clear();
        state.unreported.clear();
        state.changes.insert(number, Logged { time: first, change: Change::Everything });
        None
    }

    /// Forgets the changes up to `acknowledged`, which the mirror has, and returns changes that were not reported before.
    pub fn report(&self, acknowledged: u64) -> Changes {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let state = &mut *state;
        state.changes = state.changes.split_off(&acknowledged.saturating_add(1));
        let mut unreported = state.changes.range(state.reported + 1..);
        let changes: Vec<_> = unreported
            .by_ref()
            .take(REPORTED_MAX)
            .map(|(&number, logged)| NumberedChange {
                number,
                age_ms: now.saturating_sub(logged.time).as_millis() as u64,
                change: logged.change.clone(),
            })
            .collect();
        let has_more = unreported.next().is_some();
        for reported in &changes {
            if let Change::Path { path, inode, .. } = &reported.change {
                state.unreported.remove(&(path.clone(), *inode));
            }
        }
        if let Some(last) = changes.last() {
            state.reported = last.number;
        }
        Changes { changes, has_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::Timestamp;

    struct Stopped;

    impl Clock for Stopped {
        fn monotonic(&self) -> Duration {
            Duration::from_secs(7)
        }

        fn wall(&self) -> Timestamp {
            Timestamp::default()
        }
    }

    fn log() -> ChangeLog {
        ChangeLog::new(Arc::new(Stopped))
    }

    fn paths(changes: &Changes) -> Vec<(u64, &[u8])> {
        let path = |numbered: &'static str| numbered.as_bytes();
        changes
            .changes
            .iter()
            .map(|numbered| {
                let shown = match &numbered.change {
                    Change::Everything => path("everything"),
                    Change::Path { path, .. } => path.as_slice(),
                    Change::Renamed { to, .. } => to.as_slice(),
                };
                (numbered.number, shown)
            })
            .collect()
    }

    #[test]
    fn changes_of_a_path_are_combined_until_they_are_reported() {
        let log = log();
        log.record(b"a", None, Content::Unchanged);
        log.record(b"b", None, Content::range(0..4));
        log.record(b"b", None, Content::range(4..9));
        let first = log.report(0);
        assert_eq!(paths(&first), [(1, &b"a"[..]), (2, b"b")]);
        let Change::Path { content, .. } = &first.changes[1].change else { panic!("{first:?}") };
        assert_eq!(*content, Content::range(0..9));
        assert_eq!(log.report(0), Changes::default());
        log.record(b"b", None, Content::range(20..21));
        log.record_rename(b"b", b"c");
        assert_eq!(paths(&log.report(1)), [(3, &b"b"[..]), (4, b"c")]);
        assert_eq!(log.state.lock().changes.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        log.report(4);
        assert!(log.state.lock().changes.is_empty());
    }

    #[test]
    fn too_many_changes_are_everything() {
        let log = log();
        for number in 0..CHANGES_MAX as u64 {
            log.record(&number.to_be_bytes(), None, Content::Unchanged);
        }
        let first = log.report(0);
        assert!(first.has_more && first.changes.len() == REPORTED_MAX);
        log.record(b"one more", None, Content::Unchanged);
        log.record(b"later", None, Content::Unchanged);
        let next = log.report(0);
        let number = CHANGES_MAX as u64 + 1;
        assert_eq!(paths(&next), [(number, &b"everything"[..]), (number + 1, b"later")]);
        assert!(!next.has_more);
    }
}
