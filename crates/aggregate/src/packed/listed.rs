//! What directories of the shared file system have, for a moment.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

/// How long what was listed is believed: so much later is seen what others make there.
pub const LISTED_TIME: Duration = Duration::from_millis(50);
/// A directory that takes longer to list, or has more names, ...
const LISTING_MAX: Duration = Duration::from_millis(25);
const NAMES_MAX: usize = 1024;
/// ... is not tried again for so long.
const REST: Duration = Duration::from_secs(10);
/// Directories that are known at a time.
const DIRECTORIES_MAX: usize = 64;

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

/// The directories.
#[derive(Default)]
pub struct Listed(Mutex<HashMap<Vec<u8>, Listing>>);

impl Listed {
    /// Whether a directory is known not to have a name; it is listed where that was too long ago by the monotonic `clock`. Who asks while
    /// another one lists does not wait.
    pub fn lacks(&self, fs: &dyn SharedFs, dir: &[u8], name: &[u8], clock: impl Fn() -> Duration) -> bool {
        let began = clock();
        if let Err(lacks) = self.claim(dir, name, began) {
            return lacks;
        }
        let names = names_of(fs, dir).ok().flatten().filter(|_| clock() - began <= LISTING_MAX);
        let lasts = if names.is_some() { LISTED_TIME } else { REST };
        let listing = Listing { until: began + lasts, names };
        let lacks = listing.lacks(name);
        self.0.lock().insert(dir.to_vec(), listing);
        lacks
    }

    /// Who may list the directory now; else what is known of the name.
    fn claim(&self, dir: &[u8], name: &[u8], now: Duration) -> std::result::Result<(), bool> {
        let mut directories = self.0.lock();
        if let Some(listing) = directories.get(dir).filter(|listing| listing.until > now) {
            return Err(listing.lacks(name));
        }
        if directories.len() >= DIRECTORIES_MAX {
            directories.retain(|_, listing| listing.until > now);
        }
        if directories.len() >= DIRECTORIES_MAX {
            return Err(false);
        }
        directories.insert(dir.to_vec(), Listing { until: now + REST, names: None });
        Ok(())
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

    #[test]
    fn a_directory_is_listed_again_when_that_was_too_long_ago() {
        let (dir, tree) = bed();
        fs::create_dir(dir.path().join("d")).expect("made");
        write(&dir.path().join("d/there"));
        let listed = Listed::default();
        assert!(
            listed.lacks(&tree, b"d", b"new", || START) && !listed.lacks(&tree, b"d", b"there", || START)
        );
        write(&dir.path().join("d/new"));
        let soon = START + LISTED_TIME - Duration::from_millis(1);
        assert!(listed.lacks(&tree, b"d", b"new", || soon));
        let later = START + LISTED_TIME;
        assert!(
            !listed.lacks(&tree, b"d", b"new", || later) && listed.lacks(&tree, b"d", b"other", || later)
        );
    }

    #[test]
    fn what_cannot_be_listed_in_time_lacks_nothing() {
        let (dir, tree) = bed();
        let listed = Listed::default();
        assert!(!listed.lacks(&tree, b"nowhere", b"new", || START));
        let time = Cell::new(START);
        let slow = || time.replace(time.get() + 2 * LISTING_MAX);
        assert!(!listed.lacks(&tree, b"", b"new", slow));
        // For some time nobody tries again.
        assert!(!listed.lacks(&tree, b"", b"new", || START + REST - LISTED_TIME));
        assert!(listed.lacks(&tree, b"", b"new", || START + REST));
        (0..=NAMES_MAX).for_each(|name| write(&dir.path().join(name.to_string())));
        assert!(!listed.lacks(&tree, b"", b"new", || START + REST + LISTED_TIME));
    }

    #[test]
    fn directories_are_not_too_many() {
        let (_dir, tree) = bed();
        let listed = Listed::default();
        for number in 0..2 * DIRECTORIES_MAX {
            listed.lacks(&tree, number.to_string().as_bytes(), b"new", || START);
        }
        assert_eq!(listed.0.lock().len(), DIRECTORIES_MAX);
    }
}
