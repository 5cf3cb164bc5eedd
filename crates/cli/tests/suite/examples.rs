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
