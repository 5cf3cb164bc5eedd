//! Snapshots of directories of the shared file system: the packer answers lookups from them for a moment.

use super::marks::rebased;
use crate::SNAPSHOT_LIFETIME;
use crate::negative_lookups::NegativeLookups;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

/// How long the snapshot of a directory that the job has created is valid.
const OWN_TIME: Duration = Duration::from_secs(1);
/// A directory that the job has not created is listed while lookups in it follow each other within this time.
const GAP: Duration = Duration::from_millis(20);
/// Names in a snapshot. A directory with more has none.
const NAMES_MAX: usize = 1024;
/// How long a directory is not listed again that has more names, or whose listing takes more than half of the time for which it is valid.
const REST: Duration = Duration::from_secs(10);
/// Directories with snapshots.
const DIRECTORIES_MAX: usize = 256;
/// Directories that are known as created by the job.
const OWN_MAX: usize = 16 << 10;

/// What a snapshot says about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedLookup {
    /// The directory lacked the name a moment ago.
    Absent,
    /// Nothing; or the directory has the name.
    Unknown,
    /// Nothing, and there will be no snapshot for some time.
    Unavailable,
}

enum Names {
    /// The names.
    Listed(HashSet<Vec<u8>>),
    /// Another request is listing the directory since this time.
    Pending(Duration),
    /// The directory cannot be listed.
    Unknown,
}

struct Listing {
    /// The end of the validity, by the monotonic clock.
    until: Duration,
    names: Names,
}

impl Listing {
    fn lookup(&self, name: &[u8]) -> CachedLookup {
        match &self.names {
            Names::Listed(names) if !names.contains(name) => CachedLookup::Absent,
            Names::Listed(_) | Names::Pending(_) => CachedLookup::Unknown,
            Names::Unknown => CachedLookup::Unavailable,
        }
    }
}

#[derive(Default)]
struct Directories {
    listings: HashMap<Vec<u8>, Listing>,
    /// Directories created by the job. The packer knows the job's own creations in them.
    own: HashSet<Vec<u8>>,
}

impl Directories {
    /// Inserts a snapshot. Returns whether there was space.
    fn put(&mut self, dir: &[u8], listing: Listing, now: Duration) -> bool {
        if self.listings.len() >= DIRECTORIES_MAX {
            self.listings.retain(|_, listing| listing.until > now);
        }
        let has_space = self.listings.len() < DIRECTORIES_MAX || self.listings.contains_key(dir);
        if has_space {
            self.listings.insert(dir.to_vec(), listing);
        }
        has_space
    }
}

/// The snapshots of one shared directory.
pub struct DirectorySnapshots {
    directories: Mutex<Directories>,
    lookups: NegativeLookups,
}

impl Default for DirectorySnapshots {
    fn default() -> Self {
        Self { directories: Mutex::default(), lookups: NegativeLookups::new(GAP) }
    }
}

impl DirectorySnapshots {
    /// Records that the job has just created a directory: it is empty.
    pub fn made(&self, dir: &[u8], now: Duration) {
        let all = &mut *self.directories.lock();
        if all.own.len() >= OWN_MAX {
            all.own.clear();
        }
        all.own.insert(dir.to_vec());
        all.put(dir, Listing { until: now + OWN_TIME, names: Names::Listed(HashSet::new()) }, now);
    }

    /// Records that a directory was removed.
    pub fn removed(&self, dir: &[u8]) {
        let all = &mut *self.directories.lock();
        all.own.remove(dir);
        all.listings.remove(dir);
    }

    /// Drops what is known at and below a path.
    pub fn moved(&self, path: &[u8]) {
        let all = &mut *self.directories.lock();
        all.own.retain(|dir| rebased(dir, path, b"").is_none());
        all.listings.retain(|dir, _| rebased(dir, path, b"").is_none());
    }

    /// Looks up a name in the snapshot of its directory, which is listed again if the snapshot is too old by the monotonic `clock`. Does
    /// not wait for another request that lists the directory.
    pub fn lookup(
        &self,
        fs: &dyn SharedFs,
        dir: &[u8],
        name: &[u8],
        clock: impl Fn() -> Duration,
    ) -> CachedLookup {
        let began = clock();
        let lasts = match self.claim(dir, name, began) {
            Claim::Answer(known) => return known,
            Claim::List(lasts) => lasts,
        };
        let listing = match names_of(fs, dir) {
            Ok(Some(names)) if clock() - began <= lasts / 2 => {
                Listing { until: began + lasts, names: Names::Listed(names) }
            }
            _ => Listing { until: began + REST, names: Names::Unknown },
        };
        let known = listing.lookup(name);
        let all = &mut *self.directories.lock();
        let is_pending = |listing: &Listing| matches!(listing.names, Names::Pending(since) if since == began);
        if !all.listings.get(dir).is_some_and(is_pending) {
            // Another directory may have the path by now.
            return CachedLookup::Unknown;
        }
        all.put(dir, listing, began);
        known
    }

    fn claim(&self, dir: &[u8], name: &[u8], now: Duration) -> Claim {
        let all = &mut *self.directories.lock();
        let is_own = all.own.contains(dir);
        if !is_own {
            self.lookups.count(dir, now);
        }
        if let Some(listing) = all.listings.get(dir).filter(|listing| listing.until > now) {
            return Claim::Answer(listing.lookup(name));
        }
        if !is_own && !self.lookups.are_many(dir, now) {
            return Claim::Answer(CachedLookup::Unknown);
        }
        let pending = Listing { until: now + REST, names: Names::Pending(now) };
        if !all.put(dir, pending, now) {
            return Claim::Answer(CachedLookup::Unavailable);
        }
        Claim::List(if is_own { OWN_TIME } else { SNAPSHOT_LIFETIME })
    }
}

/// What the caller does for a lookup.
enum Claim {
    /// Nothing: this is the answer.
    Answer(CachedLookup),
    /// It lists the directory. The snapshot is valid for this time.
    List(Duration),
}

/// The names of a directory, unless there are too many.
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

    /// Looks up so many names that the next lookup lists the directory.
    fn look_up_many(listed: &DirectorySnapshots, dir: &[u8], now: Duration) {
        while !listed.lookups.are_many(dir, now) {
            listed.lookups.count(dir, now);
        }
    }

    #[test]
    fn an_expired_snapshot_is_replaced() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        write(&dir.path().join("d/there"));
        let listed = DirectorySnapshots::default();
        let look = |name: &str, now| listed.lookup(&tree, b"d", name.as_bytes(), || now);
        assert_eq!(look("new", START), CachedLookup::Unknown, "one lookup does not list");
        look_up_many(&listed, b"d", START);
        assert_eq!([look("new", START), look("there", START)], [CachedLookup::Absent, CachedLookup::Unknown]);
        write(&dir.path().join("d/new"));
        let soon = START + GAP;
        assert_eq!(look("new", soon), CachedLookup::Absent);
        // Lookups go on all the time.
        assert_eq!(look("other", soon + GAP), CachedLookup::Absent);
        let later = START + SNAPSHOT_LIFETIME;
        assert_eq!([look("new", later), look("other", later)], [CachedLookup::Unknown, CachedLookup::Absent]);
        assert_eq!(look("other", later + 10 * SNAPSHOT_LIFETIME), CachedLookup::Unknown, "no lookups since");
    }

    #[test]
    fn a_directory_that_is_slow_to_list_has_no_snapshot() {
        let (dir, tree) = bed();
        let listed = DirectorySnapshots::default();
        let look = |dir: &str, now| {
            look_up_many(&listed, dir.as_bytes(), now);
            listed.lookup(&tree, dir.as_bytes(), b"new", || now)
        };
        assert_eq!(look("nowhere", START), CachedLookup::Unavailable);
        look_up_many(&listed, b"", START);
        let time = Cell::new(START);
        let slow = || time.replace(time.get() + SNAPSHOT_LIFETIME);
        assert_eq!(listed.lookup(&tree, b"", b"new", slow), CachedLookup::Unavailable);
        // There is no other attempt for some time.
        assert_eq!(look("", START + REST - SNAPSHOT_LIFETIME), CachedLookup::Unavailable);
        assert_eq!(look("", START + REST), CachedLookup::Absent);
        (0..=NAMES_MAX).for_each(|name| write(&dir.path().join(name.to_string())));
        assert_eq!(look("", START + REST + SNAPSHOT_LIFETIME), CachedLookup::Unavailable);
    }

    #[test]
    fn a_directory_that_the_job_created_has_a_snapshot_at_once() {
        let (dir, tree) = bed();
        fs::create_dir_all(dir.path().join("a/d")).expect("made");
        let listed = DirectorySnapshots::default();
        let look = |name: &str, now| listed.lookup(&tree, b"a/d", name.as_bytes(), || now);
        for forget in [
            |listed: &DirectorySnapshots| listed.moved(b"a"),
            |listed: &DirectorySnapshots| listed.removed(b"a/d"),
        ] {
            let _ = fs::remove_file(dir.path().join("a/d/new"));
            listed.made(b"a/d", START);
            write(&dir.path().join("a/d/new"));
            assert_eq!(look("new", START + OWN_TIME / 2), CachedLookup::Absent);
            let later = START + OWN_TIME;
            assert_eq!(
                [look("new", later), look("other", later)],
                [CachedLookup::Unknown, CachedLookup::Absent]
            );
            forget(&listed);
            assert_eq!(look("other", later + REST), CachedLookup::Unknown);
        }
    }

    #[test]
    fn the_listing_of_a_removed_directory_is_dropped() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        let listed = DirectorySnapshots::default();
        listed.made(b"d", START);
        let (later, times) = (START + OWN_TIME, Cell::new(0));
        // Another directory gets the path between the begin and the end of the listing.
        let clock = || {
            if times.replace(times.get() + 1) == 1 {
                listed.moved(b"d");
                listed.made(b"d", later);
            }
            later
        };
        assert_eq!(listed.lookup(&tree, b"d", b"new", clock), CachedLookup::Unknown);
        assert_eq!(times.get(), 2);
    }

    #[test]
    fn directories_are_bounded() {
        let listed = DirectorySnapshots::default();
        (0..2 * OWN_MAX).for_each(|number| listed.made(number.to_string().as_bytes(), START));
        let all = listed.directories.lock();
        assert!(all.listings.len() <= DIRECTORIES_MAX && all.own.len() <= OWN_MAX);
    }
}
