//! `volume` with very little of everything, and what is left when it ends early.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program, for a volume of small disks; `None`, with a message, if it cannot run here.
fn bench(out: &Path, images: &Path, targets: &str) -> Option<Command> {
    let has = |program: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).chain(["/usr/sbin".into()]).any(|path| path.join(program).exists())
    };
    if !rustix::process::geteuid().is_root() || !["fio", "ip", "mkfs.xfs"].into_iter().all(has) {
        eprintln!("not root, or fio, iproute2 or xfsprogs is missing: cannot make hosts with disks");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tameike-bench"));
    command.args(["volume", "--tiny", "--size-gib", "1", "--targets", targets, "--out"]).arg(out);
    command.arg("--image").arg(images).arg("--tameike").arg(tameike()).env("TMPDIR", images);
    Some(command)
}

/// Where the program `tameike` is, if it has been built.
fn tameike() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_tameike-bench")).with_file_name("tameike")
}

/// Directories for reports and for images. Images need a disk.
fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    let images = tempfile::tempdir_in("/var/tmp").expect("a directory");
    (tempfile::tempdir().expect("a directory"), images)
}

/// Panics if a device or directory is left.
fn assert_clean(images: &Path) {
    let images_left = std::fs::read_dir(images).expect("it can be read").count();
    let devices = Command::new("losetup").args(["--list", "--noheadings"]).output().expect("util-linux");
    let devices = String::from_utf8_lossy(&devices.stdout).into_owned();
    assert!(images_left == 0 && !devices.contains(&images.display().to_string()), "{devices}");
}

#[test]
fn a_small_volume_is_measured_beside_its_disk() {
    let (out, images) = directories();
    let has_tameike = tameike().exists();
    let targets = if has_tameike { "disk,tameike" } else { "disk" };
    let Some(mut command) = bench(out.path(), images.path(), targets) else { return };
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let place =
        std::fs::read_dir(out.path()).expect("reports").next().expect("one").expect("readable").path();
    let read = |name: &str| std::fs::read_to_string(place.join(name)).expect(name);
    let result: serde_json::Value = serde_json::from_str(&read("result.json")).expect("JSON");
    let samples = result["samples"].as_array().expect("samples");
    // Steps with blocks of 512 KiB, with blocks of 4 KiB, and with one file.
    assert_eq!(samples.len(), (4 + 5 + 2) * if has_tameike { 2 } else { 1 });
    assert!(samples.iter().all(|sample| sample["seconds"].as_f64().expect("a time") > 0.0), "{samples:?}");
    assert_eq!(result["failures"].as_array().map(Vec::len), Some(0));
    let report = read("report.md");
    for part in ["IOR was not measured", "| random writes, fdatasync after each | 1/s |", "two copies"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(read("rates.svg").ends_with("</svg>\n"));
    assert_clean(images.path());
}

#[test]
fn nothing_is_left_of_a_run_that_is_interrupted() {
    let (out, images) = directories();
    let Some(mut command) = bench(out.path(), images.path(), "disk") else { return };
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // The pipe stays open until it has ended.
    let begun = said.by_ref().map_while(Result::ok).any(|line| line.starts_with("1/"));
    assert!(begun, "it has measured nothing");
    let number = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(number, rustix::process::Signal::TERM).expect("it runs");
    assert!(!child.wait().expect("it ends").success());
    assert_eq!(std::fs::read_dir(out.path()).expect("it can be read").count(), 0, "there is a report");
    assert_clean(images.path());
}
