//! All figures of one step on all targets: a row of the tables, a panel of the picture.

use super::Report;
use super::figure::Figure;
use super::sample::Sample;
use crate::workload::{Step, Unit, Workload};

/// Bytes of a GB, as processor time is counted.
const GB: f64 = 1e9;

/// One step of one workload.
#[derive(Clone, Debug)]
pub struct Row {
    /// The title of the table that it stands in.
    pub group: &'static str,
    /// Within its table.
    pub title: String,
    pub unit: Unit,
    /// In the order of the report's targets; `None` for one that has no figure.
    pub cells: Vec<Option<Cell>>,
}

/// One target's figures: medians over the repetitions, unless noted.
#[derive(Clone, Debug)]
pub struct Cell {
    pub lowest: f64,
    pub median: f64,
    pub highest: f64,
    /// Of the median to the base's.
    pub ratio: Option<f64>,
    /// Median and 99th percentile of single operations, in microseconds.
    pub latency_us: Option<(f64, f64)>,
    /// Processor time of all ranks over all repetitions, in the unit of [`Row::cost_unit`].
    pub ranks_cost: f64,
    /// The same of the target's processes.
    pub servers_cost: Option<f64>,
}

impl Row {
    /// The figures of `step` of `workload`.
    pub fn new(report: &Report, workload: Workload, step: Step) -> Option<Self> {
        let unit = step.unit()?;
        let figures = |target: &str| -> Vec<Figure> {
            let of_row = |sample: &&Sample| (sample.workload, sample.step) == (workload, step);
            let samples = report.figures.samples.iter().filter(of_row);
            samples.filter(|sample| sample.target == target).map(Sample::figure).collect()
        };
        let base = median(figures(&report.base).iter().map(|figure| figure.rate));
        let cells = report.targets.iter().map(|label| Cell::new(&figures(&label.name), unit, base)).collect();
        Some(Self { group: workload.group().title(), title: workload.title(step), unit, cells })
    }

    /// The unit of processor time.
    pub fn cost_unit(&self) -> &'static str {
        match self.unit {
            Unit::MebibytesPerSecond => "s/GB",
            Unit::OperationsPerSecond => "us",
        }
    }
}

impl Cell {
    /// The figures of one target, with the ratio to the median rate `base` of another.
    pub fn new(figures: &[Figure], unit: Unit, base: Option<f64>) -> Option<Self> {
        let mut rates: Vec<f64> = figures.iter().map(|figure| figure.rate).collect();
        rates.sort_by(f64::total_cmp);
        let (lowest, highest) = (*rates.first()?, *rates.last()?);
        let median_rate = median(rates)?;
        let latencies = || figures.iter().filter_map(|figure| figure.latency_us);
        let servers: Option<f64> = figures.iter().map(|figure| figure.servers_seconds).sum();
        let counted = match unit {
            Unit::MebibytesPerSecond => figures.iter().map(|figure| figure.bytes).sum::<f64>() / GB,
            Unit::OperationsPerSecond => figures.iter().map(|figure| figure.operations).sum::<f64>() / 1e6,
        };
        Some(Self {
            lowest,
            median: median_rate,
            highest,
            ratio: base.map(|base| median_rate / base),
            latency_us: median(latencies().map(|(half, _)| half))
                .zip(median(latencies().map(|(_, high)| high))),
            ranks_cost: figures.iter().map(|figure| figure.programs_seconds).sum::<f64>() / counted,
            servers_cost: servers.map(|seconds| seconds / counted),
        })
    }
}

/// The figure in the middle, or between the two in the middle.
pub fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() % 2 {
        1 => figures.get(middle).copied(),
        _ => Some((figures.get(middle.checked_sub(1)?)? + figures.get(middle)?) / 2.0),
    }
}
