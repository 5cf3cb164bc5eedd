use super::row::{Cell, Row};
use super::*;
use crate::latency::Latencies;
use crate::servers::Usage;
use crate::workload::{Measured, Work};
use memory::Memory;
use std::time::Duration;

fn sample(target: &str, repetition: u32, seconds: [f64; 2]) -> Sample {
    let work = |seconds| Work { seconds, processor_seconds: seconds / 2.0, operations: 8, bytes: 8 << 20 };
    let mut latencies = Latencies::default();
    latencies.count(Duration::from_micros(10));
    let ranks = seconds.map(|seconds| Measured { work: work(seconds), latencies: latencies.clone() });
    let resident_bytes = (1 + u64::from(repetition)) << 20;
    let servers = Usage { processor_seconds: 0.25, resident_bytes, peak_bytes: 9 << 20 };
    let servers = (target == "fast").then_some(servers);
    let at_seconds = f64::from(repetition);
    Sample::new(
        Workload::Sequential,
        target,
        repetition,
        &Done { step: Step::Write, ranks: ranks.to_vec(), servers, at_seconds },
    )
}

fn report(samples: Vec<Sample>) -> Report {
    let label = |name: &str| Label { name: name.to_owned(), version: "1 & <2>".to_owned() };
    Report {
        machine: Machine::detect().expect("this machine"),
        targets: vec![label("slow"), label("fast")],
        base: "slow".to_owned(),
        ranks: 2,
        nodes: 1,
        repetitions: 3,
        figures: Figures { samples, failures: Vec::new() },
    }
}

fn cells(row: &Row) -> Vec<&Cell> {
    row.cells.iter().flatten().collect()
}

#[test]
fn a_rate_is_the_work_of_all_over_the_time_of_the_slowest() {
    assert_eq!(sample("slow", 0, [1.0, 2.0]).rate(), 8.0);
}

#[test]
fn medians_and_ratios_are_those_of_the_samples() {
    let slow = [8.0, 2.0, 1.0].map(|seconds| sample("slow", 0, [0.5, seconds]));
    let fast = [1.0, 1.0, 0.5].map(|seconds| sample("fast", 0, [0.5, seconds]));
    let rows = report([slow, fast].concat()).rows();
    assert_eq!(rows.len(), 1);
    let cells = cells(&rows[0]);
    let figures: Vec<_> = cells.iter().map(|cell| (cell.lowest, cell.median, cell.highest)).collect();
    assert_eq!(figures, [(2.0, 8.0, 16.0), (16.0, 16.0, 32.0)]);
    assert_eq!(cells[1].ratio, Some(2.0));
    assert_eq!(median([8.0, 1.0, 2.0, 4.0]), Some(3.0));
    assert_eq!(median([]), None);
}

#[test]
fn processor_time_is_per_byte_and_memory_over_the_run() {
    let samples: Vec<Sample> = (0..3).map(|repetition| sample("fast", repetition, [1.0, 3.0])).collect();
    let report = report(samples);
    let rows = report.rows();
    let cell = cells(&rows[0])[0];
    let gigabytes = f64::from(16 << 20) / 1e9;
    assert!((cell.ranks_cost - 2.0 / gigabytes).abs() < 1e-6, "{}", cell.ranks_cost);
    assert!((cell.servers_cost.expect("servers") - 0.25 / gigabytes).abs() < 1e-6);
    let mib = |count: u64| count << 20;
    let expected = Memory { first_bytes: mib(1), most_bytes: mib(3), last_bytes: mib(3), peak_bytes: mib(9) };
    assert_eq!(Memory::of(&report, "fast"), Some(expected));
    assert_eq!(Memory::of(&report, "slow"), None);
}

#[test]
fn a_target_that_fails_has_no_figure_rather_than_a_zero() {
    let mut report = report(vec![sample("slow", 0, [1.0, 1.0]), sample("fast", 0, [0.5, 0.5])]);
    report.figures.fail(Workload::Sequential, "fast", "cannot | at all".to_owned());
    assert!(report.figures.has_failed(Workload::Sequential, "fast"));
    assert!(!report.figures.has_failed(Workload::Sequential, "slow"));
    let rows = report.rows();
    let text = table::markdown(&report, &rows);
    assert!(text.contains("16.0 (1.00)<br>16.0 - 16.0 | - |"), "{text}");
    assert!(text.contains("| fast | Sequential | cannot \\| at all |"), "{text}");
    assert!(picture::of_report(&report, &rows).contains(">no figure<"));
}

#[test]
fn rates_are_grouped_for_people() {
    let text = [0.04, 9.96, 99.4, 123.4, 1234.5, 1_234_567.0].map(grouped);
    assert_eq!([1.2345, 0.0543, 0.00123].map(ratio_text), ["1.23", "0.054", "0.0012"]);
    assert_eq!(text, ["0.0", "10.0", "99.4", "123", "1,234", "1,234,567"]);
}

#[test]
fn all_files_of_a_report_are_written_and_never_over_another() {
    let out = tempfile::tempdir().expect("a directory");
    let place = make_directory(out.path(), "test").expect("a new directory");
    assert!(make_directory(out.path(), "test").expect_err("it is there").contains("another --name"));
    let samples = vec![sample("slow", 0, [1.0, 1.0]), sample("fast", 0, [0.5, 0.5])];
    report(samples).write(&place).expect("written");
    let read = |name: &str| fs::read_to_string(place.join(name)).expect(name);
    let text = read("report.md");
    for line in [
        "### Large files",
        "| a file per rank, 1 MiB calls: write, fsync | MiB/s | 16.0 (1.00)",
        "| Large files: a file per rank, 1 MiB calls: write, fsync | us | 10.0, 10.0 | 10.0, 10.0 |",
        "| Large files: a file per rank, 1 MiB calls: write, fsync | s/GB | 59.60 | 29.80 + 14.90 |",
        "| fast | 1.0 | 1.0 | 1.0 | 9.0 |",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(read("memory.svg").contains("polyline"));
    let raw: serde_json::Value = serde_json::from_str(&read("result.json")).expect("JSON");
    assert_eq!(raw["samples"][1]["ranks"][0]["seconds"], 0.5);
    assert!(read("rates.svg").ends_with("</svg>\n"));
}
