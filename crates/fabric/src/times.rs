//! The times in which an agent notices that a peer is silent. All follow from the peer time limit.

use std::time::Duration;
use tameike_core::limits::MAP_LEASE;

/// Longest interval at which pending calls are checked.
const TICK_MAX: Duration = Duration::from_secs(1);
/// Checks within the peer time limit, at least.
const CHECKS_MIN: u32 = 6;

/// The time limit for a silent peer. With replicas, a node that others do not reach is noticed as soon as one that does not answer the
/// authority of the home map.
pub fn peer_limit(has_replicas: bool) -> Duration {
    if has_replicas { MAP_LEASE } else { Duration::from_secs(10) }
}

/// The intervals that a peer time limit implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerTimes {
    /// Silence after which a peer is unreachable.
    pub limit: Duration,
    /// Interval at which pending calls are checked, and their peers probed.
    pub tick: Duration,
    /// Age of the oldest pending call to a peer at the first probe. It counts as silence, so that callers wait for the limit in all.
    pub probe_after: Duration,
    /// Probes further apart belong to separate silences.
    pub probe_gap: Duration,
}

impl PeerTimes {
    pub(crate) fn new(limit: Duration) -> Self {
        let tick = TICK_MAX.min(limit / CHECKS_MIN);
        Self { limit, tick, probe_after: 2 * tick, probe_gap: 3 * tick }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_noticed_soon_after_the_limit() {
        let without = PeerTimes::new(peer_limit(false));
        assert_eq!((without.tick, without.probe_after), (Duration::from_secs(1), Duration::from_secs(2)));
        let with = PeerTimes::new(peer_limit(true));
        assert_eq!(with.limit, MAP_LEASE);
        assert_eq!((with.tick, with.probe_after), (Duration::from_millis(250), Duration::from_millis(500)));
        // Silence since the last probe of an earlier silence never reaches the limit.
        assert!([with, without].iter().all(|times| times.probe_gap < times.limit));
    }
}
