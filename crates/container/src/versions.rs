//! Version numbers of the entries that one process puts.

use tameike_core::Timestamp;
use tameike_io::os::process::wall;

/// Numbers versions by the wall clock, in nanoseconds. Of two entries of a path, the one with the larger version counts.
#[derive(Debug, Default)]
pub struct Versions {
    last: u64,
}

impl Versions {
    /// Returns a version later than all that it has returned, and than `replaced`, even if clocks of hosts differ.
    pub fn next(&mut self, replaced: u64) -> u64 {
        let Timestamp { seconds, nanoseconds } = wall();
        let now = u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::from(nanoseconds);
        self.last = now.max(self.last + 1).max(replaced + 1);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_and_exceed_the_replaced_one() {
        let mut versions = Versions::default();
        let first = versions.next(0);
        let ahead = first + 3_600_000_000_000;
        assert!(versions.next(0) > first);
        assert_eq!(versions.next(ahead), ahead + 1);
        assert_eq!(versions.next(0), ahead + 2, "the clock is behind");
    }
}
