//! Measurement of calls to a file system: total time, processor time, and the latency of each call.

use crate::clock::{Stopwatch, processor_seconds};
use crate::latency::Latencies;
use crate::outcome::Outcome;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The work of one rank in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Time in calls to the file system, in seconds.
    pub seconds: f64,
    /// Processor time of this process in those calls, in seconds.
    pub processor_seconds: f64,
    /// Number of files, or of calls on a file.
    pub operations: u64,
    pub bytes: u64,
}

/// The measurements of one rank in one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub work: Work,
    pub latencies: Latencies,
}

impl Measured {
    /// Measures `calls`, which report the end of each operation.
    pub fn time<T>(&mut self, calls: impl FnOnce(&mut Laps) -> Outcome<T>) -> Outcome<T> {
        let processor_before = processor_seconds();
        let watch = Stopwatch::start();
        let value = calls(&mut Laps { measured: self, watch, last: Duration::ZERO })?;
        self.work.seconds += watch.elapsed().as_secs_f64();
        self.work.processor_seconds += processor_seconds() - processor_before;
        Ok(value)
    }
}

/// The clock during measured calls.
#[derive(Debug)]
pub struct Laps<'a> {
    measured: &'a mut Measured,
    watch: Stopwatch,
    last: Duration,
}

impl Laps<'_> {
    /// Counts an operation on `bytes`, which started at the end of the previous one.
    pub fn done(&mut self, bytes: usize) {
        let before = self.last;
        self.pass();
        self.measured.latencies.count(self.last - before);
        self.measured.work.operations += 1;
        self.measured.work.bytes += bytes as u64;
    }

    /// Excludes the time since the last operation from latencies. It counts only in the sum.
    pub fn pass(&mut self) {
        self.last = self.watch.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_and_excluded_time_is_not() {
        let mut measured = Measured::default();
        let spin = |micros| {
            let watch = Stopwatch::start();
            while watch.elapsed() < Duration::from_micros(micros) {}
        };
        measured
            .time(|laps| {
                spin(20_000);
                laps.pass();
                laps.done(3);
                laps.done(4);
                Ok(())
            })
            .expect("nothing fails");
        let Work { seconds, operations, bytes, .. } = measured.work;
        assert!(seconds >= 0.02, "{measured:?}");
        assert_eq!((operations, bytes), (2, 7));
        assert!(measured.latencies.percentiles().expect("two calls").p50_us < 20_000.0);
    }
}
