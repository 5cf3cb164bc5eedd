//! Leftovers of jobs, however they end: nothing but journals with dirty data, which are reported.

use crate::support::mounts::Mounts;
use crate::support::victims::{Background, JobPlace, is_soak, signal, wait_for};
use crate::support::{Site, processes_naming, shown};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;
/// Exit codes of signals, as in shells.
const INTERRUPTED: i32 = 128 + 2;

/// A site with a job's name that no other test uses.
fn place(site: &Site, name: &str) -> JobPlace {
    JobPlace::new(site, &format!("{name}-{}", std::process::id()))
}

/// A job that writes `file` with 5 MB, and waits.
fn start_waiting(site: &Site, place: &JobPlace, options: &[&str]) -> Background {
    let all = [&["--job", &place.job, "--memory", "64MiB"], options].concat();
    let ready = site.shared().with_file_name("ready");
    let script = format!(
        r#"head -c 5000000 /dev/zero > "$TAMEIKE_CACHE/file"; sleep 1000 & touch {}; wait"#,
        ready.display()
    );
    let mut job = Background::start(&mut site.job(2, &all, &script));
    wait_for("the job's file", || (ready.exists() || !job.runs()).then_some(()));
    job
}

fn file_is_whole(site: &Site) -> bool {
    fs::read(site.shared().join("file")).is_ok_and(|bytes| bytes.len() == 5_000_000)
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until no process of the site is left.
fn await_quiet(site: &Site) {
    let base = site.base();
    let base = base.to_str().expect("plain path");
    wait_for("the end of all processes", || processes_naming(base).is_empty().then_some(()));
}

#[test]
fn many_jobs_leave_nothing() {
    let site = Site::new();
    let jobs = if is_soak() { 200 } else { 20 };
    for number in 0..jobs {
        let place = place(&site, &format!("many{number}"));
        let options = ["--job", &place.job, "--memory", "48MiB"];
        let script = r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE" "$TAMEIKE_NODE_LOCAL"; do echo x > $view/f; done
                        tameike exec --node 1 -- true; sleep 1000 &"#;
        let output = site.job(2, &options, script).output().expect("a job");
        assert_eq!(output.status.code(), Some(0), "job {number}: {}", shown(&output));
        place.assert_gone();
    }
    site.assert_clean();
}

#[test]
fn a_driver_that_is_killed_leaves_a_journal_and_nothing_else() {
    let site = Site::new();
    let place = place(&site, "driver");
    let job = start_waiting(&site, &place, &[]);
    let driver = job.program();
    // Written while the driver is killed, so it cannot have been flushed.
    assert!(signal(driver, "KILL"));
    job.output();
    await_quiet(&site);
    // The start of another job removes leftovers, and reports what it keeps.
    let next = site.job(1, &[], "true").output().expect("a job");
    assert_eq!(next.status.code(), Some(0), "{}", shown(&next));
    if words(&next).contains(&format!("job {} was interrupted", place.job)) {
        assert!(words(&next).contains(&format!("tameike recover --job {}", place.job)), "{}", shown(&next));
        let recovered = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
        assert_eq!(recovered.status.code(), Some(0), "{}", shown(&recovered));
    }
    assert!(file_is_whole(&site), "{}", shown(&next));
    place.assert_gone();
    site.assert_clean();
}

/// `recover` itself waits for the agents of a driver that was just killed.
#[test]
fn recovery_waits_for_agents_that_are_ending() {
    let site = Site::new();
    let place = place(&site, "ending");
    let job = start_waiting(&site, &place, &[]);
    assert!(signal(job.program(), "KILL"));
    let recovered = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
    assert_eq!(recovered.status.code(), Some(0), "{}", shown(&recovered));
    job.output();
    assert!(file_is_whole(&site), "{}", shown(&recovered));
    place.assert_gone();
    site.assert_clean();
}

#[test]
fn a_job_that_is_asked_to_end_drains_first() {
    for name in ["INT", "TERM"] {
        let site = Site::new();
        let place = place(&site, &name.to_lowercase());
        let job = start_waiting(&site, &place, &["--grace", "10"]);
        assert!(signal(job.program(), name));
        let output = job.output();
        assert!(words(&output).contains("drain complete"), "{name}: {}", shown(&output));
        assert_ne!(output.status.code(), Some(0), "{name}: {}", shown(&output));
        assert!(file_is_whole(&site));
        place.assert_gone();
        site.assert_clean();
    }
}

#[test]
fn a_second_interrupt_ends_at_once_and_leaves_a_journal() {
    let site = Site::new();
    let place = place(&site, "second");
    let options = ["--job", &place.job, "--memory", "64MiB"];
    let ready = site.shared().with_file_name("ready");
    let script = format!(
        r#"trap '' INT; head -c 5000000 /dev/zero > "$TAMEIKE_CACHE/file"; touch {}; exec 3> /dev/null; sleep 1000"#,
        ready.display()
    );
    let mut job = Background::start(&mut site.job(2, &options, &script));
    wait_for("the job's file", || (ready.exists() || !job.runs()).then_some(()));
    let driver = job.program();
    assert!(signal(driver, "INT"));
    crate::support::victims::let_pass_ms(100);
    assert!(signal(driver, "INT"));
    let output = job.output();
    assert_eq!(output.status.code(), Some(INTERRUPTED), "{}", shown(&output));
    assert!(words(&output).contains(&format!("tameike recover --job {}", place.job)), "{}", shown(&output));
    // The agents exit shortly after their driver.
    await_quiet(&site);
    let recovered = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
    assert_eq!(recovered.status.code(), Some(0), "{}", shown(&recovered));
    assert!(file_is_whole(&site));
    place.assert_gone();
    site.assert_clean();
}

#[test]
fn an_interrupted_start_leaves_nothing() {
    for pause_ms in [5, 20, 40, 80] {
        let site = Site::new();
        let place = place(&site, &format!("start{pause_ms}"));
        let job = Background::start(&mut site.job(3, &["--job", &place.job], "exec sleep 1000"));
        crate::support::victims::let_pass_ms(pause_ms);
        signal(job.program(), "TERM");
        let output = job.output();
        assert_ne!(output.status.code(), Some(0), "{}", shown(&output));
        await_quiet(&site);
        let swept = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
        assert_eq!(swept.status.code(), Some(0), "{}", shown(&swept));
        place.assert_gone();
        site.assert_clean();
    }
}

#[test]
fn a_supervisor_that_is_killed_leaves_a_journal_and_nothing_else() {
    let site = Site::new();
    let place = place(&site, "up");
    let shared = site.shared();
    let shared = shared.to_str().expect("plain path");
    let options = ["up", "--local", "2", "--shared", shared, "--job", &place.job, "--memory", "64MiB"];
    crate::support::succeed(&mut site.tameike(&options));
    let write =
        ["exec", "--job", &place.job, "--", "sh", "-c", "head -c 5000000 /dev/zero > $TAMEIKE_CACHE/file"];
    crate::support::succeed(&mut site.tameike(&write));
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(place.dir.join("job.json")).expect("a record")).expect("JSON");
    let driver = record["driver_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    assert!(signal(driver, "KILL"));
    await_quiet(&site);
    let recovered = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
    assert_eq!(recovered.status.code(), Some(0), "{}", shown(&recovered));
    assert!(file_is_whole(&site));
    place.assert_gone();
    site.assert_clean();
}

/// Without a shared directory nothing can be dirty: a crash of an agent is reported, and leaves nothing.
#[test]
fn a_crashed_agent_without_a_cache_view_leaves_nothing() {
    let site = Site::new();
    let place = place(&site, "plain");
    let ready = site.shared().with_file_name("ready");
    let script = format!("echo x > $TAMEIKE_SHARED/f; touch {}; sleep 1000", ready.display());
    let arguments = ["run", "--local", "2", "--job", &place.job, "--", "sh", "-euc", &script];
    let mut job = Background::start(&mut site.tameike(&arguments));
    wait_for("the job", || (ready.exists() || !job.runs()).then_some(()));
    assert!(place.kill_agent(1));
    let output = job.output();
    assert_eq!(output.status.code(), Some(70), "{}", shown(&output));
    assert!(words(&output).contains("the agent of node 1"), "{}", shown(&output));
    place.assert_gone();
    site.assert_clean();
}

/// Another program fills the device: writers get ENOSPC, and acknowledged data is not lost.
#[test]
fn a_full_device_returns_enospc_and_loses_nothing() {
    let Some(mounts) = Mounts::new() else { return };
    let site = Site::new();
    let device = site.base().join("device");
    fs::create_dir(&device).expect("a directory");
    mounts.mount_memory(&device, "48m");
    let device = device.to_str().expect("plain path");
    // A capacity above the free space: refused at the start, with advice.
    let place = place(&site, "device");
    let refused = ["--job", &place.job, "--device", device, "--capacity", "100M"];
    let output = mounts.inside(&site.job(1, &refused, "true")).output().expect("a job");
    assert_eq!(output.status.code(), Some(FAILED), "{}", shown(&output));
    assert!(words(&output).contains("request less"), "{}", shown(&output));
    // Another program fills the device while the job runs.
    let options = ["--job", &place.job, "--device", device, "--capacity", "32M"];
    let script = format!(
        r#"head -c 4000000 /dev/urandom > /dev/shm/{0}; cp /dev/shm/{0} "$TAMEIKE_CACHE/file"
           cp /dev/shm/{0} "{1}/expected"; rm /dev/shm/{0}
           head -c 60M /dev/zero > {device}/filler 2>/dev/null || true
           head -c 12000000 /dev/zero > "$TAMEIKE_CACHE/more" && echo unexpected || echo refused
           rm {device}/filler"#,
        place.job,
        site.base().display()
    );
    let output = mounts.inside(&site.job(1, &options, &script)).output().expect("a job");
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    assert!(words(&output).contains("No space left"), "{}", shown(&output));
    let (expected, found) = (fs::read(site.base().join("expected")), fs::read(site.shared().join("file")));
    assert!(expected.expect("written") == found.expect("drained"), "{}", shown(&output));
    for name in ["expected", "device"] {
        let _ = fs::remove_file(site.base().join(name));
    }
    place.assert_gone();
}

/// A program of the user outside the job sees the directory below the mount. Its files there were deleted at the end of the
/// job, which reported a complete drain.
#[test]
fn files_below_a_mount_point_are_kept_and_reported() {
    let site = Site::new();
    let place = place(&site, "below");
    let shared = site.shared();
    let shared = shared.to_str().expect("plain path");
    let options = ["up", "--local", "2", "--shared", shared, "--job", &place.job, "--memory", "64MiB"];
    crate::support::succeed(&mut site.tameike(&options));
    let mount_point = |view: &str| place.dir.join("mnt").join(view);
    for view in ["node-local", "shared", "cache"] {
        let mode = fs::metadata(mount_point(view)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o500, "{view}");
        let readme = fs::read_to_string(mount_point(view).join("README")).expect("the README");
        assert!(readme.contains("tameike exec"), "{readme}");
    }
    let stray = mount_point("cache").join("stray");
    if tameike_io::os::process::user() != 0 {
        fs::write(&stray, "kept").expect_err("a directory that refuses writes");
        fs::set_permissions(mount_point("cache"), Permissions::from_mode(0o700)).expect("ours");
    }
    fs::write(&stray, "kept").expect("written");
    fs::write(place.dir.join("mnt/beside"), "kept").expect("written");
    let names_all = |output: &Output, code: i32| {
        let text = shown(output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        for part in ["wrote stray to", "wrote beside to", mount_point("cache").to_str().expect("plain path")]
        {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("drain complete"), "{text}");
        assert_eq!(fs::read(&stray).expect("kept"), b"kept", "{text}");
    };
    let tameike = |arguments: &[&str]| site.tameike(arguments).output().expect("it starts");
    names_all(&tameike(&["down", "--job", &place.job]), INCOMPLETE);
    assert_eq!(place.devices(Path::new("/dev/shm")), Vec::<PathBuf>::new(), "the drain was complete");
    names_all(&tameike(&["run", "--", "true"]), 0);
    names_all(&tameike(&["recover", "--job", &place.job]), INCOMPLETE);
    names_all(&tameike(&["recover", "--job", &place.job, "--discard"]), INCOMPLETE);
    fs::remove_file(&stray).expect("there");
    fs::remove_file(place.dir.join("mnt/beside")).expect("there");
    let swept = tameike(&["recover", "--job", &place.job]);
    assert_eq!(swept.status.code(), Some(0), "{}", shown(&swept));
    place.assert_gone();
    site.assert_clean();
}

/// A command with another TMPDIR finds a background job if no job has that TMPDIR; otherwise the choice is not ambiguous.
#[test]
fn a_running_job_of_another_tmpdir_is_found_if_there_is_no_other() {
    let (site, other) = (Site::new(), Site::new());
    let places = [place(&site, "here"), place(&other, "there")];
    for (site, place) in [&site, &other].into_iter().zip(&places) {
        crate::support::succeed(&mut site.tameike(&["up", "--job", &place.job, "--memory", "64MiB"]));
    }
    let words = crate::support::succeed(&mut site.tameike(&["exec", "--", "sh", "-c", "echo $TAMEIKE_JOB"]));
    assert_eq!(words.trim(), places[0].job);
    let named = ["--job", &places[1].job];
    assert!(
        crate::support::succeed(&mut site.tameike(&[&["status"], &named[..]].concat())).contains(named[1])
    );
    crate::support::succeed(&mut site.tameike(&[&["down"], &named[..]].concat()));
    crate::support::succeed(&mut site.tameike(&["down"]));
    for (site, place) in [&site, &other].into_iter().zip(&places) {
        place.assert_gone();
        site.assert_clean();
    }
}

/// As above, for jobs that the command ends, and for killed jobs.
#[test]
fn files_below_a_mount_point_survive_every_end_of_the_job() {
    let site = Site::new();
    for end in ["TERM", "KILL"] {
        let place = place(&site, &format!("below{}", end.to_lowercase()));
        let job = start_waiting(&site, &place, &["--grace", "10"]);
        let cache = place.dir.join("mnt/cache");
        fs::set_permissions(&cache, Permissions::from_mode(0o700)).expect("ours");
        fs::write(cache.join("stray"), "kept").expect("written");
        assert!(signal(job.program(), end));
        let mut output = job.output();
        if end == "KILL" {
            output = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
        }
        assert_eq!(output.status.code(), Some(INCOMPLETE), "{end}: {}", shown(&output));
        assert!(words(&output).contains("wrote stray to"), "{end}: {}", shown(&output));
        assert!(file_is_whole(&site), "{end}: {}", shown(&output));
        assert_eq!(fs::read(cache.join("stray")).expect("kept"), b"kept");
        fs::remove_file(cache.join("stray")).expect("there");
        crate::support::succeed(&mut site.tameike(&["recover", "--job", &place.job]));
        place.assert_gone();
        fs::remove_file(site.shared().join("file")).expect("drained");
        fs::remove_file(site.shared().with_file_name("ready")).expect("made by the job");
    }
    site.assert_clean();
}

/// Invalid options are refused with a clear message, and leave nothing.
#[test]
fn invalid_input_is_refused() {
    let site = Site::new();
    let file = site.base().join("a-file");
    fs::write(&file, "local = 2\nlocal = 3\n").expect("written");
    let (file, none) = (file.to_str().expect("plain path"), "/no/such/thing");
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
        let output = site.tameike(&arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(*code), "{options:?}: {}", shown(&output));
        assert!(words(&output).contains(part), "{options:?}: {}", shown(&output));
        assert!(!words(&output).contains("panicked"), "{options:?}: {}", shown(&output));
    }
    fs::remove_file(file).expect("removed");
    site.assert_clean();
}

/// The shared directory is read-only: writes fail, and the receipt claims nothing.
#[test]
fn a_shared_directory_that_cannot_be_written_refuses_files() {
    let Some(mounts) = Mounts::new() else { return };
    let site = Site::new();
    mounts.mount_memory(&site.shared(), "8m");
    mounts.must(&format!("mount -o remount,ro {}", site.shared().display()));
    let place = place(&site, "unwritable");
    let script = r#"! echo x > "$TAMEIKE_CACHE/file" && ls "$TAMEIKE_CACHE""#;
    let output = mounts.inside(&site.job(1, &["--job", &place.job], script)).output().expect("a job");
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    assert!(words(&output).contains("Read-only file system"), "{}", shown(&output));
    assert!(words(&output).contains("nothing was written in the cache view"), "{}", shown(&output));
    place.assert_gone();
}

#[test]
fn damaged_records_are_reported_and_do_not_affect_other_jobs() {
    let site = Site::new();
    let place = place(&site, "record");
    let job = start_waiting(&site, &place, &[]);
    assert!(signal(job.program(), "KILL"));
    job.output();
    await_quiet(&site);
    fs::write(place.dir.join("job.json"), b"{\"plan\": \xFF").expect("written");
    let recovered = site.tameike(&["recover", "--job", &place.job]).output().expect("it starts");
    assert!(!words(&recovered).contains("panicked"), "{}", shown(&recovered));
    let next = site.job(1, &[], "true").output().expect("a job");
    assert_eq!(next.status.code(), Some(0), "{}", shown(&next));
    if place.dir.exists() {
        assert!(matches!(recovered.status.code(), Some(FAILED | INCOMPLETE)), "{}", shown(&recovered));
        let given_up =
            site.tameike(&["recover", "--job", &place.job, "--discard"]).output().expect("it starts");
        assert!(words(&given_up).contains("are removed"), "{}", shown(&given_up));
    }
    place.assert_gone();
    assert!(Path::new("/dev/shm").exists());
    site.assert_clean();
}

/// After a restart of the machine, another user created a directory with the name of a crashed job's device directory, with
/// links to the victim's files or FIFOs instead of the store's files. The next job and `recover` wrote through the links, and
/// blocked forever on the FIFO.
#[test]
fn a_device_directory_of_another_user_is_not_used() {
    if tameike_io::os::process::user() != 0 {
        println!("not tested: acting as another user requires root");
        return;
    }
    let site = Site::new();
    let place = place(&site, "stranger");
    let script = r#"head -c 5000000 /dev/zero > "$TAMEIKE_CACHE/file"
        kill -9 $(grep -o '"pid": [0-9]*' "$TAMEIKE_JOB_DIR/node-0/node.json" | grep -o '[0-9]*'); sleep 2"#;
    let options = ["--job", &place.job, "--memory", "64M", "--capacity", "64M"];
    site.job(1, &options, script).output().expect("it starts");
    await_quiet(&site);
    let devices = place.devices(Path::new("/dev/shm"));
    let device = devices.first().expect("a device of the killed job").clone();
    let record = site.base().join("tameike-0").join(&place.job);
    let kept = site.base().with_file_name("kept");
    let copy = |from: &Path, to: &Path| {
        crate::support::succeed(std::process::Command::new("cp").arg("-aT").args([from, to]));
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
                "link" => std::os::unix::fs::symlink(&precious, &planted).expect("linked"),
                _ => crate::support::succeed(std::process::Command::new("mkfifo").arg(&planted)).clear(),
            }
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
            if name != "format" {
                fs::write(device.join("format"), format!("tameike-store 1 {boot}")).expect("written");
            }
            std::os::unix::fs::chown(&device, Some(65_533), Some(65_533)).expect("chown");
            let before = crate::support::files_below(&device);
            for arguments in [&["run", "--", "true"][..], &["recover", "--job", &place.job]] {
                copy(&kept, &record);
                let output = limited(&mut site.tameike(arguments)).output().expect("timeout is installed");
                // The files are neither opened nor used: the job's data counts as lost.
                let words = words(&output);
                assert_ne!(output.status.code(), Some(124), "{arguments:?}, {name} as a {what}: {words}");
                assert!(
                    words.contains("belongs to another user (UID 65533)"),
                    "{arguments:?}, {name} as a {what}: {words}"
                );
            }
            assert_eq!(fs::read(&precious).expect("there"), b"precious", "{name} as a {what}");
            assert_eq!(crate::support::files_below(&device), before, "{name} as a {what}");
        }
    }
    fs::remove_dir_all(&device).expect("removed");
    site.tameike(&["recover", "--job", &place.job, "--discard"]).output().expect("it starts");
}

/// The same command, terminated after 30 s with code 124.
fn limited(command: &mut std::process::Command) -> std::process::Command {
    let mut limited = std::process::Command::new("timeout");
    limited.arg("30").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}
