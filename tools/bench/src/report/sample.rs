//! A single measurement: one step of one workload on one target.

use super::grouped;
use crate::coordinator::Done;
use crate::latency::{Latencies, Percentiles};
use crate::servers::Usage;
use crate::workload::{Step, Unit, Work, Workload};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub workload: Workload,
    pub step: Step,
    pub target: String,
    /// The repetition, from 0.
    pub repetition: u32,
    /// The end of the step, in seconds from the start of the run.
    pub at_seconds: f64,
    /// The work of each rank.
    pub ranks: Vec<Work>,
    /// Percentiles of single operations of all ranks.
    pub latency: Option<Percentiles>,
    /// The usage of the target's processes.
    pub servers: Option<Usage>,
}

impl Sample {
    /// The sample of a completed step.
    pub fn new(workload: Workload, target: &str, repetition: u32, done: &Done) -> Self {
        let mut latencies = Latencies::default();
        for rank in &done.ranks {
            latencies.add(&rank.latencies);
        }
        Self {
            workload,
            step: done.step,
            target: target.to_owned(),
            repetition,
            at_seconds: done.at_seconds,
            ranks: done.ranks.iter().map(|rank| rank.work).collect(),
            latency: latencies.percentiles(),
            servers: done.servers,
        }
    }

    /// The work of all ranks divided by the time of the slowest, in the unit of the step.
    pub fn rate(&self) -> f64 {
        let slowest = self.ranks.iter().map(|work| work.seconds).fold(0.0, f64::max);
        match self.step.unit() {
            Some(Unit::MebibytesPerSecond) => self.bytes() / f64::from(1 << 20) / slowest,
            Some(Unit::OperationsPerSecond) | None => self.operations() / slowest,
        }
    }

    /// Bytes read or written by all ranks.
    pub fn bytes(&self) -> f64 {
        self.ranks.iter().map(|work| work.bytes).sum::<u64>() as f64
    }

    pub fn operations(&self) -> f64 {
        self.ranks.iter().map(|work| work.operations).sum::<u64>() as f64
    }

    /// Processor seconds of all ranks in calls to the file system.
    pub fn processor_seconds(&self) -> f64 {
        self.ranks.iter().map(|work| work.processor_seconds).sum()
    }

    /// Step and rate, for progress output.
    pub fn summary(&self) -> String {
        let unit = self.step.unit().map_or("", Unit::name);
        format!("{} {} {unit}", self.workload.title(self.step), grouped(self.rate()))
    }
}
