//! What directories of the shared file system have, for a moment.

use super::misses::Misses;
use super::packer::rebased;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

/// How long what was listed is believed: so much later is seen what others make there.
pub const LISTED_TIME: Duration = Duration::from_millis(50);
/// The same of a directory that the job has made.
const OWN_TIME: Duration = Duration::from_secs(1);
/// Directories that others have made are listed where names are asked for that come so soon after one another.
const GAP: Duration = Duration::from_millis(20);
/// A directory that takes longer to list than half of the time for which that is believed, or has more names, ...
const NAMES_MAX: usize = 1024;
/// ... is not tried again for so long.
const REST: Duration = Duration::from_secs(10);
/// Directories that are known at a time, and those that the job has made.
const DIRECTORIES_MAX: usize = 256;
const OWN_MAX: usize = 16 << 10;

struct Listing {
    /// Until when it is believed, by the monotonic clock.
    until: Duration,
    /// Nothing where they are not known.
    names: Option<HashSet<Vec<u8>>>,
}

impl Listing {
    fn lacks(&self, name: &[u8]) -> bool {
        self.names.as_ref().is_some_and(|names| !names.contains(name))
    }
}

#[derive(Default)]
struct Known {
    listings: HashMap<Vec<u8>, Listing>,
    /// Those that the job has made. What it makes in them is known otherwise.
    own: HashSet<Vec<u8>>,
}

impl Known {
    fn put(&mut self, dir: &[u8], listing: Listing, now: Duration) -> bool {
        if self.listings.len() >= DIRECTORIES_MAX {
            self.listings.retain(|_, listing| listing.until > now);
        }
        let has_room = self.listings.len() < DIRECTORIES_MAX || self.listings.contains_key(dir);
        if has_room {
            self.listings.insert(dir.to_vec(), listing);
        }
        has_room
    }
}

/// The directories.
pub struct Listed {
    known: Mutex<Known>,
    asked: Misses,
}

impl Default for Listed {
    fn default() -> Self {
        Self { known: Mutex::default(), asked: Misses::new(GAP) }
    }
}

impl Listed {
    /// The job has made a directory at this moment: it is empty.
    pub fn made(&self, dir: &[u8], now: Duration) {
        let known = &mut *self.known.lock();
        if known.own.len() >= OWN_MAX {
            known.own.clear();
        }
        known.own.insert(dir.to_vec());
        known.put(dir, Listing { until: now + OWN_TIME, names: Some(HashSet::new()) }, now);
    }

    /// Another directory is at this path from now on, or none, and so below it.
    pub fn forget(&self, path: &[u8]) {
        let known = &mut *self.known.lock();
        known.own.retain(|dir| rebased(dir, path, b"").is_none());
        known.listings.retain(|dir, _| rebased(dir, path, b"").is_none());
    }

    /// Whether a directory is known not to have a name; it is listed where that was too long ago by the monotonic `clock`. Who asks while
    /// another one lists does not wait.
    pub fn lacks(&self, fs: &dyn SharedFs, dir: &[u8], name: &[u8], clock: impl Fn() -> Duration) -> bool {
        let began = clock();
        let lasts = match self.claim(dir, name, began) {
            Ok(lasts) => lasts,
            Err(lacks) => return lacks,
        };
        let names = names_of(fs, dir).ok().flatten().filter(|_| clock() - began <= lasts / 2);
        let lasts = if names.is_some() { lasts } else { REST };
        let listing = Listing { until: began + lasts, names };
        let lacks = listing.lacks(name);
        let known = &mut *self.known.lock();
        let is_claimed = |listing: &Listing| listing.names.is_none() && listing.until == began + REST;
        if !known.listings.get(dir).is_some_and(is_claimed) {
            // Another directory may be there by now.
            return false;
        }
        known.put(dir, listing, began);
        lacks
    }

    /// For how long the names will be believed that the caller may list now; else what is known of the name.
    fn claim(&self, dir: &[u8], name: &[u8], now: Duration) -> std::result::Result<Duration, bool> {
        let known = &mut *self.known.lock();
        if let Some(listing) = known.listings.get(dir).filter(|listing| listing.until > now) {
            return Err(listing.lacks(name));
        }
        let is_own = known.own.contains(dir);
        if !is_own {
            self.asked.count(dir, now);
            if !self.asked.are_many(dir, now) {
                return Err(false);
            }
        }
        let listing = Listing { until: now + REST, names: None };
        if !known.put(dir, listing, now) {
            return Err(false);
        }
        Ok(if is_own { OWN_TIME } else { LISTED_TIME })
    }
}

/// Names of a directory, unless they are too many.
fn names_of(fs: &dyn SharedFs, dir: &[u8]) -> Result<Option<HashSet<Vec<u8>>>> {
    let (open, mut names, mut cursor) = (fs.open_dir(dir)?, HashSet::new(), 0);
    loop {
        let read = open.read(cursor)?;
        let Some(last) = read.last() else { return Ok(Some(names)) };
        cursor = last.next;
        names.extend(read.into_iter().map(|named| named.name));
        if names.len() > NAMES_MAX {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs;
    use std::path::Path;
    use tameike_io::shared::PosixTree;

    const START: Duration = Duration::from_secs(7);

    fn bed() -> (tempfile::TempDir, PosixTree) {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = PosixTree::open(dir.path()).expect("a tree");
        (dir, tree)
    }

    fn write(path: &Path) {
        fs::write(path, "").expect("written");
    }

    /// So many names were asked for that the next is answered by a list.
    fn ask_for_many(listed: &Listed, dir: &[u8], now: Duration) {
        while !listed.asked.are_many(dir, now) {
            listed.asked.count(dir, now);
        }
    }

    #[test]
    fn a_directory_is_listed_again_when_that_was_too_long_ago() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        write(&dir.path().join("d/there"));
        let listed = Listed::default();
        ask_for_many(&listed, b"d", START);
        assert!(
            listed.lacks(&tree, b"d", b"new", || START) && !listed.lacks(&tree, b"d", b"there", || START)
        );
        write(&dir.path().join("d/new"));
        let soon = START + LISTED_TIME - Duration::from_millis(1);
        assert!(listed.lacks(&tree, b"d", b"new", || soon));
        let later = START + LISTED_TIME;
        ask_for_many(&listed, b"d", later);
        assert!(
            !listed.lacks(&tree, b"d", b"new", || later) && listed.lacks(&tree, b"d", b"other", || later)
        );
    }

    #[test]
    fn what_cannot_be_listed_in_time_lacks_nothing() {
        let (dir, tree) = bed();
        let listed = Listed::default();
        for nowhere in [b"nowhere", b"forever"] {
            ask_for_many(&listed, nowhere, START);
            assert!(!listed.lacks(&tree, nowhere, b"new", || START));
        }
        ask_for_many(&listed, b"", START);
        let time = Cell::new(START);
        let slow = || time.replace(time.get() + LISTED_TIME);
        assert!(!listed.lacks(&tree, b"", b"new", slow));
        // For some time nobody tries again.
        assert!(!listed.lacks(&tree, b"", b"new", || START + REST - LISTED_TIME));
        let later = START + REST;
        ask_for_many(&listed, b"", later);
        assert!(listed.lacks(&tree, b"", b"new", || later));
        (0..=NAMES_MAX).for_each(|name| write(&dir.path().join(name.to_string())));
        let last = later + LISTED_TIME;
        ask_for_many(&listed, b"", last);
        assert!(!listed.lacks(&tree, b"", b"new", || last));
    }

    #[test]
    fn a_directory_of_the_jobs_own_is_known_at_once_and_for_longer() {
        let (dir, tree) = bed();
        fs::create_dir_all(dir.path().join("a/d")).expect("made");
        let listed = Listed::default();
        listed.made(b"a/d", START);
        write(&dir.path().join("a/d/new"));
        assert!(listed.lacks(&tree, b"a/d", b"new", || START + OWN_TIME / 2));
        let later = START + OWN_TIME;
        assert!(
            !listed.lacks(&tree, b"a/d", b"new", || later) && listed.lacks(&tree, b"a/d", b"other", || later)
        );
        listed.forget(b"a");
        assert!(!listed.lacks(&tree, b"a/d", b"other", || later));
    }

    #[test]
    fn what_was_listed_of_a_directory_that_has_gone_is_not_believed() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        let listed = Listed::default();
        listed.made(b"d", START);
        let later = START + OWN_TIME;
        let replaced = || {
            listed.forget(b"d");
            later
        };
        assert!(!listed.lacks(&tree, b"d", b"new", replaced));
    }

    #[test]
    fn directories_are_not_too_many() {
        let listed = Listed::default();
        (0..2 * OWN_MAX).for_each(|number| listed.made(number.to_string().as_bytes(), START));
        let known = listed.known.lock();
        assert!(known.listings.len() <= DIRECTORIES_MAX && known.own.len() <= OWN_MAX);
    }
}
