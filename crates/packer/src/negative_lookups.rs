//! Directories in which many lookups fail.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// Failed lookups in a row that count as many.
const MANY: u32 = 8;
/// Directories in the table.
const DIRECTORIES_MAX: usize = 1024;

/// The time of the last failed lookup, by the monotonic clock, and the count of such.
#[derive(Clone, Copy, Default)]
struct Row {
    last: Duration,
    count: u32,
}

/// Counts of failed lookups by directory.
pub struct NegativeLookups {
    /// The longest time between two that count together.
    gap: Duration,
    rows: Mutex<HashMap<Vec<u8>, Row>>,
}

impl NegativeLookups {
    /// No counts. Failed lookups that follow each other within this time count together.
    pub fn new(gap: Duration) -> Self {
        Self { gap, rows: Mutex::default() }
    }

    fn goes_on(&self, row: &Row, now: Duration) -> bool {
        now.saturating_sub(row.last) <= self.gap
    }

    /// Counts a failed lookup.
    pub fn count(&self, dir: &[u8], now: Duration) {
        let mut rows = self.rows.lock();
        if let Some(row) = rows.get_mut(dir) {
            row.count = if self.goes_on(row, now) { row.count.saturating_add(1) } else { 1 };
            row.last = now;
            return;
        }
        if rows.len() >= DIRECTORIES_MAX {
            rows.retain(|_, row| self.goes_on(row, now));
        }
        if rows.len() < DIRECTORIES_MAX {
            rows.insert(dir.to_vec(), Row { last: now, count: 1 });
        }
    }

    /// Whether the next lookup is likely to fail.
    pub fn are_many(&self, dir: &[u8], now: Duration) -> bool {
        self.rows.lock().get(dir).is_some_and(|row| row.count >= MANY && self.goes_on(row, now))
    }

    /// Starts the count of a directory again.
    pub fn forget(&self, dir: &[u8]) {
        self.rows.lock().remove(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(7);
    const GAP: Duration = Duration::from_millis(20);

    #[test]
    fn negative_lookups_close_to_each_other_count_together() {
        let lookups = NegativeLookups::new(GAP);
        let slow = GAP + Duration::from_millis(1);
        (0..2 * MANY).for_each(|miss| lookups.count(b"slow", START + slow * miss));
        assert!(!lookups.are_many(b"slow", START + slow * 2 * MANY));
        (0..MANY).for_each(|miss| {
            assert!(!lookups.are_many(b"fast", START + GAP * miss));
            lookups.count(b"fast", START + GAP * miss);
        });
        let end = START + GAP * MANY;
        assert!(lookups.are_many(b"fast", end) && !lookups.are_many(b"fast", end + GAP));
        lookups.forget(b"fast");
        assert!(!lookups.are_many(b"fast", end));
    }

    #[test]
    fn directories_are_bounded() {
        let lookups = NegativeLookups::new(GAP);
        (0..2 * DIRECTORIES_MAX).for_each(|dir| lookups.count(dir.to_string().as_bytes(), START));
        assert_eq!(lookups.rows.lock().len(), DIRECTORIES_MAX);
        lookups.count(b"later", START + 2 * GAP);
        assert_eq!(lookups.rows.lock().len(), 1);
    }
}
