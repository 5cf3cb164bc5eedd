use super::fio;
use super::plan::{Sizes, Step, Workload};
use super::report::{Failure, Figures, Report};
use super::sample::{Measured, Sample};
use crate::options::{Command, Options, VolumeOptions, VolumeTarget};
use crate::target::Label;
use crate::workload::Unit;
use clap::Parser;
use std::collections::BTreeSet;
use std::process::Command as Process;

fn options(words: &[&str]) -> VolumeOptions {
    let words = ["tameike-bench", "volume"].iter().chain(words);
    match Options::parse_from(words).command {
        Command::Volume(options) => *options,
        other => panic!("{other:?}"),
    }
}

/// All jobs of fio that write, in all workloads of some turns.
fn writes(options: &VolumeOptions) -> Vec<fio::Job> {
    let (sizes, workloads) = (Sizes::new(options), Workload::all(&options.workloads, &options.processes));
    let steps = (1..).zip(workloads).flat_map(|(turn, workload)| workload.steps(&sizes, turn));
    let jobs = steps.filter_map(|step| match step {
        Step::Fio { job, .. } => Some(job),
        _ => None,
    });
    jobs.filter(fio::Job::writes).collect()
}

#[test]
fn every_pass_writes_whole_blocks_with_content_of_its_own() {
    for words in [&["--tiny"][..], &[], &["--size-mib", "13"]] {
        let writes = writes(&options(words));
        let passes: BTreeSet<u32> = writes.iter().map(|job| job.pass).collect();
        // Two with blocks of 512 KiB, three with blocks of 4 KiB, and one with one file.
        assert_eq!((writes.len(), passes.len()), (6, 6));
        for job in writes {
            let is_whole = job.amount % job.block == 0 && job.size % job.block == 0;
            assert!(job.amount > 0 && job.amount <= job.size && is_whole, "{words:?}: {job:?}");
        }
    }
}

#[test]
fn all_that_is_written_is_verified() {
    let options = options(&["--ior", "ior", "--workloads", "blocks-512k,blocks-4k,file,ior,repair"]);
    let sizes = Sizes::new(&options);
    for workload in Workload::all(&options.workloads, &options.processes) {
        let steps = workload.steps(&sizes, 1);
        // What was filled before blocks of 4 KiB were written into it is not of this workload.
        let is_write = |step: &&Step| match step {
            Step::Fio { job, .. } => job.writes(),
            Step::Fill(_) => workload == Workload::RepairLarge,
            Step::Ior { .. } => !step.reads() && step.title().is_some(),
            Step::Unpack(_) => true,
            Step::Verify(_) | Step::Clear | Step::Compare(_) | Step::Repair { .. } => false,
        };
        let written = steps.iter().filter(is_write).count();
        let is_check = |step: &&Step| match step {
            Step::Verify(_) | Step::Compare(_) => true,
            Step::Ior { title, .. } => title.is_none(),
            _ => false,
        };
        assert_eq!(steps.iter().filter(is_check).count(), written, "{workload:?}");
    }
}

#[test]
fn figures_of_fio_are_those_of_all_processes() {
    let text = r#"fio: a warning
        {"jobs": [{"usr_cpu": 10.0, "sys_cpu": 15.0, "job_runtime": 8000, "read": {}, "write": {"total_ios": 256,
        "io_bytes": 1048576, "runtime": 2000, "clat_ns": {"percentile": {"50.000000": 1500, "99.000000": 9000}}}}]}"#;
    let job = writes(&options(&["--tiny"])).into_iter().find(|job| job.amount == 256 << 10).expect("one");
    let measured = job.measured(text).expect("figures");
    let expected = Measured {
        seconds: 2.0,
        operations: 256.0,
        bytes: 1_048_576.0,
        latency_us: Some((1.5, 9.0)),
        programs_seconds: Some(2.0),
    };
    assert_eq!(measured, expected);
    let short = text.replace("256,", "255,");
    assert!(job.measured(&short).expect_err("one is missing").contains("255 of 256"));
    assert!(job.measured("").is_err());
}

#[test]
fn content_of_another_pass_or_place_fails_the_verification() {
    let place = tempfile::tempdir().expect("a directory");
    let directory = place.path().display().to_string();
    let fio = |job: &fio::Job, option| {
        let mut command = Process::new("fio");
        command.args(job.words(&directory, option)).output().map(|output| output.status.success())
    };
    let job = writes(&options(&["--tiny"])).into_iter().find(|job| job.block == 4096).expect("one");
    let job = fio::Job { direct: false, amount: job.size, ..job };
    match fio(&job, fio::MEASURE) {
        Err(error) => return eprintln!("cannot start fio: {error}"),
        Ok(has_written) => assert!(has_written),
    }
    let verify = |job: &fio::Job| fio(job, fio::VERIFY).expect("fio starts");
    assert!(verify(&job), "it has written this");
    assert!(!verify(&fio::Job { pass: job.pass + 1, ..job }), "this is of another pass");
    // One block lies in place of another one.
    let path = place.path().join("blocks-1");
    let mut content = std::fs::read(&path).expect("the file");
    content.copy_within(..4096, 8192);
    std::fs::write(&path, content).expect("written");
    assert!(!verify(&job), "a block is another one");
}

fn sample(target: &str, round: u32, seconds: f64) -> Sample {
    let latency_us = Some((10.0, 20.0));
    let measured = Measured { seconds, operations: 8.0, bytes: 1.0, latency_us, programs_seconds: Some(1.0) };
    Sample {
        group: "Blocks",
        title: "random writes".to_owned(),
        unit: Unit::OperationsPerSecond,
        target: target.to_owned(),
        round,
        at_seconds: 1.0,
        measured,
        servers: None,
    }
}

#[test]
fn rates_have_ratios_to_the_peer_and_to_the_disk() {
    let label = |kind: VolumeTarget| Label { name: kind.name().to_owned(), version: "1".to_owned() };
    let labels = [VolumeTarget::Disk, VolumeTarget::Glusterfs, VolumeTarget::Tameike].map(label).to_vec();
    let mut samples = vec![sample("disk", 0, 1.0), sample("glusterfs", 0, 8.0)];
    samples.extend([4.0, 2.0, 1.0].map(|seconds| sample("tameike", 0, seconds)));
    let failure =
        Failure { workload: "One file", target: "glusterfs".to_owned(), message: "a | b".to_owned() };
    let figures = Figures { samples, failures: vec![failure], skipped: Some("No IOR.".to_owned()) };
    let report = Report::new(&options(&[]), labels, vec!["fio-3".to_owned()], figures).expect("a report");
    let place = tempfile::tempdir().expect("a directory");
    report.write(place.path()).expect("written");
    let text = std::fs::read_to_string(place.path().join("report.md")).expect("the report");
    for line in [
        "| | unit | disk | glusterfs | tameike | glusterfs / disk | tameike / disk |",
        "| random writes | 1/s | 8.0 (8.00)<br>8.0 - 8.0 | 1.0 (1.00)<br>1.0 - 1.0 | 4.0 (4.00)<br>2.0 - 8.0 | 0.12 | 0.50 |",
        "| Blocks: random writes | us | 10.0, 20.0 | 10.0, 20.0 | 10.0, 20.0 |",
        "| glusterfs | One file | a \\| b |",
        "No IOR.",
        "fio has four files of 256 MiB",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
