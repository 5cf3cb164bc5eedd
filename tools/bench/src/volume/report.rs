//! The report of a run: raw figures, tables with ratios to GlusterFS and to the disk, and a picture.

use super::hosts::COUNT;
use super::plan::Sizes;
use super::sample::Sample;
use crate::options::VolumeOptions;
use crate::outcome::{Context, Outcome};
use crate::report::{self, Cell, Machine, Row, table};
use crate::target::Label;
use serde::Serialize;
use std::path::Path;

/// The target that the ratios in brackets are relative to, if it is measured.
const PEER: &str = "glusterfs";
/// The target that the ratios in columns of their own are relative to.
const DISK: &str = "disk";

const COSTS: &str = "Processor time over all rounds: of fio with the kernel's work for it, + that of the target's own processes. With IOR, that of the \
     target's processes only. The kernel's own threads are counted nowhere.";

/// A workload that a target failed at.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub workload: &'static str,
    pub target: String,
    pub message: String,
}

/// The content of `result.json`.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    targets: Vec<Label>,
    /// The programs that measure.
    programs: Vec<String>,
    hosts: usize,
    replicas: u32,
    disk_gib: u64,
    agent_memory_mib: u64,
    sizes: String,
    samples: Vec<Sample>,
    failures: Vec<Failure>,
    #[serde(skip)]
    skipped: Option<String>,
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Figures {
    pub samples: Vec<Sample>,
    pub failures: Vec<Failure>,
    /// What was not measured, and why.
    pub skipped: Option<String>,
}

impl Report {
    /// The report of a run.
    pub fn new(
        options: &VolumeOptions,
        targets: Vec<Label>,
        programs: Vec<String>,
        figures: Figures,
    ) -> Outcome<Self> {
        let Figures { samples, failures, skipped } = figures;
        Ok(Self {
            machine: Machine::detect()?,
            targets,
            programs,
            hosts: COUNT,
            replicas: options.replicas,
            disk_gib: options.size_gib,
            agent_memory_mib: options.memory_mib,
            sizes: Sizes::new(options).summary(),
            samples,
            failures,
            skipped,
        })
    }

    /// Writes its files to `place`.
    pub fn write(&self, place: &Path) -> Outcome<()> {
        let raw = serde_json::to_string_pretty(self).context(|| "write the figures")?;
        let rows = self.rows();
        let title = format!(
            "Rates, higher is better; three hosts, median of {} rounds with lowest and highest (ratio to {PEER})",
            self.rounds()
        );
        let picture = report::picture(&title, &self.targets, &rows);
        let files =
            [("result.json", raw + "\n"), ("report.md", self.markdown(&rows)), ("rates.svg", picture)];
        report::write_files(place, &files)
    }

    fn rounds(&self) -> u32 {
        self.samples.iter().map(|sample| sample.round + 1).max().unwrap_or(0)
    }

    /// A row per measured step, in the order of the run.
    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for sample in &self.samples {
            if rows.iter().any(|row| row.group == sample.group && row.title == sample.title) {
                continue;
            }
            let figures = |target: &str| {
                let same = |other: &&Sample| other.group == sample.group && other.title == sample.title;
                let samples = self.samples.iter().filter(same).filter(|other| other.target == target);
                samples.map(Sample::figure).collect::<Vec<_>>()
            };
            let base = report::median(figures(PEER).iter().map(|figure| figure.rate));
            let cell = |label: &Label| Cell::new(&figures(&label.name), sample.unit, base);
            rows.push(Row {
                group: sample.group,
                title: sample.title.clone(),
                unit: sample.unit,
                cells: self.targets.iter().map(cell).collect(),
            });
        }
        rows
    }

    fn markdown(&self, rows: &[Row]) -> String {
        let mut text = self.head();
        text += "\n## Rates\n";
        for group in rows.chunk_by(|row, next| row.group == next.group) {
            text += &format!("\n### {}\n\n{}", group[0].group, self.rates(group));
        }
        let title = |row: &Row| format!("{}: {}", row.group, row.title);
        let is_fio = |row: &&Row| row.cells.iter().flatten().any(|cell| cell.latency_us.is_some());
        let fio: Vec<Row> = rows.iter().filter(is_fio).cloned().collect();
        text += "\n![Rates per step and target](rates.svg)\n\n## Latencies\n\n";
        text +=
            "Microseconds of single calls of fio: median, and 99th percentile; medians of the rounds.\n\n";
        text += &table::table(&self.targets, &fio, title, |_| "us", table::latency);
        text += &format!("\n## Processor time\n\n{COSTS}\n\n");
        text += &table::table(&self.targets, rows, title, Row::cost_unit, cost);
        if !self.failures.is_empty() {
            text += "\n## Where there is no figure\n\n| target | workload | why |\n|---|---|---|\n";
        }
        for Failure { workload, target, message } in &self.failures {
            let message = message.replace('|', "\\|").replace('\n', "<br>");
            text += &format!("| {target} | {workload} | {message} |\n");
        }
        text + &table::targets(&self.targets)
    }

    fn head(&self) -> String {
        let machine = &self.machine;
        let bricks = match self.replicas {
            1 => "one brick per host",
            _ => {
                "two bricks per host, a pair of bricks for each pair of hosts, as GlusterFS keeps copies on pairs of bricks"
            }
        };
        let skipped = self.skipped.as_ref().map_or_else(String::new, |why| format!("{why}\n\n"));
        format!(
            "# Measured {date}\n\n    {command}\n\nThree hosts on this machine: network namespaces on a bridge, each with an XFS file system of \
             {disk} GiB on a loop device. All images are on one disk. On these three file systems lie a Tameike volume and a GlusterFS volume \
             ({bricks}; default options), both with {copies}, mounted on each host. `{DISK}` is the file system of the first host, without a volume.\n\n\
             - fio runs on the first host. Four processes with a file each write and read with `O_DIRECT`, and the one with blocks of 1 MiB through the page cache. Writes \
             end with fsync, which is timed.\n\
             - Processes of IOR run on all three hosts, for `{DISK}` on the first one, with calls of 1 MiB. Each reads what the next one wrote, on another host.\n\
             - Before each read the kernel's caches are dropped, and with them those of GlusterFS's bricks. Agents keep their buffers of {memory} MiB each.\n\
             - {sizes}. All data written was read back and checked, in passes that are not timed.\n\n\
             Medians of {rounds} rounds, in which targets take turns. In brackets the ratio to {PEER}, and below the lowest and the highest rate.\n\n\
             {skipped}{memory_gib:.0} GiB, {machine}. {programs}.\n",
            date = machine.date,
            command = machine.command,
            sizes = self.sizes,
            disk = self.disk_gib,
            copies = if self.replicas == 1 { "one copy of each file" } else { "two copies of each file" },
            memory = self.agent_memory_mib,
            rounds = self.rounds(),
            memory_gib = machine.memory_bytes as f64 / f64::from(1 << 30),
            machine = machine.summary(),
            programs = self.programs.join(", "),
        )
    }

    /// The rates of one group, with ratios to the disk.
    fn rates(&self, rows: &[Row]) -> String {
        let plain =
            table::table(&self.targets, rows, |row| row.title.clone(), |row| row.unit.name(), table::rate);
        let disk = self.targets.iter().position(|label| label.name == DISK);
        let others: Vec<usize> = (0..self.targets.len()).filter(|&target| Some(target) != disk).collect();
        let Some(disk) = disk.filter(|_| !others.is_empty()) else { return plain };
        let heads = others.iter().map(|&target| format!(" {} / {DISK} |", self.targets[target].name));
        let heads: String = heads.collect();
        let mut text = String::new();
        for (index, line) in plain.lines().enumerate() {
            text += line;
            text += &match index {
                0 => heads.clone(),
                1 => "---:|".repeat(others.len()),
                _ => others.iter().map(|&target| of_disk(&rows[index - 2], target, disk)).collect(),
            };
            text.push('\n');
        }
        text
    }
}

/// As for all reports; IOR does not state its own time.
fn cost(cell: &Cell) -> String {
    match (cell.latency_us, cell.servers_cost) {
        (Some(_), _) => table::cost(cell),
        (None, Some(servers)) => format!("{servers:.2}"),
        (None, None) => "-".to_owned(),
    }
}

/// The ratio to the disk, as a cell of a table.
fn of_disk(row: &Row, target: usize, disk: usize) -> String {
    let medians = row.cells[target].as_ref().zip(row.cells[disk].as_ref());
    medians.map_or(" - |".to_owned(), |(cell, disk)| {
        format!(" {} |", report::ratio_text(cell.median / disk.median))
    })
}
