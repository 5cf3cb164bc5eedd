//! Leftovers of jobs, however they end: nothing but journals with dirty data, which are reported.

use crate::support::jobs::{Background, Job, new_job, signal, sleep_ms};
use crate::support::mounts::Mounts;
use crate::support::{
    Run, Site, assert_code, assert_contains, err, files_below, is_root, is_soak, json, shown, succeed, utf8,
    wrapped,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;
/// Exit codes of signals, as in shells.
const INTERRUPTED: i32 = 128 + 2;
const AGENT_LOST: i32 = 70;
/// Exit code of `timeout`.
const TIMED_OUT: i32 = 124;

/// A job that writes `file` with 5 MB, and waits.
fn start_waiting(site: &Site, running: &Job, options: &[&str]) -> Background {
    let options = [&["--job", &running.name, "--memory", "64MiB"], options].concat();
    let ready = site.plain().join("ready");
    let script = format!(
        r#"head -c 5000000 /dev/zero > "$TAMEIKE_CACHE/file"; sleep 1000 & touch {}; wait"#,
        ready.display()
    );
    Background::start_until(&mut site.job(2, &options, &script), &ready)
}

/// Starts a background job of two nodes.
fn up(site: &Site, running: &Job) {
    let options =
        ["--local", "2", "--shared", utf8(site.shared()), "--job", &running.name, "--memory", "64MiB"];
    succeed(&mut site.tameike(&[&["up"], &options[..]].concat()));
}

fn file_is_whole(site: &Site) -> bool {
    fs::read(site.shared().join("file")).is_ok_and(|bytes| bytes.len() == 5_000_000)
}

#[test]
fn many_jobs_leave_nothing() {
    let site = Site::new();
    let jobs = if is_soak() { 200 } else { 20 };
    for number in 0..jobs {
        let job = Job::new(&site, &format!("many{number}"));
        let options = ["--job", &job.name, "--memory", "48MiB"];
        let script = r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE" "$TAMEIKE_NODE_LOCAL"; do echo x > $view/f; done
                        tameike exec --node 1 -- true; sleep 1000 &"#;
        site.job(2, &options, script).exits(0);
    }
}

#[test]
fn a_driver_that_is_killed_leaves_a_journal_and_nothing_else() {
    let (site, job) = new_job("driver");
    let running = start_waiting(&site, &job, &[]);
    // Written while the driver is killed, so it cannot have been flushed.
    assert!(signal(running.program(), "KILL"));
    running.output();
    site.await_processes();
    // The start of another job removes leftovers, and reports what it keeps.
    let next = site.job(1, &[], "true").exits(0);
    if err(&next).contains(&format!("job {} was interrupted", job.name)) {
        assert_contains(&err(&next), &[&format!("tameike recover --job {}", job.name)]);
        site.tameike(&["recover", "--job", &job.name]).exits(0);
    }
    assert!(file_is_whole(&site), "{}", shown(&next));
}

/// `recover` itself waits for the agents of a driver that was just killed.
#[test]
fn recovery_waits_for_agents_that_are_ending() {
    let (site, job) = new_job("ending");
    let running = start_waiting(&site, &job, &[]);
    assert!(signal(running.program(), "KILL"));
    let recovered = site.tameike(&["recover", "--job", &job.name]).exits(0);
    running.output();
    assert!(file_is_whole(&site), "{}", shown(&recovered));
}

#[test]
fn a_job_that_gets_a_signal_drains_before_it_ends() {
    for name in ["INT", "TERM"] {
        let (site, job) = new_job(&name.to_lowercase());
        let running = start_waiting(&site, &job, &["--grace", "10"]);
        assert!(signal(running.program(), name));
        let output = running.output();
        assert_contains(&err(&output), &["drain complete"]);
        assert_ne!(output.status.code(), Some(0), "{name}: {}", shown(&output));
        assert!(file_is_whole(&site));
    }
}

#[test]
fn a_second_interrupt_ends_at_once_and_leaves_a_journal() {
    let (site, job) = new_job("second");
    let options = ["--job", &job.name, "--memory", "64MiB"];
    let ready = site.plain().join("ready");
    let script = format!(
        r#"trap '' INT; head -c 5000000 /dev/zero > "$TAMEIKE_CACHE/file"; touch {}; exec 3> /dev/null; sleep 1000"#,
        ready.display()
    );
    let running = Background::start_until(&mut site.job(2, &options, &script), &ready);
    let driver = running.program();
    assert!(signal(driver, "INT"));
    sleep_ms(100);
    assert!(signal(driver, "INT"));
    let output = running.output();
    assert_code(&output, INTERRUPTED);
    assert_contains(&err(&output), &[&format!("tameike recover --job {}", job.name)]);
    // The agents exit shortly after their driver.
    site.await_processes();
    site.tameike(&["recover", "--job", &job.name]).exits(0);
    assert!(file_is_whole(&site));
}

#[test]
fn an_interrupted_start_leaves_nothing() {
    for pause_ms in [5, 20, 40, 80] {
        let (site, job) = new_job(&format!("start{pause_ms}"));
        let running = Background::start(&mut site.job(3, &["--job", &job.name], "exec sleep 1000"));
        sleep_ms(pause_ms);
        signal(running.program(), "TERM");
        let output = running.output();
        assert_ne!(output.status.code(), Some(0), "{}", shown(&output));
        site.await_processes();
        site.tameike(&["recover", "--job", &job.name]).exits(0);
    }
}

#[test]
fn a_supervisor_that_is_killed_leaves_a_journal_and_nothing_else() {
    let (site, job) = new_job("up");
    up(&site, &job);
    let write =
        ["exec", "--job", &job.name, "--", "sh", "-c", "head -c 5000000 /dev/zero > $TAMEIKE_CACHE/file"];
    succeed(&mut site.tameike(&write));
    let record = json(&job.dir.join("job.json"));
    let driver = record["driver_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    assert!(signal(driver, "KILL"));
    site.await_processes();
    site.tameike(&["recover", "--job", &job.name]).exits(0);
    assert!(file_is_whole(&site));
}

/// `status` advises `recover`, which said that the host had no leftovers of the job.
#[test]
fn recover_reports_an_interrupted_job_without_dirty_data() {
    let (site, job) = new_job("clean");
    up(&site, &job);
    let driver = json(&job.dir.join("job.json"))["driver_pid"].as_u64().expect("a process");
    assert!(signal(driver as u32, "KILL"));
    site.await_processes();
    let status = succeed(&mut site.tameike(&["status", "--job", &job.name]));
    assert_contains(&status, &[&format!("tameike recover --job {}", job.name)]);
    let recover = || err(&site.tameike(&["recover", "--job", &job.name]).exits(0));
    assert_contains(&recover(), &["ended and left nothing that the shared file system lacks"]);
    assert_contains(&recover(), &["has no leftovers on this host"]);
}

/// Without a shared directory nothing can be dirty: a crash of an agent is reported, and leaves nothing.
#[test]
fn a_crashed_agent_without_a_cache_view_leaves_nothing() {
    let (site, job) = new_job("plain");
    let ready = site.plain().join("ready");
    let script = format!("echo x > $TAMEIKE_SHARED/f; touch {}; sleep 1000", ready.display());
    let arguments = ["run", "--local", "2", "--job", &job.name, "--", "sh", "-euc", &script];
    let running = Background::start_until(&mut site.tameike(&arguments), &ready);
    assert!(job.kill_agent(1));
    let output = running.output();
    assert_code(&output, AGENT_LOST);
    assert_contains(&err(&output), &["the agent of node 1"]);
}

/// Another program fills the device: writers get ENOSPC, and acknowledged data is not lost.
#[test]
fn a_full_device_returns_enospc_and_loses_nothing() {
    let Some(mounts) = Mounts::new() else { return };
    let (site, job) = new_job("device");
    mounts.mount_memory(site.disk(), "48m");
    let device = utf8(site.disk());
    // A capacity above the free space: refused at the start, with advice.
    let refused = ["--job", &job.name, "--device", device, "--capacity", "100M"];
    let output = mounts.inside(&site.job(1, &refused, "true")).exits(FAILED);
    assert_contains(&err(&output), &["request less"]);
    // Another program fills the device while the job runs.
    let options = ["--job", &job.name, "--device", device, "--capacity", "32M"];
    let script = format!(
        r#"head -c 4000000 /dev/urandom > /dev/shm/{0}; cp /dev/shm/{0} "$TAMEIKE_CACHE/file"
           cp /dev/shm/{0} "{1}/expected"; rm /dev/shm/{0}
           head -c 60M /dev/zero > {device}/filler 2>/dev/null || true
           head -c 12000000 /dev/zero > "$TAMEIKE_CACHE/more" && echo unexpected || echo refused
           rm {device}/filler"#,
        job.name,
        site.plain().display()
    );
    let output = mounts.inside(&site.job(1, &options, &script)).exits(0);
    assert_contains(&err(&output), &["No space left"]);
    let (expected, found) = (fs::read(site.plain().join("expected")), fs::read(site.shared().join("file")));
    assert!(expected.expect("written") == found.expect("drained"), "{}", shown(&output));
}

/// A program of the user outside the job sees the directory below the mount. Its files there were deleted at the end of the
/// job, which reported a complete drain.
#[test]
fn files_below_a_mount_point_are_kept_and_reported() {
    let (site, job) = new_job("below");
    up(&site, &job);
    let mount_point = |view: &str| job.dir.join("mnt").join(view);
    for view in ["node-local", "shared", "cache"] {
        let mode = fs::metadata(mount_point(view)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o500, "{view}");
        let readme = fs::read_to_string(mount_point(view).join("README")).expect("the README");
        assert_contains(&readme, &["tameike exec"]);
    }
    let stray = mount_point("cache").join("stray");
    if tameike_io::os::process::user() != 0 {
        fs::write(&stray, "kept").expect_err("a directory that refuses writes");
        fs::set_permissions(mount_point("cache"), Permissions::from_mode(0o700)).expect("ours");
    }
    fs::write(&stray, "kept").expect("written");
    fs::write(job.dir.join("mnt/beside"), "kept").expect("written");
    let reports_all = |arguments: &[&str], code: i32| {
        let text = shown(&site.tameike(arguments).exits(code));
        assert_contains(&text, &["wrote stray to", "wrote beside to", utf8(&mount_point("cache"))]);
        assert!(!text.contains("drain complete"), "{text}");
        assert_eq!(fs::read(&stray).expect("kept"), b"kept", "{text}");
    };
    reports_all(&["down", "--job", &job.name], INCOMPLETE);
    assert_eq!(job.devices(Path::new("/dev/shm")), Vec::<PathBuf>::new(), "the drain was complete");
    reports_all(&["run", "--", "true"], 0);
    reports_all(&["recover", "--job", &job.name], INCOMPLETE);
    reports_all(&["recover", "--job", &job.name, "--discard"], INCOMPLETE);
    fs::remove_file(&stray).expect("there");
    fs::remove_file(job.dir.join("mnt/beside")).expect("there");
    site.tameike(&["recover", "--job", &job.name]).exits(0);
}

/// A command with another TMPDIR finds a background job if no job has that TMPDIR; otherwise the choice is not ambiguous.
#[test]
fn a_running_job_of_another_tmpdir_is_found_if_there_is_no_other() {
    let (site, other) = (Site::new(), Site::new());
    let jobs = [Job::new(&site, "here"), Job::new(&other, "there")];
    for (site, job) in [&site, &other].into_iter().zip(&jobs) {
        succeed(&mut site.tameike(&["up", "--job", &job.name, "--memory", "64MiB"]));
    }
    let found = succeed(&mut site.tameike(&["exec", "--", "sh", "-c", "echo $TAMEIKE_JOB"]));
    assert_eq!(found.trim(), jobs[0].name);
    let other_job = jobs[1].name.as_str();
    assert_contains(&succeed(&mut site.tameike(&["status", "--job", other_job])), &[other_job]);
    succeed(&mut site.tameike(&["down", "--job", other_job]));
    succeed(&mut site.tameike(&["down"]));
}

/// As above, for jobs that the command ends, and for killed jobs.
#[test]
fn files_below_a_mount_point_survive_every_end_of_the_job() {
    let site = Site::new();
    for end in ["TERM", "KILL"] {
        let job = Job::new(&site, &format!("below{}", end.to_lowercase()));
        let running = start_waiting(&site, &job, &["--grace", "10"]);
        let cache = job.dir.join("mnt/cache");
        fs::set_permissions(&cache, Permissions::from_mode(0o700)).expect("ours");
        fs::write(cache.join("stray"), "kept").expect("written");
        assert!(signal(running.program(), end));
        let mut output = running.output();
        if end == "KILL" {
            output = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
        }
        assert_code(&output, INCOMPLETE);
        assert_contains(&err(&output), &["wrote stray to"]);
        assert!(file_is_whole(&site), "{end}: {}", shown(&output));
        assert_eq!(fs::read(cache.join("stray")).expect("kept"), b"kept");
        fs::remove_file(cache.join("stray")).expect("there");
        succeed(&mut site.tameike(&["recover", "--job", &job.name]));
        fs::remove_file(site.shared().join("file")).expect("drained");
        fs::remove_file(site.plain().join("ready")).expect("made by the job");
    }
}

/// Invalid options are refused with a clear message, and leave nothing.
#[test]
fn invalid_input_is_refused() {
    let site = Site::new();
    let file = site.plain().join("a-file");
    fs::write(&file, "local = 2\nlocal = 3\n").expect("written");
    let (file, none) = (utf8(&file), "/no/such/thing");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--config", none], FAILED, "/no/such/thing"),
        (&["--config", file], FAILED, "line 2"),
        (&["--shared", none], FAILED, "/no/such/thing"),
        (&["--shared", file], FAILED, "ENOTDIR"),
        (&["--capacity", "plenty"], 2, "plenty"),
        (&["--capacity=-1"], 2, "capacity"),
        (&["--capacity", "cache=1Q"], 2, "1Q"),
        (&["--device", none], FAILED, "/no/such/thing"),
        (&["--device", file], FAILED, "a-file"),
        (&["--hostfile", none], FAILED, "/no/such/thing"),
        (&["--memory", "1"], FAILED, "at least"),
        (&["--job", "No Name"], 2, "job name"),
    ];
    for (options, code, part) in cases {
        let arguments = [&["run"], *options, &["--", "true"]].concat();
        let output = site.tameike(&arguments).exits(*code);
        assert_contains(&err(&output), &[part]);
        assert!(!err(&output).contains("panicked"), "{options:?}: {}", shown(&output));
    }
}

/// The shared directory is read-only: writes fail, and the receipt claims nothing.
#[test]
fn a_shared_directory_that_cannot_be_written_refuses_files() {
    let Some(mounts) = Mounts::new() else { return };
    let (site, job) = new_job("unwritable");
    mounts.mount_memory(site.shared(), "8m");
    mounts.must(&format!("mount -o remount,ro {}", site.shared().display()));
    let script = r#"! echo x > "$TAMEIKE_CACHE/file" && ls "$TAMEIKE_CACHE""#;
    let output = mounts.inside(&site.job(1, &["--job", &job.name], script)).exits(0);
    assert_contains(&err(&output), &["Read-only file system", "nothing was written in the cache view"]);
}

#[test]
fn damaged_records_are_reported_and_do_not_affect_other_jobs() {
    let (site, job) = new_job("record");
    let running = start_waiting(&site, &job, &[]);
    assert!(signal(running.program(), "KILL"));
    running.output();
    site.await_processes();
    fs::write(job.dir.join("job.json"), b"{\"plan\": \xFF").expect("written");
    let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
    assert!(!err(&recovered).contains("panicked"), "{}", shown(&recovered));
    site.job(1, &[], "true").exits(0);
    if job.dir.exists() {
        assert!(matches!(recovered.status.code(), Some(FAILED | INCOMPLETE)), "{}", shown(&recovered));
        let discarded =
            site.tameike(&["recover", "--job", &job.name, "--discard"]).output().expect("it starts");
        assert_contains(&err(&discarded), &["are removed"]);
    }
    assert!(Path::new("/dev/shm").exists());
}

/// After a restart of the machine, another user created a directory with the name of a crashed job's device directory, with
/// links to the victim's files or FIFOs instead of the store's files. The next job and `recover` wrote through the links, and
/// blocked forever on the FIFO.
#[test]
fn a_device_directory_of_another_user_is_not_used() {
    if !is_root() {
        return;
    }
    let (site, job) = new_job("stranger");
    let script = r#"head -c 5000000 /dev/zero > "$TAMEIKE_CACHE/file"
        kill -9 $(grep -o '"pid": [0-9]*' "$TAMEIKE_JOB_DIR/node-0/node.json" | grep -o '[0-9]*'); sleep 2"#;
    let options = ["--job", &job.name, "--memory", "64M", "--capacity", "64M"];
    site.job(1, &options, script).output().expect("it starts");
    site.await_processes();
    let devices = job.devices(Path::new("/dev/shm"));
    let device = devices.first().expect("a device of the killed job").clone();
    let record = site.base().join("tameike-0").join(&job.name);
    let kept = site.base().with_file_name("kept");
    let copy = |from: &Path, to: &Path| {
        succeed(Command::new("cp").arg("-aT").args([from, to]));
    };
    copy(&record, &kept);
    let precious = site.base().with_file_name("precious");
    fs::write(&precious, "precious").expect("written");
    for name in ["format", "extents", "log.0", "log.1", "lock", "owner.json"] {
        for what in ["link", "fifo"] {
            fs::remove_dir_all(&device).expect("removed");
            fs::create_dir(&device).expect("made");
            let planted = device.join(name);
            match what {
                "link" => symlink(&precious, &planted).expect("linked"),
                _ => succeed(Command::new("mkfifo").arg(&planted)).clear(),
            }
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
            if name != "format" {
                fs::write(device.join("format"), format!("tameike-store 2 {boot}")).expect("written");
            }
            chown(&device, Some(65_533), Some(65_533)).expect("chown");
            let before = files_below(&device);
            for arguments in [&["run", "--", "true"][..], &["recover", "--job", &job.name]] {
                copy(&kept, &record);
                let mut limited = wrapped("timeout", &["30"], &site.tameike(arguments));
                let output = limited.output().expect("timeout is installed");
                // The files are neither opened nor used: the job's data counts as lost.
                let messages = err(&output);
                assert!(
                    output.status.code() != Some(TIMED_OUT)
                        && messages.contains("belongs to another user (UID 65533)"),
                    "{arguments:?}, {name} as a {what}: {messages}"
                );
            }
            assert_eq!(fs::read(&precious).expect("there"), b"precious", "{name} as a {what}");
            assert_eq!(files_below(&device), before, "{name} as a {what}");
        }
    }
    fs::remove_dir_all(&device).expect("removed");
    site.tameike(&["recover", "--job", &job.name, "--discard"]).output().expect("it starts");
}
