//! Directories in which names are asked for again and again that are not there.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// So many, ...
const MANY: u32 = 8;
/// ... each so soon after the one before.
const GAP_MAX: Duration = Duration::from_millis(20);
/// Directories that are known at a time.
const DIRECTORIES_MAX: usize = 1024;

/// When a name was missing last, by the monotonic clock, and how many were.
#[derive(Clone, Copy, Default)]
struct Row {
    last: Duration,
    count: u32,
}

impl Row {
    fn goes_on(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) <= GAP_MAX
    }
}

/// What is known of directories.
#[derive(Default)]
pub struct Misses(Mutex<HashMap<Vec<u8>, Row>>);

impl Misses {
    /// A name was missing.
    pub fn count(&self, dir: &[u8], now: Duration) {
        let mut rows = self.0.lock();
        if let Some(row) = rows.get_mut(dir) {
            row.count = if row.goes_on(now) { row.count.saturating_add(1) } else { 1 };
            row.last = now;
            return;
        }
        if rows.len() >= DIRECTORIES_MAX {
            rows.retain(|_, row| row.goes_on(now));
        }
        if rows.len() < DIRECTORIES_MAX {
            rows.insert(dir.to_vec(), Row { last: now, count: 1 });
        }
    }

    /// Whether the next is likely to be missing, too.
    pub fn are_many(&self, dir: &[u8], now: Duration) -> bool {
        self.0.lock().get(dir).is_some_and(|row| row.count >= MANY && row.goes_on(now))
    }

    /// Counts anew.
    pub fn forget(&self, dir: &[u8]) {
        self.0.lock().remove(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(7);

    #[test]
    fn many_are_those_that_come_soon_after_one_another() {
        let misses = Misses::default();
        let slow = GAP_MAX + Duration::from_millis(1);
        (0..2 * MANY).for_each(|miss| misses.count(b"slow", START + slow * miss));
        assert!(!misses.are_many(b"slow", START + slow * 2 * MANY));
        (0..MANY).for_each(|miss| {
            assert!(!misses.are_many(b"fast", START + GAP_MAX * miss));
            misses.count(b"fast", START + GAP_MAX * miss);
        });
        let end = START + GAP_MAX * MANY;
        assert!(misses.are_many(b"fast", end) && !misses.are_many(b"fast", end + GAP_MAX));
        misses.forget(b"fast");
        assert!(!misses.are_many(b"fast", end));
    }

    #[test]
    fn directories_are_not_too_many() {
        let misses = Misses::default();
        (0..2 * DIRECTORIES_MAX).for_each(|dir| misses.count(dir.to_string().as_bytes(), START));
        assert_eq!(misses.0.lock().len(), DIRECTORIES_MAX);
        misses.count(b"later", START + 2 * GAP_MAX);
        assert_eq!(misses.0.lock().len(), 1);
    }
}
