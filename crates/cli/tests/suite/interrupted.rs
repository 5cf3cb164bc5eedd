//! Files that are open for writing when their job or node crashes: reported, with the length that exists.

use crate::support::jobs::{Background, Job, new_job, signal};
use crate::support::{Run, Site, assert_contains, shown, succeed};
use std::fs;
use std::path::Path;
use std::process::Output;

const INCOMPLETE: i32 = 75;

/// A job of two nodes whose program creates `closed`, does `writes` to files that it keeps open, and waits.
fn start(site: &Site, job: &Job, writes: &str) -> Background {
    let ready = site.plain().join("ready");
    let program = site.python(&format!(
        "import os, time
cache = os.environ['TAMEIKE_CACHE']
with open(cache + '/closed', 'wb') as file: file.write(bytes(3000000))
file = open(cache + '/open', 'wb', buffering=0)
{writes}
open('{}', 'w')
time.sleep(1000)",
        ready.display()
    ));
    let options = ["--job", &job.name, "--memory", "64MiB"];
    Background::start_until(&mut site.job(2, &options, &program), &ready)
}

fn status(site: &Site, job: &Job) -> String {
    succeed(&mut site.tameike(&["status", "--job", &job.name]))
}

fn recover(site: &Site, job: &Job, code: i32) -> String {
    shown(&site.tameike(&["recover", "--job", &job.name]).exits(code))
}

/// Checks reports of `recover` and `status` on a job with an open file.
fn check_recovery(site: &Site, job: &Job) {
    let open = "1 file open for writing";
    assert_contains(&status(site, job), &[open]);
    let messages = recover(site, job, INCOMPLETE);
    assert_contains(&messages, &[open, "1 of 2 files interrupted while written"]);
    let line = |name: &str| messages.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(line("closed").contains("synced"), "{messages}");
    let size = fs::metadata(site.shared().join("open")).expect("there").len();
    let text = format!(
        "INTERRUPTED: a program had it open for writing when its node or the job failed; the first {size} bytes"
    );
    assert!(line("open").contains(&text), "{messages}");
    assert!(!messages.contains("drain complete"), "{messages}");
    job.assert_removed();
    assert_contains(&recover(site, job, 0), &["has no leftovers"]);
}

/// S45a. `recover` reported it as synced, or not at all if the homes had flushed their data.
#[test]
fn files_being_written_when_the_job_was_killed_are_reported() {
    for (name, writes) in [
        ("begun", "file.write(bytes(2500000))"),
        ("synced", "file.write(bytes(2500000)); os.fsync(file.fileno()); file.write(b'more')"),
    ] {
        let (site, job) = new_job(name);
        let running = start(&site, &job, writes);
        job.kill(&site, running, 0..2);
        check_recovery(&site, &job);
    }
}

/// S45c.
#[test]
fn closed_or_unlocked_files_are_not_reported_as_interrupted() {
    for (name, ends) in [
        ("closed", "os.ftruncate(file.fileno(), 7); file.close()"),
        ("unlocked", "lock = __import__('fcntl').lockf; lock(file, 2); file.write(b'more'); lock(file, 8)"),
    ] {
        let (site, job) = new_job(name);
        let running = start(&site, &job, &format!("file.write(bytes(2500000)); {ends}"));
        job.kill(&site, running, 0..2);
        let status = status(&site, &job);
        assert!(!status.contains("open for writing"), "{status}");
        let messages = recover(&site, &job, 0);
        assert!(!messages.contains("INTERRUPTED"), "{messages}");
    }
}

/// S45b. An open file ends within a write.
#[test]
fn files_being_written_when_the_driver_was_killed_are_reported() {
    let (site, job) = new_job("driver");
    let running = start(&site, &job, "file.write(bytes(2500000))");
    assert!(signal(running.program(), "KILL"));
    running.output();
    site.await_processes();
    check_recovery(&site, &job);
}

/// The job continues without one of its nodes, and its receipt lists files that programs of that node were writing.
#[test]
fn the_receipt_lists_files_that_a_failed_node_was_writing() {
    let (site, job) = new_job("node");
    let mark = site.plain().join("mark");
    let writer = "import os, sys, time
files = [open(os.environ['TAMEIKE_CACHE'] + f'/{n}', 'wb', buffering=0) for n in range(24)]
for file in files: file.write(b'begun')
open(sys.argv[1], 'w')
time.sleep(1000)";
    let script = format!(
        r#"tameike exec --node 1 -- {program} {mark} & until [ -e {mark} ]; do sleep 0.01; done
           kill -9 $(grep -o '"pid": [0-9]*' "$TAMEIKE_JOB_DIR/node-1/node.json" | grep -o '[0-9]*'); sleep 0.2"#,
        program = site.python(writer),
        mark = mark.display()
    );
    let output = site.job(2, &["--job", &job.name, "--keep-going"], &script).exits(INCOMPLETE);
    let named = |output: &Output| shown(output).matches("INTERRUPTED").count();
    // `recover` reports those that node 1 coordinated.
    assert!((1..24).contains(&named(&output)), "{}", shown(&output));
    site.kill_processes();
    let recovered = site.tameike(&["recover", "--job", &job.name]).exits(INCOMPLETE);
    assert_eq!(named(&recovered), 24, "{}", shown(&recovered));
    assert!(Path::new("/dev/shm").exists());
}
