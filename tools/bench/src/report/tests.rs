use super::*;

fn sample(target: &str, repetition: u32, seconds: [f64; 2]) -> Sample {
    let work = |seconds| Work { seconds, processor_seconds: seconds / 2.0, operations: 8, bytes: 8 << 20 };
    let ranks = seconds.map(|seconds| Measured { work: work(seconds), latencies: Latencies::default() });
    Sample::new(Workload::Sequential, Step::Write, target, repetition, &ranks)
}

fn report(samples: Vec<Sample>) -> Report {
    let label = |name: &str| Label { name: name.to_owned(), version: "1 & <2>".to_owned() };
    Report {
        machine: Machine::look().expect("this machine"),
        targets: vec![label("slow"), label("fast")],
        base: "slow".to_owned(),
        ranks: 2,
        nodes: 1,
        repetitions: 3,
        samples,
    }
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
    let figures: Vec<_> = rows[0].cells.iter().map(|cell| (cell.lowest, cell.median, cell.highest)).collect();
    assert_eq!(figures, [(2.0, 8.0, 16.0), (16.0, 16.0, 32.0)]);
    assert_eq!(rows[0].cells[1].ratio, 2.0);
    assert_eq!(median(&[1.0, 2.0, 4.0, 8.0]), Some(3.0));
    assert_eq!(median(&[]), None);
}

#[test]
fn rates_are_grouped_for_people() {
    let text = [0.04, 9.96, 99.4, 123.4, 1234.5, 1_234_567.0].map(grouped);
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
    assert!(
        read("report.md")
            .contains("| Large files: a file per rank, calls of 1 MiB: write, fsync | MiB/s | 16.0 (1.00)"),
        "{}",
        read("report.md")
    );
    let raw: serde_json::Value = serde_json::from_str(&read("result.json")).expect("JSON");
    assert_eq!(raw["samples"][1]["ranks"][0]["seconds"], 0.5);
    assert!(read("rates.svg").ends_with("</svg>\n"));
}
