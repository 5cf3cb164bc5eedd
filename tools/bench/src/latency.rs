//! A histogram of the latencies of calls.
//!
//! A bucket is a 64th of a power of two wide, so no figure is off by more than 1 %. Histograms of many ranks are added up.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Buckets in a power of two, as a power of two.
const FINE_BITS: u32 = 6;
/// The last bucket holds 2^64 - 1 nanoseconds.
const BUCKETS: usize = ((u64::BITS - FINE_BITS + 1) as usize) << FINE_BITS;

/// Counts of calls by latency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub struct Latencies(Vec<u32>);

/// The buckets that are not empty, which a rank sends to the coordinator.
#[derive(Serialize, Deserialize)]
struct Sparse(Vec<(usize, u32)>);

/// Percentiles of the latencies of many calls, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the calls took less.
    pub p50_us: f64,
    /// Nine tenths took less.
    pub p90_us: f64,
    /// 99 of 100 took less.
    pub p99_us: f64,
    /// 999 of 1,000 took less.
    pub p999_us: f64,
    /// None took more.
    pub highest_us: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl From<Sparse> for Latencies {
    fn from(sparse: Sparse) -> Self {
        let mut all = Self::default();
        for (bucket, count) in sparse.0 {
            if let Some(held) = all.0.get_mut(bucket) {
                *held += count;
            }
        }
        all
    }
}

impl From<Latencies> for Sparse {
    fn from(all: Latencies) -> Self {
        Self(all.0.into_iter().enumerate().filter(|&(_, count)| count > 0).collect())
    }
}

impl Latencies {
    /// Counts one call.
    pub fn count(&mut self, took: Duration) {
        self.0[bucket(took.as_nanos() as u64)] += 1;
    }

    /// Counts all calls of `other` too.
    pub fn add(&mut self, other: &Self) {
        for (held, more) in self.0.iter_mut().zip(&other.0) {
            *held += more;
        }
    }

    /// The percentiles; `None` when no call was counted.
    pub fn percentiles(&self) -> Option<Percentiles> {
        Some(Percentiles {
            p50_us: self.at(0.5)?,
            p90_us: self.at(0.9)?,
            p99_us: self.at(0.99)?,
            p999_us: self.at(0.999)?,
            highest_us: self.at(1.0)?,
        })
    }

    /// The latency that `share` of the calls do not exceed, in microseconds: the middle of its bucket.
    fn at(&self, share: f64) -> Option<f64> {
        let total: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.0.iter().position(|&count| {
            seen += u64::from(count);
            seen >= wanted
        });
        found.map(|bucket| middle(bucket) / 1000.0)
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(FINE_BITS + 1);
    ((u64::from(shift) << FINE_BITS) + (nanos >> shift)) as usize
}

/// In nanoseconds.
fn middle(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    let shift = (bucket >> FINE_BITS).saturating_sub(1);
    let (lowest, width) = ((bucket - (shift << FINE_BITS)) << shift, 1u64 << shift);
    lowest as f64 + (width - 1) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_has_a_bucket_and_its_middle_is_near() {
        let mut last = 0;
        for nanos in (0..1000).chain((10..64).flat_map(|bits| [(1 << bits) - 1, 1 << bits, 3 << (bits - 2)]))
        {
            let found = bucket(nanos);
            let off = (middle(found) - nanos as f64).abs();
            assert!(off <= nanos as f64 / 64.0, "{nanos} is reported as {}", middle(found));
            last = last.max(found);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(last < BUCKETS);
    }

    #[test]
    fn percentiles_are_those_of_the_calls_of_all_ranks() {
        let mut all = Latencies::default();
        assert_eq!(all.percentiles(), None);
        for micros in 1..=1000 {
            let mut one = Latencies::default();
            one.count(Duration::from_micros(micros));
            let sent = serde_json::to_string(&one).expect("JSON");
            all.add(&serde_json::from_str(&sent).expect("what was sent"));
        }
        let found = all.percentiles().expect("calls");
        for (found, right) in [
            (found.p50_us, 500.0),
            (found.p90_us, 900.0),
            (found.p99_us, 990.0),
            (found.p999_us, 999.0),
            (found.highest_us, 1000.0),
        ] {
            assert!((found / right - 1.0f64).abs() < 0.02, "{found}, not {right}");
        }
    }
}
