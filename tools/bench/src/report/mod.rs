//! The report of a run: raw figures as JSON, medians and ratios as Markdown, and a picture.

mod machine;
mod picture;
mod table;

#[cfg(test)]
mod tests;

use crate::latency::{Latencies, Percentiles};
use crate::options::RunOptions;
use crate::outcome::{Context, Outcome};
use crate::target::{Label, Target};
use crate::workload::{Measured, Step, Unit, Work, Workload};
use machine::Machine;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// One step of one workload on one target, once.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The workload.
    pub workload: Workload,
    /// Its step.
    pub step: Step,
    /// On which target.
    pub target: String,
    /// From 0.
    pub repetition: u32,
    /// What each rank did.
    pub ranks: Vec<Work>,
    /// How long single operations of all ranks took.
    pub latency: Option<Percentiles>,
}

impl Sample {
    /// What the ranks measured.
    pub fn new(workload: Workload, step: Step, target: &str, repetition: u32, ranks: &[Measured]) -> Self {
        let mut latencies = Latencies::default();
        for rank in ranks {
            latencies.add(&rank.latencies);
        }
        Self {
            workload,
            step,
            target: target.to_owned(),
            repetition,
            ranks: ranks.iter().map(|rank| rank.work).collect(),
            latency: latencies.percentiles(),
        }
    }

    /// The work of all ranks over the time of the slowest, in the unit of the step.
    pub fn rate(&self) -> f64 {
        let slowest = self.ranks.iter().map(|work| work.seconds).fold(0.0, f64::max);
        let sum = |count: fn(&Work) -> u64| self.ranks.iter().map(count).sum::<u64>() as f64;
        match self.step.unit() {
            Some(Unit::MebibytesPerSecond) => sum(|work| work.bytes) / f64::from(1 << 20) / slowest,
            Some(Unit::OperationsPerSecond) | None => sum(|work| work.operations) / slowest,
        }
    }

    /// Step and rate, for the progress of a run.
    pub fn summary(&self) -> String {
        let unit = self.step.unit().map_or("", Unit::name);
        format!("{} {} {unit}", self.workload.title(self.step), grouped(self.rate()))
    }
}

/// All that is kept of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    targets: Vec<Label>,
    base: String,
    ranks: u32,
    nodes: u32,
    repetitions: u32,
    samples: Vec<Sample>,
}

/// The rates of one step on all targets: a row of the table, a panel of the picture.
#[derive(Debug)]
struct Row {
    title: String,
    unit: Unit,
    cells: Vec<Cell>,
}

/// One target's rates.
#[derive(Debug)]
struct Cell {
    target: String,
    lowest: f64,
    median: f64,
    highest: f64,
    /// Of the median to the base's.
    ratio: f64,
}

impl Report {
    /// The report of `samples`, with ratios to the target `base`.
    pub fn new(
        options: &RunOptions,
        targets: &[Target],
        base: String,
        samples: Vec<Sample>,
    ) -> Outcome<Self> {
        let targets = targets.iter().map(|target| target.label.clone()).collect();
        let repetitions = samples.iter().map(|sample| sample.repetition + 1).max().unwrap_or(0);
        let (ranks, nodes) = (options.ranks, options.nodes);
        Ok(Self { machine: Machine::look()?, targets, base, ranks, nodes, repetitions, samples })
    }

    /// Writes all its files to `place`.
    pub fn write(&self, place: &Path) -> Outcome<()> {
        let rows = self.rows();
        let raw = serde_json::to_string_pretty(self).context(|| "write the figures")?;
        let files = [
            ("result.json", raw + "\n"),
            ("report.md", table::markdown(self, &rows)),
            ("rates.svg", picture::svg(self, &rows)),
        ];
        for (name, text) in files {
            let path = place.join(name);
            fs::write(&path, text).context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// A row per measured step, in the order of the run.
    fn rows(&self) -> Vec<Row> {
        let mut steps: Vec<(Workload, Step)> = Vec::new();
        for sample in &self.samples {
            if !steps.contains(&(sample.workload, sample.step)) {
                steps.push((sample.workload, sample.step));
            }
        }
        steps.into_iter().filter_map(|(workload, step)| self.row(workload, step)).collect()
    }

    fn row(&self, workload: Workload, step: Step) -> Option<Row> {
        let rates = |target: &str| {
            let of_row = |sample: &&Sample| (sample.workload, sample.step) == (workload, step);
            let samples = self.samples.iter().filter(of_row).filter(|sample| sample.target == target);
            let mut rates: Vec<f64> = samples.map(Sample::rate).collect();
            rates.sort_by(f64::total_cmp);
            rates
        };
        let base = median(&rates(&self.base))?;
        let cell = |label: &Label| {
            let rates = rates(&label.name);
            let (lowest, median, highest) = (*rates.first()?, median(&rates)?, *rates.last()?);
            Some(Cell { target: label.name.clone(), lowest, median, highest, ratio: median / base })
        };
        let cells = self.targets.iter().filter_map(cell).collect();
        Some(Row {
            title: format!("{}: {}", workload.group().title(), workload.title(step)),
            unit: step.unit()?,
            cells,
        })
    }
}

/// A new directory for a report; an existing one is never written over.
pub fn make_directory(out: &Path, name: &str) -> Outcome<PathBuf> {
    let place = out.join(format!("{}-{name}", machine::date()?));
    fs::create_dir_all(out).context(|| format!("make {}", out.display()))?;
    fs::create_dir(&place).context(|| format!("make {} (take another --name?)", place.display()))?;
    Ok(place)
}

/// The middle of ascending figures, or between the two in the middle.
fn median(ascending: &[f64]) -> Option<f64> {
    let middle = ascending.len() / 2;
    match ascending.len() % 2 {
        1 => ascending.get(middle).copied(),
        _ => Some((ascending.get(middle.checked_sub(1)?)? + ascending.get(middle)?) / 2.0),
    }
}

/// A rate for people: 12,345 or 6.78.
fn grouped(rate: f64) -> String {
    if rate < 99.5 {
        return format!("{rate:.1}");
    }
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
