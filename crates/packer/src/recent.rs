//! Paths that something was found out about a moment ago.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tameike_io::shared::with_those_above;

/// Most paths that are known at a time.
const PATHS_MAX: usize = 16 << 10;

/// Paths, each with the time of the monotonic clock at which it was looked at. Where they are too many, some are not known.
pub struct Recent {
    paths: Mutex<HashMap<Vec<u8>, Duration>>,
    lasts: Duration,
}

impl Recent {
    /// No paths; what will be found out lasts so long.
    pub fn new(lasts: Duration) -> Self {
        Self { paths: Mutex::default(), lasts }
    }

    /// It was so at this moment.
    pub fn note(&self, path: &[u8], now: Duration) {
        let mut paths = self.paths.lock();
        if paths.len() >= PATHS_MAX {
            paths.retain(|_, seen| *seen + self.lasts > now);
        }
        if paths.len() < PATHS_MAX {
            paths.insert(path.to_vec(), now);
        }
    }

    /// It is not so any more.
    pub fn forget(&self, path: &[u8]) {
        self.paths.lock().remove(path);
    }

    /// When it was so, if that lasts.
    pub fn seen(&self, path: &[u8], now: Duration) -> Option<Duration> {
        self.paths.lock().get(path).copied().filter(|seen| *seen + self.lasts > now)
    }
}

/// What agents have done in the shared directory: who has looked there before must look again.
#[derive(Default)]
pub struct NameChanges {
    /// Where something was made.
    made: Paths,
    /// Where directories have come, with all that is below them.
    moved: Paths,
    /// Where directories were that have gone.
    gone: Paths,
}

#[derive(Default)]
struct Paths {
    paths: HashMap<Vec<u8>, Duration>,
    /// When paths were forgotten, as there were too many.
    forgotten: Option<Duration>,
}

/// How long they are known: longer than a message is on its packer.
const NAMED_TIME: Duration = Duration::from_secs(60);

impl Paths {
    fn note(&mut self, path: &[u8], now: Duration) {
        if self.paths.len() >= PATHS_MAX {
            self.paths.retain(|_, noted| *noted + NAMED_TIME > now);
        }
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
            self.forgotten = Some(now);
        }
        self.paths.insert(path.to_vec(), now);
    }

    /// Whether it may have been noted since this time, or of late.
    fn may_have(&self, path: &[u8], since: Option<Duration>, now: Duration) -> bool {
        let counts = |noted: Duration| since.map_or(noted + NAMED_TIME > now, |since| noted >= since);
        self.forgotten.is_some_and(counts) || self.paths.get(path).copied().is_some_and(counts)
    }
}

impl NameChanges {
    /// Something was made there at this moment.
    pub fn note(&mut self, path: &[u8], now: Duration) {
        self.made.note(path, now);
    }

    /// A directory has come there.
    pub fn note_moved(&mut self, path: &[u8], now: Duration) {
        self.moved.note(path, now);
    }

    /// A directory has gone from there.
    pub fn note_gone(&mut self, path: &[u8], now: Duration) {
        self.gone.note(path, now);
    }

    /// Whether something may have been made there since a look that was on its way; with `since`, one that began later.
    pub fn may_have(&self, path: &[u8], since: Option<Duration>, now: Duration) -> bool {
        let comes = |above: &[u8]| self.moved.may_have(above, since, now);
        self.made.may_have(path, since, now) || with_those_above(path).any(comes)
    }

    /// Whether a directory above a path may have gone since a look that was on its packer.
    pub fn may_lack_dir_of(&self, path: &[u8], now: Duration) -> bool {
        with_those_above(path).skip(1).any(|above| self.gone.may_have(above, None, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(7);

    #[test]
    fn paths_are_known_for_a_time_and_are_not_too_many() {
        let lasts = Duration::from_secs(1);
        let recent = Recent::new(lasts);
        recent.note(b"one", START);
        assert_eq!(recent.seen(b"one", START + lasts / 2), Some(START));
        assert!(recent.seen(b"other", START).is_none() && recent.seen(b"one", START + lasts).is_none());
        recent.forget(b"one");
        assert!(recent.seen(b"one", START).is_none());
        for number in 0..2 * PATHS_MAX {
            recent.note(number.to_string().as_bytes(), START);
        }
        assert_eq!(recent.paths.lock().len(), PATHS_MAX);
        recent.note(b"later", START + lasts);
        assert_eq!(recent.seen(b"later", START + lasts), Some(START + lasts));
        assert_eq!(recent.paths.lock().len(), 1);
    }

    #[test]
    fn what_was_made_is_never_forgotten_too_early() {
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
    fn with_a_directory_comes_what_is_in_it() {
        let mut named = NameChanges::default();
        named.note(b"made", START);
        named.note_moved(b"a/moved", START);
        for path in [&b"a/moved"[..], b"a/moved/one", b"a/moved/b/two", b"made"] {
            assert!(named.may_have(path, None, START) && !named.may_have(path, None, START + NAMED_TIME));
        }
        // What was made is new: nothing is in it.
        assert!(!["made/one", "a", "a/other", ""].iter().any(|path| named.may_have(
            path.as_bytes(),
            None,
            START
        )));
    }

    #[test]
    fn who_has_looked_again_is_not_told_to_for_what_was_there_before() {
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
    fn below_a_directory_that_has_gone_nothing_is_made_without_a_look() {
        let mut named = NameChanges::default();
        named.note_gone(b"a/gone", START);
        for path in ["a/gone/one", "a/gone/b/two"] {
            assert!(named.may_lack_dir_of(path.as_bytes(), START));
            assert!(!named.may_lack_dir_of(path.as_bytes(), START + NAMED_TIME));
        }
        assert!(!["a/gone", "a/one", "a"].iter().any(|path| named.may_lack_dir_of(path.as_bytes(), START)));
    }
}
