//! What directories of the shared file system have, for a moment.

use super::marks::rebased;
use crate::SNAPSHOT_LIFETIME;
use crate::misses::Misses;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

/// The same of a directory that the job has made.
const OWN_TIME: Duration = Duration::from_secs(1);
/// Directories that the job has not made are listed while names of them are asked for, each so soon after the one before.
const GAP: Duration = Duration::from_millis(20);
/// Most names of a directory that is listed.
const NAMES_MAX: usize = 1024;
/// A directory that has more, or takes longer to list than half of the time for which that would be believed, is left alone for so long.
const REST: Duration = Duration::from_secs(10);
/// Directories that are known at a time.
const DIRECTORIES_MAX: usize = 256;
/// Directories that the job has made and that are known as such.
const OWN_MAX: usize = 16 << 10;

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The directory had none a moment ago.
    Lacking,
    /// Nothing, or that the directory has it.
    Unknown,
    /// Nothing, and so it stays for some time.
    Resting,
}

enum Names {
    /// These.
    Are(HashSet<Vec<u8>>),
    /// Somebody is listing them since then.
    Asked(Duration),
    /// They cannot be listed.
    Unknown,
}

struct Listing {
    /// Until when it is believed, by the monotonic clock.
    until: Duration,
    names: Names,
}

impl Listing {
    fn tells(&self, name: &[u8]) -> Known {
        match &self.names {
            Names::Are(names) if !names.contains(name) => Known::Lacking,
            Names::Are(_) | Names::Asked(_) => Known::Unknown,
            Names::Unknown => Known::Resting,
        }
    }
}

#[derive(Default)]
struct Directories {
    listings: HashMap<Vec<u8>, Listing>,
    /// Those that the job has made. What it makes in them is known otherwise.
    own: HashSet<Vec<u8>>,
}

impl Directories {
    /// Whether there is room for it.
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
pub struct DirectorySnapshots {
    directories: Mutex<Directories>,
    asked: Misses,
}

impl Default for DirectorySnapshots {
    fn default() -> Self {
        Self { directories: Mutex::default(), asked: Misses::new(GAP) }
    }
}

impl DirectorySnapshots {
    /// The job has made a directory at this moment: it is empty.
    pub fn made(&self, dir: &[u8], now: Duration) {
        let all = &mut *self.directories.lock();
        if all.own.len() >= OWN_MAX {
            all.own.clear();
        }
        all.own.insert(dir.to_vec());
        all.put(dir, Listing { until: now + OWN_TIME, names: Names::Are(HashSet::new()) }, now);
    }

    /// A directory has gone, in which nothing was.
    pub fn removed(&self, dir: &[u8]) {
        let all = &mut *self.directories.lock();
        all.own.remove(dir);
        all.listings.remove(dir);
    }

    /// Another directory is at this path from now on, or none, and so below it.
    pub fn moved(&self, path: &[u8]) {
        let all = &mut *self.directories.lock();
        all.own.retain(|dir| rebased(dir, path, b"").is_none());
        all.listings.retain(|dir, _| rebased(dir, path, b"").is_none());
    }

    /// What is known of a name of a directory; that is listed where it was too long ago, by the monotonic `clock`. Who asks while another one
    /// lists does not wait.
    pub fn look(&self, fs: &dyn SharedFs, dir: &[u8], name: &[u8], clock: impl Fn() -> Duration) -> Known {
        let began = clock();
        let lasts = match self.claim(dir, name, began) {
            Claim::Tell(known) => return known,
            Claim::List(lasts) => lasts,
        };
        let listing = match names_of(fs, dir) {
            Ok(Some(names)) if clock() - began <= lasts / 2 => {
                Listing { until: began + lasts, names: Names::Are(names) }
            }
            _ => Listing { until: began + REST, names: Names::Unknown },
        };
        let known = listing.tells(name);
        let all = &mut *self.directories.lock();
        let is_asked = |listing: &Listing| matches!(listing.names, Names::Asked(since) if since == began);
        if !all.listings.get(dir).is_some_and(is_asked) {
            // Another directory may be there by now.
            return Known::Unknown;
        }
        all.put(dir, listing, began);
        known
    }

    fn claim(&self, dir: &[u8], name: &[u8], now: Duration) -> Claim {
        let all = &mut *self.directories.lock();
        let is_own = all.own.contains(dir);
        if !is_own {
            self.asked.count(dir, now);
        }
        if let Some(listing) = all.listings.get(dir).filter(|listing| listing.until > now) {
            return Claim::Tell(listing.tells(name));
        }
        if !is_own && !self.asked.are_many(dir, now) {
            return Claim::Tell(Known::Unknown);
        }
        let asked = Listing { until: now + REST, names: Names::Asked(now) };
        if !all.put(dir, asked, now) {
            return Claim::Tell(Known::Resting);
        }
        Claim::List(if is_own { OWN_TIME } else { SNAPSHOT_LIFETIME })
    }
}

/// What is to be done about a name.
enum Claim {
    /// This is known.
    Tell(Known),
    /// The caller lists the directory. So long that will be believed.
    List(Duration),
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
    fn ask_for_many(listed: &DirectorySnapshots, dir: &[u8], now: Duration) {
        while !listed.asked.are_many(dir, now) {
            listed.asked.count(dir, now);
        }
    }

    #[test]
    fn a_directory_is_listed_again_when_that_was_too_long_ago() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        write(&dir.path().join("d/there"));
        let listed = DirectorySnapshots::default();
        let look = |name: &str, now| listed.look(&tree, b"d", name.as_bytes(), || now);
        assert_eq!(look("new", START), Known::Unknown, "nobody lists for one name");
        ask_for_many(&listed, b"d", START);
        assert_eq!([look("new", START), look("there", START)], [Known::Lacking, Known::Unknown]);
        write(&dir.path().join("d/new"));
        let soon = START + GAP;
        assert_eq!(look("new", soon), Known::Lacking);
        // Names are asked for all the time.
        assert_eq!(look("other", soon + GAP), Known::Lacking);
        let later = START + SNAPSHOT_LIFETIME;
        assert_eq!([look("new", later), look("other", later)], [Known::Unknown, Known::Lacking]);
        assert_eq!(look("other", later + 10 * SNAPSHOT_LIFETIME), Known::Unknown, "nobody has asked since");
    }

    #[test]
    fn what_cannot_be_listed_in_time_lacks_nothing() {
        let (dir, tree) = bed();
        let listed = DirectorySnapshots::default();
        let look = |dir: &str, now| {
            ask_for_many(&listed, dir.as_bytes(), now);
            listed.look(&tree, dir.as_bytes(), b"new", || now)
        };
        assert_eq!(look("nowhere", START), Known::Resting);
        ask_for_many(&listed, b"", START);
        let time = Cell::new(START);
        let slow = || time.replace(time.get() + SNAPSHOT_LIFETIME);
        assert_eq!(listed.look(&tree, b"", b"new", slow), Known::Resting);
        // For some time nobody tries again.
        assert_eq!(look("", START + REST - SNAPSHOT_LIFETIME), Known::Resting);
        assert_eq!(look("", START + REST), Known::Lacking);
        (0..=NAMES_MAX).for_each(|name| write(&dir.path().join(name.to_string())));
        assert_eq!(look("", START + REST + SNAPSHOT_LIFETIME), Known::Resting);
    }

    #[test]
    fn a_directory_of_the_jobs_own_is_known_at_once_and_for_longer() {
        let (dir, tree) = bed();
        fs::create_dir_all(dir.path().join("a/d")).expect("made");
        let listed = DirectorySnapshots::default();
        let look = |name: &str, now| listed.look(&tree, b"a/d", name.as_bytes(), || now);
        for forget in [
            |listed: &DirectorySnapshots| listed.moved(b"a"),
            |listed: &DirectorySnapshots| listed.removed(b"a/d"),
        ] {
            let _ = fs::remove_file(dir.path().join("a/d/new"));
            listed.made(b"a/d", START);
            write(&dir.path().join("a/d/new"));
            assert_eq!(look("new", START + OWN_TIME / 2), Known::Lacking);
            let later = START + OWN_TIME;
            assert_eq!([look("new", later), look("other", later)], [Known::Unknown, Known::Lacking]);
            forget(&listed);
            assert_eq!(look("other", later + REST), Known::Unknown);
        }
    }

    #[test]
    fn what_was_listed_of_a_directory_that_has_gone_is_not_believed() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        let listed = DirectorySnapshots::default();
        listed.made(b"d", START);
        let (later, times) = (START + OWN_TIME, Cell::new(0));
        // Another one comes between the list and its end.
        let clock = || {
            if times.replace(times.get() + 1) == 1 {
                listed.moved(b"d");
                listed.made(b"d", later);
            }
            later
        };
        assert_eq!(listed.look(&tree, b"d", b"new", clock), Known::Unknown);
        assert_eq!(times.get(), 2);
    }

    #[test]
    fn directories_are_not_too_many() {
        let listed = DirectorySnapshots::default();
        (0..2 * OWN_MAX).for_each(|number| listed.made(number.to_string().as_bytes(), START));
        let all = listed.directories.lock();
        assert!(all.listings.len() <= DIRECTORIES_MAX && all.own.len() <= OWN_MAX);
    }
}
