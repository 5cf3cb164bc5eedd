//! Paths at which the shared directory was found to have nothing a moment ago: what is packed there is seen without asking again.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// How long nobody asks again: what programs outside of jobs put under the name of a packed file is seen so much later.
pub const ABSENT_TIME: Duration = Duration::from_secs(1);
/// Most paths that are known at a time.
const PATHS_MAX: usize = 16 << 10;

/// The paths, each with the time of the monotonic clock at which it was looked at.
#[derive(Default)]
pub struct Absent(Mutex<HashMap<Vec<u8>, Duration>>);

impl Absent {
    /// Nothing was there at this moment.
    pub fn note(&self, path: &[u8], now: Duration) {
        let mut paths = self.0.lock();
        if paths.len() >= PATHS_MAX {
            paths.retain(|_, seen| *seen + ABSENT_TIME > now);
        }
        if paths.len() < PATHS_MAX {
            paths.insert(path.to_vec(), now);
        }
    }

    /// This node has made something there.
    pub fn forget(&self, path: &[u8]) {
        self.0.lock().remove(path);
    }

    /// Whether nothing is there.
    pub fn has(&self, path: &[u8], now: Duration) -> bool {
        self.0.lock().get(path).is_some_and(|seen| *seen + ABSENT_TIME > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_known_for_a_time_and_are_not_too_many() {
        let (absent, start) = (Absent::default(), Duration::from_secs(7));
        absent.note(b"one", start);
        assert!(absent.has(b"one", start) && absent.has(b"one", start + ABSENT_TIME / 2));
        assert!(!absent.has(b"other", start) && !absent.has(b"one", start + ABSENT_TIME));
        absent.forget(b"one");
        assert!(!absent.has(b"one", start));
        for number in 0..2 * PATHS_MAX {
            absent.note(number.to_string().as_bytes(), start);
        }
        assert_eq!(absent.0.lock().len(), PATHS_MAX);
        absent.note(b"later", start + ABSENT_TIME);
        assert!(absent.has(b"later", start + ABSENT_TIME));
        assert_eq!(absent.0.lock().len(), 1);
    }
}
