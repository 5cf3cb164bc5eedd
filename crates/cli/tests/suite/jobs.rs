//! Complete jobs on one machine, with real processes, namespaces and mounts, and the recording agent.

use crate::place::{Place, assert_code, err, out};
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// A line of a script that makes the device of a node dirty.
fn dirty(place: &Place, node: u32) -> String {
    format!("echo data > {}/tameike-$(id -u)-$TAMEIKE_JOB-{node}/dirty;", place.path("disk").display())
}

#[test]
fn the_command_runs_as_if_started_directly() {
    let place = Place::new();
    let mut command =
        place.run_command("--local 2 --job j1", "pwd; cat; env | grep ^TAMEIKE_ | sort; exit 7");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("piped").write_all(b"input\n").expect("the command reads");
    let output = child.wait_with_output().expect("it ends");
    assert_code(&output, 7);
    let base = place.path("tmp").join(format!("tameike-{}/j1", tameike_io::os::process::user()));
    let base = base.display();
    let expected = format!(
        "{}\ninput\nTAMEIKE_CACHE={base}/mnt/cache\nTAMEIKE_JOB=j1\nTAMEIKE_JOB_DIR={base}\nTAMEIKE_NODE=0\n\
         TAMEIKE_NODES=2\nTAMEIKE_NODE_LOCAL={base}/mnt/node-local\nTAMEIKE_RING=\nTAMEIKE_SHARED={base}/mnt/shared\n",
        place.path("").display().to_string().trim_end_matches('/')
    );
    assert_eq!(out(&output), expected);
    place.assert_clean();
}

#[test]
fn a_missing_command_is_reported_like_in_shells() {
    let place = Place::new();
    let output =
        place.tameike(&["run", "--capacity", "1M", "--", "/no/such/program"]).output().expect("starts");
    assert_code(&output, 127);
    assert!(err(&output).contains("/no/such/program"), "{}", err(&output));
    let output = place.tameike(&["run", "--capacity", "1M", "--", "/etc"]).output().expect("starts");
    assert_code(&output, 126);
    place.assert_clean();
}

#[test]
fn written_data_is_drained_and_in_the_receipt() {
    let place = Place::new();
    let receipt = place.path("receipt.json");
    let options = format!("--local 2 --receipt {}", receipt.display());
    let script = format!("{}{}", dirty(&place, 0), dirty(&place, 1));
    let output = place.run(&options, &script);
    assert_code(&output, 0);
    assert!(err(&output).contains("drain complete: 2 files, 10 B written, all synced"), "{}", err(&output));
    let receipt: serde_json::Value =
        serde_json::from_slice(&std::fs::read(receipt).expect("written")).expect("JSON");
    assert_eq!(receipt["complete"], true);
    assert_eq!(receipt["files"][1]["path"], "from-node-1");
    assert_eq!(std::fs::read(place.shared("from-node-0")).expect("drained"), b"data\n");
    place.assert_clean();
}

#[test]
fn an_incomplete_drain_leaves_a_journal_that_recover_finishes() {
    let place = Place::new();
    place.request("fail-drain");
    let output = place.run("--local 2 --job half", &dirty(&place, 1));
    assert_code(&output, 75);
    assert!(err(&output).contains("MISSING: requested failure"), "{}", err(&output));
    assert!(err(&output).contains("tameike recover --job half"), "{}", err(&output));
    let again = place.run("--job other", "true");
    assert_code(&again, 0);
    assert!(err(&again).contains("job half was interrupted and left 5 B of 1 file not"), "{}", err(&again));
    let taken = place.run("--job half", "true");
    assert_code(&taken, 71);
    let still = place.tameike(&["recover", "--job", "half"]).output().expect("starts");
    assert_code(&still, 75);
    place.withdraw("fail-drain");
    let status = place.tameike(&["status"]).output().expect("starts");
    let words = "job half was interrupted and left 5 B of 1 file not on the shared file system";
    assert!(out(&status).contains(words), "{}", out(&status));
    let recovered = place.tameike(&["recover", "--job", "half"]).output().expect("starts");
    assert_code(&recovered, 0);
    assert!(err(&recovered).contains(words), "{}", err(&recovered));
    assert_eq!(std::fs::read(place.shared("from-node-1")).expect("drained"), b"data\n");
    place.assert_clean();
    let nothing = place.tameike(&["recover", "--job", "half"]).output().expect("starts");
    assert_code(&nothing, 0);
}

#[test]
fn signals_go_to_the_command_and_end_the_job() {
    let place = Place::new();
    let run = place.start("", "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    run.signal("TERM");
    let output = run.finish();
    assert_code(&output, 3);
    assert_eq!(out(&output), "term\n");
    let run = place.start("", "trap 'echo int; exit 4' INT; echo ready; while :; do sleep 0.05; done");
    run.signal("INT");
    assert_code(&run.finish(), 4);
    let run = place.start("", "echo ready; kill -9 $$");
    assert_code(&run.finish(), 128 + 9);
    place.assert_clean();
}

#[test]
fn a_command_that_ignores_the_end_is_killed_within_the_grace_time() {
    let place = Place::new();
    let run = place.start("--grace 1", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    run.signal("TERM");
    let output = run.finish();
    assert_code(&output, 128 + 9);
    place.assert_clean();
}

#[test]
fn a_drain_that_takes_too_long_is_aborted() {
    let place = Place::new();
    place.request("slow-drain");
    let script = format!("{} trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done", dirty(&place, 0));
    let run = place.start("--grace 1 --job slow", &script);
    run.signal("TERM");
    let output = run.finish();
    assert_code(&output, 75);
    assert!(err(&output).contains("did not finish in time"), "{}", err(&output));
    // It reported `0 of 0 files`, and listed none.
    let text = err(&output);
    assert!(text.contains("from-node-0") && text.contains("1 of 1 file not on the shared"), "{text}");
    place.withdraw("slow-drain");
    assert_code(&place.tameike(&["recover", "--job", "slow"]).output().expect("starts"), 0);
    assert!(place.shared("from-node-0").exists());
    place.assert_clean();
}

#[test]
fn the_driver_waits_for_agents_that_report_progress_when_they_stop() {
    let place = Place::new();
    place.request("slow-stop-0");
    let run = place.start("--local 2 --grace 1", &format!("{} echo ready", dirty(&place, 0)));
    let output = run.finish();
    assert_code(&output, 0);
    assert!(place.shared("from-node-0").exists() && place.shared("ended").exists());
    place.assert_clean();
}

#[test]
fn a_second_interrupt_ends_at_once_and_leaves_the_journal() {
    let place = Place::new();
    // Not at once: the driver ignores a repetition within 50 ms.
    let script = "trap 'sleep 0.1; echo again' INT; echo ready; while :; do sleep 0.05; done";
    let mut run = place.start("--job twice", &format!("{} {script}", dirty(&place, 0)));
    run.signal("INT");
    run.read("again\n");
    run.signal("INT");
    let output = run.finish();
    assert_code(&output, 130);
    assert!(err(&output).contains("tameike recover --job twice"), "{}", err(&output));
    let recovered = recover(&place, "twice");
    assert_code(&recovered, 0);
    assert!(place.shared("from-node-0").exists());
    place.assert_clean();
}

/// Recovers a job with a killed driver, after its agents have exited.
fn recover(place: &Place, job: &str) -> Output {
    place.await_end(job);
    place.tameike(&["recover", "--job", job]).output().expect("starts")
}

#[test]
fn a_killed_driver_leaves_only_the_journal() {
    let place = Place::new();
    let run = place.start("--local 2 --job killed", &format!("{} echo ready; sleep 1000", dirty(&place, 1)));
    run.signal("KILL");
    run.finish();
    let recovered = recover(&place, "killed");
    assert_code(&recovered, 0);
    assert_eq!(std::fs::read(place.shared("from-node-1")).expect("drained"), b"data\n");
    place.assert_clean();
    let run = place.start("--local 2 --job killed", "echo ready; sleep 1000");
    run.signal("KILL");
    run.finish();
    recover(&place, "killed");
    assert_code(&place.run("", "true"), 0);
    place.assert_clean();
}

#[test]
fn a_crash_of_an_agent_is_reported_and_its_journal_recovered() {
    let place = Place::new();
    let kill = "kill -9 $(sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' $TAMEIKE_JOB_DIR/node-1/node.json);";
    let script = format!("{} {kill} sleep 1000", dirty(&place, 1));
    let output = place.run("--local 2 --job dead", &script);
    assert_code(&output, 75);
    assert!(err(&output).contains("the agent of node 1 on localhost failed"), "{}", err(&output));
    assert_code(&place.tameike(&["recover", "--job", "dead"]).output().expect("starts"), 0);
    assert!(place.shared("from-node-1").exists());
    place.assert_clean();
    let output = place.run("--local 2 --keep-going --job on", &format!("{kill} sleep 0.3; echo went on"));
    assert_eq!(out(&output), "went on\n");
    // A node that cannot reply makes the drain incomplete, even without dirty data.
    assert_code(&output, 75);
    assert_code(&place.tameike(&["recover", "--job", "on"]).output().expect("starts"), 0);
    place.assert_clean();
}

#[test]
fn programs_left_running_are_ended_with_the_job() {
    let place = Place::new();
    let output = place.run("", "(trap '' TERM; sleep 1000) > /dev/null 2>&1 & echo $!");
    assert_code(&output, 0);
    let pid: u32 = out(&output).trim().parse().expect("a number");
    assert_eq!(tameike_io::os::process::ProcessId::now(pid), None);
    place.assert_clean();
}

#[test]
fn failed_starts_report_the_reason_and_leave_nothing() {
    let place = Place::new();
    place.request("fail-start-1");
    let output = place.run("--local 3", "true");
    assert_code(&output, 71);
    assert!(err(&output).contains("node 1 on localhost: requested failure"), "{}", err(&output));
    place.assert_clean();
    // A fault of several nodes was reported once per node.
    place.request("fail-start-0");
    let output = place.run("--local 2", "true");
    assert_code(&output, 71);
    assert!(err(&output).contains("nodes 0, 1 on localhost: requested failure"), "{}", err(&output));
    assert_eq!(err(&output).matches("requested failure").count(), 1, "{}", err(&output));
    place.withdraw("fail-start-0");
    place.withdraw("fail-start-1");
    place.request("hang-start-2");
    let config = place.path("config.toml");
    std::fs::write(&config, "start-limit = 1\nlocal = 3\n").expect("written");
    let output = place.run(&format!("--config {}", config.display()), "true");
    assert_code(&output, 71);
    assert!(err(&output).contains("nodes [2] did not become ready within 1 s"), "{}", err(&output));
    place.withdraw("hang-start-2");
    let too_much = place.run("--capacity 900T", "true");
    assert_code(&too_much, 2);
    let output = place.tameike(&["run", "--capacity", "9000T", "--", "true"]).output().expect("starts");
    assert_code(&output, 71);
    assert!(err(&output).contains("--capacity requests"), "{}", err(&output));
    assert_code(&place.run("", "true"), 0);
    place.assert_clean();
}

#[test]
fn exec_runs_on_one_node_or_all_from_inside_and_outside() {
    let place = Place::new();
    let program = place.program.display();
    let script = format!(
        "export MINE=yes; cd /usr; {program} exec --node 1 -- sh -c 'echo $TAMEIKE_NODE $MINE $PWD; exit 5'; echo $?; \
         {program} exec --all -- sh -c 'echo $TAMEIKE_NODE of $TAMEIKE_NODES; echo oops >&2; exit $TAMEIKE_NODE'; echo $?; \
         echo words | {program} exec --node 1 -- cat; {program} exec --node 9 -- true; echo $?"
    );
    let output = place.run("--local 3", &script);
    assert_code(&output, 0);
    let mut lines: Vec<_> = out(&output).lines().map(str::to_owned).collect();
    lines[2..5].sort();
    assert_eq!(
        lines,
        ["1 yes /usr", "5", "[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3", "2", "words", "71"],
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("[2] oops") && err(&output).contains("no node 9"), "{}", err(&output));
    place.assert_clean();
}

#[test]
fn a_job_in_the_background_is_used_and_ended() {
    let place = Place::new();
    let shared = place.path("shared");
    let shared = shared.to_str().expect("UTF-8");
    let up = ["up", "--local", "2", "--capacity", "64M", "--shared", shared, "--job", "back"];
    let output = place.tameike(&up).output().expect("starts");
    assert_code(&output, 0);
    assert!(
        out(&output).starts_with("back\n") && out(&output).contains("/back/mnt/shared"),
        "{}",
        out(&output)
    );
    let exec = place.tameike(&[
        "exec",
        "--node",
        "1",
        "--",
        "sh",
        "-c",
        "echo $TAMEIKE_NODE; cat /proc/self/mounts",
    ]);
    let output = { exec }.output().expect("starts");
    assert_code(&output, 0);
    assert!(
        out(&output).starts_with("1\n") && out(&output).contains("/back/mnt/cache fuse.tameike"),
        "{output:?}"
    );
    let output = place.tameike(&["status"]).output().expect("starts");
    assert!(
        out(&output).contains("job back: 2 nodes") && out(&output).contains("32.0 MiB"),
        "{}",
        out(&output)
    );
    let output = place.tameike(&["status", "--json"]).output().expect("starts");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json[0]["running"]["nodes"][1]["status"]["node"], 1);
    let dirty = format!("echo x > /dev/shm/tameike-{}-back-0/dirty", tameike_io::os::process::user());
    assert_code(&place.tameike(&["exec", "--", "sh", "-c", &dirty]).output().expect("starts"), 0);
    let output = place.tameike(&["drain"]).output().expect("starts");
    assert_code(&output, 0);
    assert!(out(&output).contains("drain complete: 1 file, 2 B written"), "{}", out(&output));
    let output = place.tameike(&["down", "--job", "back"]).output().expect("starts");
    assert_code(&output, 0);
    place.assert_clean();
    assert_code(&place.tameike(&["status", "--job", "back"]).output().expect("starts"), 71);
}

#[test]
fn only_the_job_sees_its_views() {
    let place = Place::new();
    let mut run =
        place.start("--local 2", "echo ready; grep -c fuse.tameike /proc/self/mounts; cat > /dev/null");
    run.read("3\n");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("proc");
    assert!(!mounts.contains(place.path("").to_str().expect("UTF-8")), "{mounts}");
    assert_code(&run.finish(), 0);
    place.assert_clean();
}

#[test]
fn many_jobs_at_once_do_not_collide_and_leave_nothing() {
    let place = Place::new();
    let runs: Vec<_> = (0..10)
        .map(|_| {
            let mut command = place.run_command("--local 2", "echo $TAMEIKE_JOB");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
        })
        .collect();
    let mut jobs: Vec<_> = runs
        .into_iter()
        .map(|run| {
            let output = run.wait_with_output().expect("ends");
            assert_code(&output, 0);
            out(&output)
        })
        .collect();
    jobs.sort();
    jobs.dedup();
    assert_eq!(jobs.len(), 10);
    place.assert_clean();
}

/// An unwritable receipt was noticed after the job, which ended with 0.
#[test]
fn a_receipt_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let nowhere = place.path("no/such/receipt.json");
    let options = format!("--receipt {}", nowhere.display());
    let output = place.run(&options, "echo ran");
    assert_code(&output, 71);
    assert!(err(&output).contains("writing the receipt") && out(&output).is_empty(), "{}", err(&output));
    let named = ["--receipt", nowhere.to_str().expect("UTF-8")];
    for action in ["recover", "drain", "down"] {
        let output = place.tameike(&[&[action], &named[..]].concat()).output().expect("starts");
        assert_code(&output, 71);
        assert!(err(&output).contains("writing the receipt"), "{action}: {}", err(&output));
    }
    // An existing file stays until the receipt is written, and its directory can vanish before that.
    let dir = place.path("receipts");
    std::fs::create_dir(&dir).expect("made");
    let receipt = dir.join("receipt.json");
    std::fs::write(&receipt, "before").expect("written");
    let options = format!("--receipt {}", receipt.display());
    let script = format!("grep -qx before {} && rm -r {}", receipt.display(), dir.display());
    let output = place.run(&options, &script);
    assert_code(&output, 71);
    assert!(err(&output).contains("drain complete"), "{}", err(&output));
    assert!(err(&output).contains("writing the receipt"), "{}", err(&output));
    assert_code(&place.run(&options.replace("receipts/", ""), "exit 3"), 3);
    place.assert_clean();
}

/// A start that failed because TMPDIR was full reported that once per node, without advice on TMPDIR.
#[test]
fn a_full_directory_for_jobs_is_reported_once() {
    if tameike_io::os::process::user() != 0 {
        println!("not tested: mounting a small file system requires root");
        return;
    }
    let place = Place::new();
    let tmp = place.path("tmp");
    let tameike = |arguments: &str| {
        let script = format!(
            "mount -t tmpfs -o size=64k,mode=1777 none {tmp}; head -c 60000 /dev/zero > {tmp}/filler
             head -c 60000 /dev/zero >> {tmp}/filler || true; exec {program} {arguments}",
            tmp = tmp.display(),
            program = place.program.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        place.settle(&mut command);
        command.output().expect("unshare is installed")
    };
    let output = tameike("run --local 4 -- true");
    assert_code(&output, 71);
    assert_eq!(err(&output).matches("set TMPDIR to another directory").count(), 1, "{}", err(&output));
    let output = tameike("doctor");
    assert_code(&output, 71);
    let text = out(&output);
    assert!(text.contains("MISSING  job directory") && text.contains("set TMPDIR"), "{text}");
    assert!(text.contains("`tameike run` cannot work here yet"), "{text}");
}

#[test]
fn the_doctor_runs_all_checks() {
    let place = Place::new();
    let output = place.tameike(&["doctor", "--json"]).output().expect("starts");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["works"], output.status.success());
    let names: Vec<_> =
        json["checks"].as_array().expect("a list").iter().map(|check| &check["name"]).collect();
    for name in
        ["FUSE device", "namespaces", "mounts", "locked memory", "huge pages", "io_uring", "leftovers"]
    {
        assert!(names.iter().any(|found| *found == name), "{name}");
    }
    // The doctor and jobs refuse a directory for jobs that other users can write to.
    let open = place.path("tmp").join(format!("tameike-{}", tameike_io::os::process::user()));
    assert!(Command::new("chmod").arg("777").arg(&open).status().expect("chmod").success());
    let output = place.tameike(&["doctor"]).output().expect("starts");
    assert_code(&output, 71);
    assert!(
        out(&output).contains("MISSING  job directory") && out(&output).contains("0700"),
        "{}",
        out(&output)
    );
    assert_code(&place.run("", "true"), 71);
}

#[test]
fn manuals_and_completions_come_from_the_definition() {
    let place = Place::new();
    let man = place.path("man");
    assert_code(&place.tameike(&["man", man.to_str().expect("UTF-8")]).output().expect("starts"), 0);
    let page = std::fs::read_to_string(man.join("tameike-run.1")).expect("written");
    assert!(page.contains("capacity"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        let output = place.tameike(&["completions", shell]).output().expect("starts");
        assert!(out(&output).contains("TAMEIKE_COMPLETE"), "{shell}");
    }
}

/// Shells offered files as values of `--job`.
#[test]
fn shells_offer_names_of_jobs() {
    let place = Place::new();
    std::fs::write(place.path("a-file"), "").expect("written");
    let asked = r#"PATH="$PWD:$PATH"
        . <(tameike completions bash); COMP_TYPE=9
        of_bash() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _clap_complete_tameike tameike "${@:$#}" ""; echo "bash $* ${COMPREPLY[*]}" | tr '\v' ' '; }
        of_fish() { echo "fish $* $(TAMEIKE_COMPLETE=fish tameike -- "$@")"; }
        of_zsh() { echo "zsh $* $(_CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$(($# - 1)) TAMEIKE_COMPLETE=zsh tameike -- "$@")"; }
        for shell in bash fish zsh; do
            "of_$shell" tameike exec --job ""; "of_$shell" tameike status --job de; "of_$shell" tameike recover --job "";
            "of_$shell" tameike exec --job x; "of_$shell" tameike run --job ""; "of_$shell" tameike run --hostf; "of_$shell" tameike run --hostfile a-f
        done"#;
    let output =
        place.run("--local 1 --job demo", &format!("exec bash -c '{}'", asked.replace('\'', r"'\''")));
    assert_code(&output, 0);
    let offered: Vec<_> =
        out(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let mut expected = Vec::new();
    for shell in ["bash", "fish", "zsh"] {
        for line in
            ["exec --job demo", "status --job de demo", "recover --job demo", "exec --job x", "run --job"]
        {
            expected.push(format!("{shell} tameike {line}"));
        }
    }
    let is_of_names = |line: &&String| !line.contains("--hostf");
    assert_eq!(offered.iter().filter(is_of_names).cloned().collect::<Vec<_>>(), expected);
    for line in offered.iter().filter(|line| line.contains("--hostf")) {
        assert!(line.contains("--hostf --hostfile") || line.ends_with("a-f a-file"), "{line}");
    }
    assert_eq!(offered.len(), 21);
    place.assert_clean();
}
