//! One step on one target, measured once.

use crate::report::Figure;
use crate::servers::Usage;
use crate::workload::Unit;
use serde::Serialize;

/// What programs did in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub seconds: f64,
    pub operations: f64,
    pub bytes: f64,
    /// Median and 99th percentile of calls, in microseconds.
    pub latency_us: Option<(f64, f64)>,
    /// Their processor time.
    pub programs_seconds: Option<f64>,
}

/// A measurement, as `result.json` has it.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub group: &'static str,
    pub title: String,
    pub unit: Unit,
    pub target: String,
    /// From 0.
    pub round: u32,
    /// When it ended, from the start of the run.
    pub at_seconds: f64,
    #[serde(flatten)]
    pub measured: Measured,
    /// Processor time of the target's processes in the step, and their memory after it.
    pub servers: Option<Usage>,
}

impl Sample {
    /// In the unit of the step.
    pub fn rate(&self) -> f64 {
        match self.unit {
            Unit::MebibytesPerSecond => self.measured.bytes / f64::from(1 << 20) / self.measured.seconds,
            Unit::OperationsPerSecond => self.measured.operations / self.measured.seconds,
        }
    }

    /// Its part of a row.
    pub fn figure(&self) -> Figure {
        Figure {
            rate: self.rate(),
            latency_us: self.measured.latency_us,
            programs_seconds: self.measured.programs_seconds.unwrap_or(0.0),
            servers_seconds: self.servers.map(|usage| usage.processor_seconds),
            bytes: self.measured.bytes,
            operations: self.measured.operations,
        }
    }
}
