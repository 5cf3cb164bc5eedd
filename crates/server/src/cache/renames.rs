//! The last renames of directories, which reports of other nodes may not know of.
//!
//! A node reports the rename of a directory before it happens. Until it has happened, and until another node has noticed, other nodes report files by
//! their paths below the old name: files that are new, or that a rename above or below moves at the same time. So each reported path also
//! counts with the new names of directories above it. Paths are hints, as the inode number decides.

use super::record::{PATHS_MAX, Record};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// Time for which a report may have a path from before a rename: a program or its node may be stopped for a while.
const REPORTS_TIME: Duration = Duration::from_secs(60);
/// Renames that are kept at most.
const RENAMES_MAX: usize = 256;

struct Rename {
    time: Duration,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Rename {
    /// The new path of a file below the directory; `None` for others.
    fn moved(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = path.strip_prefix(self.from.as_slice()).filter(|rest| rest.starts_with(b"/"))?;
        Some([self.to.as_slice(), rest].concat())
    }
}

/// The last renames of directories, in the order of their reports.
#[derive(Default)]
pub(super) struct Renames(Mutex<VecDeque<Rename>>);

impl Renames {
    /// Notes a rename that a node is about to make.
    pub(super) fn note(&self, from: &[u8], to: &[u8], now: Duration) {
        let mut renames = self.0.lock();
        renames
            .retain(|rename| rename.time + REPORTS_TIME > now && (&*rename.from, &*rename.to) != (from, to));
        if renames.len() >= RENAMES_MAX {
            renames.pop_front();
        }
        renames.push_back(Rename { time: now, from: from.to_vec(), to: to.to_vec() });
    }

    /// The other paths that a file may have which was seen at these, nearest first.
    fn others(&self, paths: &[Vec<u8>], now: Duration) -> Vec<Vec<u8>> {
        let renames = self.0.lock();
        let mut known = paths.to_vec();
        let mut place = 0;
        while place < known.len() && known.len() < paths.len() + PATHS_MAX {
            for rename in renames.iter().filter(|rename| rename.time + REPORTS_TIME > now) {
                known.extend(rename.moved(&known[place]).filter(|moved| !known.contains(moved)));
            }
            place += 1;
        }
        known.split_off(paths.len())
    }

    /// Adds the paths that follow from renames to those of a record. Returns whether there are any.
    pub(super) fn complete(&self, record: &mut Record, now: Duration) -> bool {
        if self.0.lock().is_empty() {
            return false;
        }
        let paths: Vec<_> = record.paths.iter().map(|path| path.to_vec()).collect();
        let others = self.others(&paths, now);
        for path in &others {
            record.prefer_path(path);
        }
        !others.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(renames: &Renames, path: &str) -> Vec<String> {
        let others = renames.others(&[path.as_bytes().to_vec()], Duration::from_secs(9));
        others.into_iter().map(|path| String::from_utf8(path).expect("text")).collect()
    }

    #[test]
    fn a_path_follows_all_renames_above_it_in_any_order() {
        let renames = Renames::default();
        renames.note(b"p", b"q", Duration::from_secs(1));
        renames.note(b"p/d", b"p/e", Duration::from_secs(2));
        assert_eq!(others(&renames, "p/d/x"), ["q/d/x", "p/e/x", "q/e/x"]);
        assert_eq!(others(&renames, "p/x"), ["q/x"]);
        assert!(others(&renames, "p").is_empty() && others(&renames, "px/d").is_empty());
        // There and back again.
        renames.note(b"q", b"p", Duration::from_secs(3));
        assert_eq!(others(&renames, "q/x"), ["p/x"]);
    }

    #[test]
    fn old_renames_are_forgotten() {
        let renames = Renames::default();
        renames.note(b"p", b"q", Duration::ZERO);
        assert!(renames.others(&[b"p/x".to_vec()], REPORTS_TIME).is_empty());
        for number in 0..2 * RENAMES_MAX {
            renames.note(b"p", format!("q{number}").as_bytes(), Duration::from_secs(1));
        }
        assert_eq!(renames.0.lock().len(), RENAMES_MAX);
        assert_eq!(renames.others(&[b"p/x".to_vec()], Duration::from_secs(1)).len(), RENAMES_MAX);
    }
}
