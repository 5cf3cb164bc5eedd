//! Times of files far from the present.

use super::{agg, path};
use crate::support::{binary, shown, succeed};
use std::fs;
use std::process::Command;
use tempfile::TempDir;

/// Files with these names and times, and a container of them, in memory, because not every disk file system supports all times.
fn packed(files: &[(&str, &str)]) -> TempDir {
    let base = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let source = base.path().join("source");
    fs::create_dir(&source).expect("a directory");
    for (name, time) in files {
        fs::write(source.join(name), name).expect("written");
        succeed(Command::new("touch").arg("--date").arg(time).arg(source.join(name)));
    }
    succeed(Command::new(binary()).args(["agg", "create"]).args([&source, &container(&base)]));
    base
}

fn container(base: &TempDir) -> std::path::PathBuf {
    base.path().join("container")
}

/// `ls --long` panicked.
#[test]
fn any_time_is_listed() {
    let base = packed(&[
        ("end", "@4611686018427387904"),
        ("new", "2020-02-02T02:02:02.5Z"),
        ("old", "1950-01-06T00:00:00.25Z"),
    ]);
    let listed = agg(&[path("ls"), path("--long"), &container(&base)]);
    assert!(listed.status.success(), "{}", shown(&listed));
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let times: Vec<_> = text.lines().map(|line| line.split(' ').rev().nth(1).unwrap_or_default()).collect();
    assert_eq!(times, ["@4611686018427387904", "2020-02-02T02:02:02Z", "1950-01-06T00:00:00Z"], "{text}");
}
