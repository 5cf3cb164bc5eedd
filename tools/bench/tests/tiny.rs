//! The whole program, very little of everything, on plain directories.

use std::path::Path;
use std::process::{Command, Output};

fn bench(out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tameike-bench"))
        .args(["run", "--tiny", "--name", "tiny", "--out"])
        .arg(out)
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("a directory").count()
}

/// The only report in `out`.
fn report(out: &Path) -> serde_json::Value {
    let place = std::fs::read_dir(out).expect("reports").next().expect("one").expect("readable").path();
    for name in ["report.md", "rates.svg"] {
        assert!(std::fs::metadata(place.join(name)).expect(name).len() > 100, "{name} is empty");
    }
    let text = std::fs::read_to_string(place.join("result.json")).expect("figures");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn all_workloads_on_two_directories_and_through_a_launcher() {
    let out = tempfile::tempdir().expect("a directory");
    let (disk, other) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    // The directory comes from the environment that the launcher sets, different on each node.
    std::os::unix::fs::symlink(other.path(), out.path().with_extension("node-0")).expect("a link");
    std::os::unix::fs::symlink(other.path(), out.path().with_extension("node-1")).expect("a link");
    let launcher = format!("other=env PLACE={}.node-{{node}}", out.path().display());
    let disk_path = disk.path().display().to_string();
    let arguments = [
        "--targets",
        "disk,tameike-library",
        "--disk",
        &disk_path,
        "--shared",
        &disk_path,
        "--also",
        "other=$PLACE",
        "--launcher",
        &launcher,
    ];
    let output = bench(out.path(), &[&arguments[..], &["--nodes", "2", "--ranks", "3"]].concat());
    for node in ["node-0", "node-1"] {
        std::fs::remove_file(out.path().with_extension(node)).expect("the link");
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let report = report(out.path());
    let samples = report["samples"].as_array().expect("samples");
    // Steps that are measured, on two targets: of seven patterns of large files, three of blocks, many files of three sizes, and
    // containers, which the third target has, too.
    assert_eq!(samples.len(), 2 * ((3 + 5 * 2 + 1) + 3 * 2 + 3 * 2 * 6 + 4) + 4);
    for sample in samples {
        let ranks = sample["ranks"].as_array().expect("ranks");
        let expected = match sample["workload"].as_str().expect("a name") {
            "one-process" | "latency" | "latency-pinned" => 1,
            "four-processes" => 4,
            _ => 3,
        };
        assert_eq!(ranks.len(), expected, "{sample}");
        let latency = sample["latency"]["p99_us"].as_f64();
        assert_eq!(latency.is_some_and(|time| time > 0.0), sample["step"] != "persist", "{sample}");
        assert!(ranks.iter().all(|work| work["seconds"].as_f64().expect("seconds") > 0.0), "{sample}");
    }
    assert_eq!((files_in(disk.path()), files_in(other.path())), (0, 0), "something was left behind");
}

#[test]
fn a_target_that_cannot_be_written_gives_an_error_and_no_report() {
    let out = tempfile::tempdir().expect("a directory");
    let output = bench(out.path(), &["--targets", "tmpfs", "--also", "broken=/proc/nowhere"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Sequential on broken") && said.contains("/proc/nowhere"), "{said}");
    assert_eq!(files_in(out.path()), 0, "there is a report of nothing");
}

#[test]
fn a_launcher_that_starts_nothing_is_noticed() {
    let out = tempfile::tempdir().expect("a directory");
    let output = bench(out.path(), &["--targets", "tmpfs", "--launcher", "tmpfs=true"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rank 0 ended early") || said.contains("rank 1 ended early"), "{said}");
}

#[test]
fn the_compute_process_times_its_work() {
    let output = Command::new(env!("CARGO_BIN_EXE_tameike-bench"))
        .args(["quantum", "--processor", "0", "--seconds", "0.05"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let window: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let quanta = window["quanta_ns"].as_array().expect("times");
    let nanos: u64 = quanta.iter().map(|quantum| quantum.as_u64().expect("a time")).sum();
    assert!(!quanta.is_empty() && nanos >= 50_000_000, "{window}");
}
