//! Measures calls to a file system: elapsed time, processor time, and the latency of each call.

use crate::clock::{Stopwatch, processor_seconds};
use crate::latency::Latencies;
use crate::outcome::Outcome;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The work of one rank in one step, in sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// In calls to the file system.
    pub seconds: f64,
    /// Of this process on a processor, in those calls.
    pub processor_seconds: f64,
    /// Files, or calls on a file.
    pub operations: u64,
    /// Read or written.
    pub bytes: u64,
}

/// The measurements of one rank in one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// All of it.
    pub work: Work,
    /// Each operation.
    pub latencies: Latencies,
}

impl Measured {
    /// The same work, persisted after `elapsed`.
    pub fn persisted(&self, elapsed: Duration) -> Self {
        Self { work: Work { seconds: elapsed.as_secs_f64(), ..self.work }, latencies: Latencies::default() }
    }

    /// Returns the measurements of `calls`, as [`Self::time`].
    pub fn of(calls: impl FnOnce(&mut Laps) -> Outcome<()>) -> Outcome<Self> {
        let mut measured = Self::default();
        measured.time(calls)?;
        Ok(measured)
    }

    /// Times `calls`, which report the end of each operation.
    pub fn time<T>(&mut self, calls: impl FnOnce(&mut Laps) -> Outcome<T>) -> Outcome<T> {
        let processor_before = processor_seconds();
        let watch = Stopwatch::start();
        let value = calls(&mut Laps { measured: self, watch, last: Duration::ZERO })?;
        self.work.seconds += watch.elapsed().as_secs_f64();
        self.work.processor_seconds += processor_seconds() - processor_before;
        Ok(value)
    }
}

/// The running clock of a stretch of calls.
#[derive(Debug)]
pub struct Laps<'a> {
    measured: &'a mut Measured,
    watch: Stopwatch,
    last: Duration,
}

impl Laps<'_> {
    /// An operation on `bytes` is done; it began when the one before it ended.
    pub fn done(&mut self, bytes: usize) {
        let before = self.last;
        self.pass();
        self.measured.latencies.count(self.last - before);
        self.measured.work.operations += 1;
        self.measured.work.bytes += bytes as u64;
    }

    /// The time since the last operation counts in the sum only.
    pub fn pass(&mut self) {
        self.last = self.watch.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_and_what_belongs_to_none_is_not() {
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
