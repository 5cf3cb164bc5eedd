//! The report as Markdown.

use super::memory::Memory;
use super::row::{Cell, Row};
use super::{Report, grouped, ratio_text};
use crate::target::Label;

const LATENCIES: &str = "Microseconds of single operations of all ranks: median, and 99th percentile; \
     medians of the repetitions. Percentiles further out are in `result.json`.";
const PROCESSOR: &str = "Processor time, over all repetitions: of the ranks in their calls (kernel included), + that of \
     the target's own processes (in ticks of 10 ms: a dash or 0 for short steps means little). The kernel's own \
     threads are counted nowhere.";
const MEMORY: &str = "MiB resident in the target's own processes together: after the first step, the most after any step, \
     after the last step, and the sum of the peaks that the kernel kept. Their files in `/dev/shm` are not counted.";

/// The machine and the command, then tables of medians and ratios.
pub fn markdown(report: &Report, rows: &[Row]) -> String {
    let mut text = head(report);
    text += "\n## Rates\n";
    for group in rows.chunk_by(|row, next| row.group == next.group) {
        text += &format!("\n### {}\n\n", group[0].group);
        text += &table(&report.targets, group, |row| row.title.clone(), |row| row.unit.name(), rate);
    }
    let title = |row: &Row| format!("{}: {}", row.group, row.title);
    text += "\n![Rates per step and target](rates.svg)\n\n";
    text +=
        &format!("## Latencies\n\n{LATENCIES}\n\n{}", table(&report.targets, rows, title, |_| "us", latency));
    text += &format!("\n## Processor time\n\n{PROCESSOR}\n\n");
    text += &table(&report.targets, rows, title, Row::cost_unit, cost);
    text += &memory(report);
    text += &failures(report);
    text + &targets(&report.targets)
}

/// Names and versions of the targets.
pub fn targets(targets: &[Label]) -> String {
    let lines = targets.iter().map(|label| format!("| {} | {} |\n", label.name, label.version));
    format!("\n## Targets\n\n| target | version |\n|---|---|\n{}", lines.collect::<String>())
}

fn head(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "# Measured {date}\n\n    {command}\n\n{ranks} ranks, up to {nodes} nodes, median of {repetitions} alternating \
         repetitions; in brackets the ratio to {base}, and below the lowest and the highest.\n\
         Every byte read was checked. Reads of another rank's large file begin with none of it in the reader's kernel.\n\n\
         {memory_gib:.0} GiB, {machine}.\n",
        date = machine.date,
        command = machine.command,
        ranks = report.ranks,
        nodes = report.nodes,
        repetitions = report.repetitions,
        base = report.base,
        memory_gib = machine.memory_bytes as f64 / f64::from(1 << 30),
        machine = machine.summary(),
    )
}

/// A line per row and a column per target; a target without a figure has a dash.
pub fn table(
    targets: &[Label],
    rows: &[Row],
    title: impl Fn(&Row) -> String,
    unit: impl Fn(&Row) -> &'static str,
    show: impl Fn(&Cell) -> String,
) -> String {
    let names: Vec<&str> = targets.iter().map(|label| label.name.as_str()).collect();
    let mut text = format!("| | unit | {} |\n|---|---|{}\n", names.join(" | "), "---:|".repeat(names.len()));
    for row in rows {
        let cells: Vec<String> =
            row.cells.iter().map(|cell| cell.as_ref().map_or_else(|| "-".to_owned(), &show)).collect();
        text += &format!("| {} | {} | {} |\n", title(row), unit(row), cells.join(" | "));
    }
    text
}

/// The median with its ratio, and below it the lowest and the highest.
pub fn rate(cell: &Cell) -> String {
    let (lowest, highest) = (grouped(cell.lowest), grouped(cell.highest));
    let ratio = cell.ratio.map_or_else(String::new, |ratio| format!(" ({})", ratio_text(ratio)));
    format!("{}{ratio}<br>{lowest} - {highest}", grouped(cell.median))
}

/// Median and 99th percentile.
pub fn latency(cell: &Cell) -> String {
    cell.latency_us
        .map_or_else(|| "-".to_owned(), |(median, high)| format!("{}, {}", grouped(median), grouped(high)))
}

/// Processor time of programs and servers.
pub fn cost(cell: &Cell) -> String {
    let servers = cell.servers_cost.map_or_else(String::new, |servers| format!(" + {servers:.2}"));
    format!("{:.2}{servers}", cell.ranks_cost)
}

fn memory(report: &Report) -> String {
    let lines: Vec<(&str, Memory)> = report
        .targets
        .iter()
        .filter_map(|label| Some((label.name.as_str(), Memory::of(report, &label.name)?)))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let mut text =
        format!("\n## Memory\n\n{MEMORY}\n\n| | first | most | last | peaks |\n|---|---:|---:|---:|---:|\n");
    for (name, memory) in lines {
        let mib = |bytes: u64| grouped(bytes as f64 / f64::from(1 << 20));
        let [first, most, last, peaks] =
            [memory.first_bytes, memory.most_bytes, memory.last_bytes, memory.peak_bytes].map(mib);
        text += &format!("| {name} | {first} | {most} | {last} | {peaks} |\n");
    }
    text + "\n![Resident memory over the run](memory.svg)\n"
}

fn failures(report: &Report) -> String {
    let failures = &report.figures.failures;
    if failures.is_empty() {
        return String::new();
    }
    let mut text = "\n## Where there is no figure\n\n| target | workload | why |\n|---|---|---|\n".to_owned();
    for failure in failures {
        let message = failure.message.replace('|', "\\|").replace('\n', "<br>");
        text += &format!("| {} | {:?} | {message} |\n", failure.target, failure.workload);
    }
    text
}
