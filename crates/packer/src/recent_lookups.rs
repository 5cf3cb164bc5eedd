//! Recent lookups and changes of names.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tameike_io::shared::self_and_ancestors;

/// Paths in one table.
const PATHS_MAX: usize = 16 << 10;

/// Paths with the times of their lookups, by the monotonic clock. In a full table some paths are missing.
pub struct RecentLookups {
    paths: Mutex<HashMap<Vec<u8>, Duration>>,
    lifetime: Duration,
}

impl RecentLookups {
    /// An empty table, whose entries are valid for this time.
    pub fn new(lifetime: Duration) -> Self {
        Self { paths: Mutex::default(), lifetime }
    }

    /// Records a lookup at this time.
    pub fn note(&self, path: &[u8], now: Duration) {
        let mut paths = self.paths.lock();
        if paths.len() >= PATHS_MAX {
            paths.retain(|_, seen| *seen + self.lifetime > now);
        }
        if paths.len() < PATHS_MAX {
            paths.insert(path.to_vec(), now);
        }
    }

    /// Drops an entry.
    pub fn forget(&self, path: &[u8]) {
        self.paths.lock().remove(path);
    }

    /// The time of the last lookup, if that is still valid.
    pub fn seen(&self, path: &[u8], now: Duration) -> Option<Duration> {
        self.paths.lock().get(path).copied().filter(|seen| *seen + self.lifetime > now)
    }
}

/// Changes of names by agents: a client whose lookup is older must look up again.
#[derive(Default)]
pub struct NameChanges {
    /// Paths at which something was created.
    made: Paths,
    /// Paths to which directories were renamed, with all that is below them.
    moved: Paths,
    /// Paths of directories that were removed or renamed.
    removed: Paths,
}

#[derive(Default)]
struct Paths {
    paths: HashMap<Vec<u8>, Duration>,
    /// When a full table was cleared.
    cleared: Option<Duration>,
}

/// How long changes are kept: longer than a message is in flight.
const NAMED_TIME: Duration = Duration::from_secs(60);

impl Paths {
    fn note(&mut self, path: &[u8], now: Duration) {
        if self.paths.len() >= PATHS_MAX {
            self.paths.retain(|_, noted| *noted + NAMED_TIME > now);
        }
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
            self.cleared = Some(now);
        }
        self.paths.insert(path.to_vec(), now);
    }

    /// Whether the path may have been recorded since this time, or recently.
    fn may_have(&self, path: &[u8], since: Option<Duration>, now: Duration) -> bool {
        let counts = |noted: Duration| since.map_or(noted + NAMED_TIME > now, |since| noted >= since);
        self.cleared.is_some_and(counts) || self.paths.get(path).copied().is_some_and(counts)
    }
}

impl NameChanges {
    /// Any name may have changed at this time.
    pub fn unknown_at(now: Duration) -> Self {
        let paths = || Paths { paths: HashMap::new(), cleared: Some(now) };
        Self { made: paths(), moved: paths(), removed: paths() }
    }

    /// Records a creation.
    pub fn note(&mut self, path: &[u8], now: Duration) {
        self.made.note(path, now);
    }

    /// Records a directory that was renamed to a path.
    pub fn note_moved(&mut self, path: &[u8], now: Duration) {
        self.moved.note(path, now);
    }

    /// Records a directory that was removed or renamed from a path.
    pub fn note_removed(&mut self, path: &[u8], now: Duration) {
        self.removed.note(path, now);
    }

    /// Whether something may have been created at a path since a lookup in flight; or since the lookup at `since`.
    pub fn may_have(&self, path: &[u8], since: Option<Duration>, now: Duration) -> bool {
        let comes = |above: &[u8]| self.moved.may_have(above, since, now);
        self.made.may_have(path, since, now) || self_and_ancestors(path).any(comes)
    }

    /// Whether a directory above a path may have been removed since a lookup in flight.
    pub fn may_lack_dir_of(&self, path: &[u8], now: Duration) -> bool {
        self_and_ancestors(path).skip(1).any(|above| self.removed.may_have(above, None, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(7);

    #[test]
    fn entries_expire_and_are_bounded() {
        let lifetime = Duration::from_secs(1);
        let recent = RecentLookups::new(lifetime);
        recent.note(b"one", START);
        assert_eq!(recent.seen(b"one", START + lifetime / 2), Some(START));
        assert!(recent.seen(b"other", START).is_none() && recent.seen(b"one", START + lifetime).is_none());
        recent.forget(b"one");
        assert!(recent.seen(b"one", START).is_none());
        for number in 0..2 * PATHS_MAX {
            recent.note(number.to_string().as_bytes(), START);
        }
        assert_eq!(recent.paths.lock().len(), PATHS_MAX);
        recent.note(b"later", START + lifetime);
        assert_eq!(recent.seen(b"later", START + lifetime), Some(START + lifetime));
        assert_eq!(recent.paths.lock().len(), 1);
    }

    #[test]
    fn a_full_table_answers_that_a_name_may_have_changed() {
        let mut named = NameChanges::default();
        named.note(b"one", START);
        assert!(named.may_have(b"one", None, START) && !named.may_have(b"other", None, START));
        assert!(!named.may_have(b"one", None, START + NAMED_TIME));
        for number in 0..PATHS_MAX {
            named.note(number.to_string().as_bytes(), START);
        }
        let before_end = START + NAMED_TIME - Duration::from_millis(1);
        assert!(named.may_have(b"one", None, before_end) && named.made.paths.len() <= PATHS_MAX);
        assert!(!named.may_have(b"one", None, START + NAMED_TIME));
    }

    #[test]
    fn entries_come_with_a_renamed_directory() {
        let mut named = NameChanges::default();
        named.note(b"made", START);
        named.note_moved(b"a/moved", START);
        for path in [&b"a/moved"[..], b"a/moved/one", b"a/moved/b/two", b"made"] {
            assert!(named.may_have(path, None, START) && !named.may_have(path, None, START + NAMED_TIME));
        }
        // A created directory is empty.
        assert!(!["made/one", "a", "a/other", ""].iter().any(|path| named.may_have(
            path.as_bytes(),
            None,
            START
        )));
    }

    #[test]
    fn a_newer_lookup_is_not_repeated_for_older_changes() {
        let later = START + Duration::from_secs(1);
        let mut named = NameChanges::default();
        named.note(b"one", START);
        assert!(named.may_have(b"one", Some(START), later) && !named.may_have(b"one", Some(later), later));
        (0..=PATHS_MAX).for_each(|number| named.note(number.to_string().as_bytes(), later));
        assert!(named.may_have(b"other", Some(later), later));
        let last = later + Duration::from_secs(1);
        assert!(named.may_have(b"other", None, last) && !named.may_have(b"other", Some(last), last));
    }

    #[test]
    fn creation_below_a_removed_directory_needs_a_lookup() {
        let mut named = NameChanges::default();
        named.note_removed(b"a/gone", START);
        for path in ["a/gone/one", "a/gone/b/two"] {
            assert!(named.may_lack_dir_of(path.as_bytes(), START));
            assert!(!named.may_lack_dir_of(path.as_bytes(), START + NAMED_TIME));
        }
        assert!(!["a/gone", "a/one", "a"].iter().any(|path| named.may_lack_dir_of(path.as_bytes(), START)));
    }
}
