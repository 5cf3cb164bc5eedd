//! The report as Markdown.

use super::{Cell, Report, Row, grouped};

/// What was measured on what, then a table of medians and ratios.
pub fn markdown(report: &Report, rows: &[Row]) -> String {
    let machine = &report.machine;
    let memory_gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let mut text = format!(
        "# Measured {date}\n\n    {command}\n\n{ranks} ranks on {nodes} nodes, median of {repetitions} repetitions taken in turn; \
         in brackets the ratio to {base}, and below the lowest and the highest.\n\
         Every byte read was checked. Reads of another rank's file begin with none of it in the reader's kernel.\n\n\
         {processors} processors ({processor}), {memory_gib:.0} GiB, {system}, Linux {kernel}, commit {commit}.\n\n",
        date = machine.date,
        command = machine.command,
        ranks = report.ranks,
        nodes = report.nodes,
        repetitions = report.repetitions,
        base = report.base,
        processors = machine.processors,
        processor = machine.processor,
        system = machine.system,
        kernel = machine.kernel,
        commit = machine.commit,
    );
    let names: Vec<&str> = report.targets.iter().map(|label| label.name.as_str()).collect();
    text += &format!("| | unit | {} |\n|---|---|{}\n", names.join(" | "), "---:|".repeat(names.len()));
    for row in rows {
        let cells: Vec<String> = row.cells.iter().map(cell).collect();
        text += &format!("| {} | {} | {} |\n", row.title, row.unit.name(), cells.join(" | "));
    }
    text += "\n![Rates per step and target](rates.svg)\n\n| target | what it is |\n|---|---|\n";
    for label in &report.targets {
        text += &format!("| {} | {} |\n", label.name, label.version);
    }
    text
}

fn cell(cell: &Cell) -> String {
    let (lowest, highest) = (grouped(cell.lowest), grouped(cell.highest));
    format!("{} ({:.2})<br>{lowest} - {highest}", grouped(cell.median), cell.ratio)
}
