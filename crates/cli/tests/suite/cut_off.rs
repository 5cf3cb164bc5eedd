//! Files that are open for writing when their job or node crashes: reported, with the length that exists.

use crate::support::victims::{Background, JobPlace, end_programs, signal, wait_for};
use crate::support::{Site, processes_naming, shown};
use std::fs;
use std::path::Path;
use std::process::Output;

const INCOMPLETE: i32 = 75;

fn place(site: &Site, name: &str) -> JobPlace {
    JobPlace::new(site, &format!("{name}-{}", std::process::id()))
}

/// A job of two nodes whose program creates `closed`, does `writes` to files that it keeps open, and waits.
fn start(site: &Site, place: &JobPlace, writes: &str) -> Background {
    let ready = site.plain().join("ready");
    let python = format!(
        "import os, time
cache = os.environ['TAMEIKE_CACHE']
with open(cache + '/closed', 'wb') as file: file.write(bytes(3000000))
file = open(cache + '/open', 'wb', buffering=0)
{writes}
open('{}', 'w')
time.sleep(1000)",
        ready.display()
    );
    let program = site.plain().join("program.py");
    fs::write(&program, python).expect("written");
    let options = ["--job", &place.job, "--memory", "64MiB"];
    let script = format!("python3 {}", program.display());
    let mut job = Background::start(&mut site.job(2, &options, &script));
    wait_for("the job's files", || (ready.exists() || !job.runs()).then_some(()));
    job
}

fn await_quiet(site: &Site, kills: bool) {
    let base = site.base();
    let base = base.to_str().expect("plain path");
    wait_for("the end of all processes", || {
        if kills {
            end_programs(base);
        }
        processes_naming(base).is_empty().then_some(())
    });
}

/// Kills the whole job, the agents first: they would write records after the exit of their driver.
fn kill_all(site: &Site, place: &JobPlace, job: Background) {
    assert!(signal(job.program(), "STOP"));
    assert!(place.kill_agents(0..2));
    assert!(signal(job.program(), "KILL"));
    await_quiet(site, true);
    job.output();
}

fn tameike(site: &Site, arguments: &[&str], code: i32) -> String {
    let output = site.tameike(arguments).output().expect("it starts");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", shown(&output));
    shown(&output)
}

/// Checks reports of `recover` and `status` on a job with an open file.
fn check_recovery(site: &Site, place: &JobPlace) {
    let words = "1 file open for writing";
    let status = tameike(site, &["status", "--job", &place.job], 0);
    assert!(status.contains(words), "{status}");
    let messages = tameike(site, &["recover", "--job", &place.job], INCOMPLETE);
    assert!(
        messages.contains(words) && messages.contains("1 of 2 files cut off while written"),
        "{messages}"
    );
    let line = |name: &str| messages.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(line("closed").contains("synced"), "{messages}");
    let size = fs::metadata(site.shared().join("open")).expect("there").len();
    let text =
        format!("CUT OFF: a program had it open for writing when it was cut off; the first {size} bytes");
    assert!(line("open").contains(&text), "{messages}");
    assert!(!messages.contains("drain complete"), "{messages}");
    place.assert_gone();
    assert!(tameike(site, &["recover", "--job", &place.job], 0).contains("has no leftovers"));
    site.assert_clean();
}

/// S45a. `recover` reported it as synced, or not at all if the homes had flushed their data.
#[test]
fn files_being_written_when_the_job_was_killed_are_reported() {
    for (name, writes) in [
        ("begun", "file.write(bytes(2500000))"),
        ("synced", "file.write(bytes(2500000)); os.fsync(file.fileno()); file.write(b'more')"),
    ] {
        let site = Site::new();
        let place = place(&site, name);
        let job = start(&site, &place, writes);
        kill_all(&site, &place, job);
        check_recovery(&site, &place);
    }
}

/// S45c.
#[test]
fn closed_or_unlocked_files_are_not_reported_as_cut_off() {
    for (name, ends) in [
        ("closed", "os.ftruncate(file.fileno(), 7); file.close()"),
        ("unlocked", "lock = __import__('fcntl').lockf; lock(file, 2); file.write(b'more'); lock(file, 8)"),
    ] {
        let site = Site::new();
        let place = place(&site, name);
        let job = start(&site, &place, &format!("file.write(bytes(2500000)); {ends}"));
        kill_all(&site, &place, job);
        let status = tameike(&site, &["status", "--job", &place.job], 0);
        assert!(!status.contains("open for writing"), "{status}");
        let messages = tameike(&site, &["recover", "--job", &place.job], 0);
        assert!(!messages.contains("CUT OFF"), "{messages}");
        place.assert_gone();
    }
}

/// S45b. An open file ends within a write.
#[test]
fn files_being_written_when_the_driver_was_killed_are_reported() {
    let site = Site::new();
    let place = place(&site, "driver");
    let job = start(&site, &place, "file.write(bytes(2500000))");
    assert!(signal(job.program(), "KILL"));
    job.output();
    await_quiet(&site, false);
    check_recovery(&site, &place);
}

/// The job continues without one of its nodes, and its receipt lists files that programs of that node were writing.
#[test]
fn the_receipt_lists_files_that_a_failed_node_was_writing() {
    let site = Site::new();
    let place = place(&site, "node");
    let mark = site.plain().join("mark");
    let writer = "import os, sys, time
files = [open(os.environ['TAMEIKE_CACHE'] + f'/{n}', 'wb', buffering=0) for n in range(24)]
for file in files: file.write(b'begun')
open(sys.argv[1], 'w')
time.sleep(1000)";
    let program = site.plain().join("program.py");
    fs::write(&program, writer).expect("written");
    let script = format!(
        r#"tameike exec --node 1 -- python3 {program} {mark} & until [ -e {mark} ]; do sleep 0.01; done
           kill -9 $(grep -o '"pid": [0-9]*' "$TAMEIKE_JOB_DIR/node-1/node.json" | grep -o '[0-9]*'); sleep 0.2"#,
        program = program.display(),
        mark = mark.display()
    );
    let output = site.job(2, &["--job", &place.job, "--keep-going"], &script).output().expect("a job");
    assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(&output));
    let named = |output: &Output| shown(output).matches("CUT OFF").count();
    // `recover` reports those that node 1 coordinated.
    assert!((1..24).contains(&named(&output)), "{}", shown(&output));
    end_programs(site.base().to_str().expect("plain path"));
    let recovered = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
    assert_eq!(recovered.status.code(), Some(INCOMPLETE), "{}", shown(&recovered));
    assert_eq!(named(&recovered), 24, "{}", shown(&recovered));
    place.assert_gone();
    assert!(Path::new("/dev/shm").exists());
}
