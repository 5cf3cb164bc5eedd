//! The examples in C: each is built according to its README, and run.

use crate::kit::Kit;
use crate::support::{Site, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

#[test]
fn checkpoints_are_written_beside_the_computation_in_a_view_and_without_a_job() {
    let kit = Kit::new();
    let program = kit.compile(&source("c/checkpoint.c"), "checkpoint");
    let site = Site::new();
    let run = |dir: &str| format!("'{}' \"{dir}\" 12 4 | wc -l", program.display());
    let text = succeed(&mut site.job(2, &[], &run("$TAMEIKE_CACHE")));
    assert_eq!(text.trim(), "3");
    let names: Vec<_> = [4, 8, 12].map(|step| site.shared().join(format!("checkpoint-{step}"))).into();
    assert!(names.iter().all(|path| path.metadata().is_ok_and(|file| file.len() == 4 << 20)), "{names:?}");
    let plain = site.plain().display().to_string();
    assert_eq!(succeed(Command::new("bash").args(["-euc", &run(&plain)])).trim(), "3");
}

/// Runs a program, with options, as a number of processes on the nodes of a job; returns what they print.
fn run(site: &Site, program: &Path, (arguments, options): (&str, &str), processes: u32) -> String {
    let start = |rank| {
        let program = program.display();
        format!(
            "tameike exec --node {rank} -- {program} {arguments} {rank} {processes} {options} & pids=\"$pids $!\"\n"
        )
    };
    let starts: String = (0..processes).map(start).collect();
    let script = format!("region=$TAMEIKE_SHARED/region pids=\n{starts}for pid in $pids; do wait $pid; done");
    succeed(&mut site.job(processes, &[], &script))
}

/// Runs an example; returns the checksum.
fn checksum(site: &Site, program: &Path, arguments: &str, processes: u32) -> String {
    checksum_with(site, program, (arguments, ""), processes)
}

fn checksum_with(site: &Site, program: &Path, (arguments, options): (&str, &str), processes: u32) -> String {
    let text = run(site, program, (&format!("\"$region\" {arguments}"), options), processes);
    let (seconds, checksum) = text.trim().split_once(' ').expect("two words");
    assert!(seconds.parse::<f64>().is_ok_and(|seconds| seconds > 0.0), "{text}");
    checksum.to_owned()
}

#[test]
fn regions_have_the_same_result_in_c_and_fortran_on_any_number_of_nodes() {
    let (kit, site) = (Kit::new(), Site::new());
    let product = kit.compile(&source("dsm/matmul.c"), "matmul");
    let product_of_fortran = kit.compile_fortran(&source("dsm/matmul.f90"), "matmul_of_fortran");
    let equation = kit.compile(&source("dsm/heat.c"), "heat");
    let expected = [checksum(&site, &product, "101", 1), checksum(&site, &equation, "64 10", 1)];
    assert_eq!(expected[0], "197779383");
    assert_eq!(checksum(&site, &product, "101", 2), expected[0]);
    for processes in [1, 2, 3] {
        assert_eq!(checksum(&site, &product_of_fortran, "101", processes), expected[0]);
    }
    assert_eq!(checksum(&site, &equation, "64 10", 2), expected[1]);
    // Rows of whole pages: each has one writer.
    let expected = checksum_with(&site, &equation, ("512 6", "shared-pages"), 1);
    for processes in [1, 2, 3] {
        assert_eq!(checksum(&site, &equation, "512 6", processes), expected);
    }
}

#[test]
fn queries_on_regions_and_on_a_file_have_the_right_results() {
    let (kit, site) = (Kit::new(), Site::new());
    let program = kit.compile(&source("dsm/wisconsin.c"), "wisconsin");
    let mut file = Command::new(&program);
    file.args(["--rows", "2000", "--file"]).arg(site.plain().join("tables"));
    for text in [
        succeed(&mut file),
        run(&site, &program, ("--rows 2000 \"$region\"", ""), 1),
        run(&site, &program, ("--rows 2000 \"$region\"", ""), 2),
    ] {
        let right = |query: &str| text.lines().any(|line| line.starts_with(query) && line.ends_with(" ok"));
        assert!(["Q1", "Q3", "Q4", "Q6", "Q7"].into_iter().all(right), "{text}");
    }
}

#[test]
fn single_accesses_are_measured_with_the_right_data() {
    let (kit, site) = (Kit::new(), Site::new());
    let program = kit.compile(&source("../bench/dsm/micro.c"), "micro");
    for processes in [1, 2] {
        let text = run(&site, &program, ("\"$region\" 600 2", ""), processes);
        for operation in ["read-fault", "write-fault", "flush-bytes", "sequential-reads", "barrier", "put-8"]
        {
            let lines = text.lines().filter(|line| line.starts_with(&format!("{operation},"))).count();
            assert_eq!(lines, 2, "{operation}: {text}");
        }
    }
}

#[test]
fn ranks_write_many_files_into_one_container() {
    let kit = Kit::new();
    let program = kit.compile_with("mpicc", &source("mpi/many_files.c"), "many_files");
    let dir = TempDir::new().expect("a directory");
    let mut launcher = Command::new("mpirun");
    launcher.args(["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "-np", "4"]);
    let text = succeed(launcher.arg(program).arg(dir.path().join("results.tmk")).arg("50"));
    assert_eq!(text.trim(), "200 files of 4 ranks are correct");
}
