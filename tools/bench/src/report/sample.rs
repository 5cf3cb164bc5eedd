//! One step of one workload on one target, measured once.

use super::figure::Figure;
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
    /// From 0.
    pub repetition: u32,
    /// When it ended, from the start of the run.
    pub at_seconds: f64,
    /// What each rank did.
    pub ranks: Vec<Work>,
    /// How long single operations of all ranks took.
    pub latency: Option<Percentiles>,
    /// What the target's processes took.
    pub servers: Option<Usage>,
}

impl Sample {
    /// What ranks and servers did in a step.
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

    /// Its part of a row.
    pub fn figure(&self) -> Figure {
        Figure {
            rate: self.rate(),
            latency_us: self.latency.map(|all| (all.p50_us, all.p99_us)),
            programs_seconds: self.processor_seconds(),
            servers_seconds: self.servers.map(|usage| usage.processor_seconds),
            bytes: self.bytes(),
            operations: self.operations(),
        }
    }

    /// The work of all ranks over the time of the slowest, in the unit of the step.
    pub fn rate(&self) -> f64 {
        let slowest = self.ranks.iter().map(|work| work.seconds).fold(0.0, f64::max);
        match self.step.unit() {
            Some(Unit::MebibytesPerSecond) => self.bytes() / f64::from(1 << 20) / slowest,
            Some(Unit::OperationsPerSecond) | None => self.operations() / slowest,
        }
    }

    /// Read or written by all ranks.
    pub fn bytes(&self) -> f64 {
        self.ranks.iter().map(|work| work.bytes).sum::<u64>() as f64
    }

    /// Of all ranks.
    pub fn operations(&self) -> f64 {
        self.ranks.iter().map(|work| work.operations).sum::<u64>() as f64
    }

    /// Of all ranks, in their calls to the file system.
    pub fn processor_seconds(&self) -> f64 {
        self.ranks.iter().map(|work| work.processor_seconds).sum()
    }

    /// Step and rate, for the progress of a run.
    pub fn summary(&self) -> String {
        let unit = self.step.unit().map_or("", Unit::name);
        format!("{} {} {unit}", self.workload.title(self.step), grouped(self.rate()))
    }
}
