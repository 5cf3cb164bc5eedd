//! Complete jobs on one machine, with real processes, namespaces and mounts, and the recording agent.

use crate::support::sandbox::Sandbox;
use crate::support::{Run, assert_code, assert_contains, err, is_root, json, out, utf8};
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// A line of a script that makes the device of a node dirty.
fn dirty(sandbox: &Sandbox, node: u32) -> String {
    format!("echo data > {}/tameike-$(id -u)-$TAMEIKE_JOB-{node}/dirty;", sandbox.path("disk").display())
}

#[test]
fn the_command_runs_as_if_started_directly() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.run("--local 2 --job j1", "pwd; cat; env | grep ^TAMEIKE_ | sort; exit 7");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("piped").write_all(b"input\n").expect("the command reads");
    let output = child.wait_with_output().expect("it ends");
    assert_code(&output, 7);
    let base = sandbox.path("tmp").join(format!("tameike-{}/j1", tameike_io::os::process::user()));
    let base = base.display();
    let expected = format!(
        "{}\ninput\nTAMEIKE_CACHE={base}/mnt/cache\nTAMEIKE_JOB=j1\nTAMEIKE_JOB_DIR={base}\nTAMEIKE_NODE=0\n\
         TAMEIKE_NODES=2\nTAMEIKE_NODE_LOCAL={base}/mnt/node-local\nTAMEIKE_RING=\nTAMEIKE_SHARED={base}/mnt/shared\n",
        sandbox.path("").display().to_string().trim_end_matches('/')
    );
    assert_eq!(out(&output), expected);
}

#[test]
fn a_missing_command_is_reported_like_in_shells() {
    let sandbox = Sandbox::new();
    let output = sandbox.tameike(&["run", "--capacity", "1M", "--", "/no/such/program"]).exits(127);
    assert_contains(&err(&output), &["/no/such/program"]);
    sandbox.tameike(&["run", "--capacity", "1M", "--", "/etc"]).exits(126);
}

#[test]
fn written_data_is_drained_and_in_the_receipt() {
    let sandbox = Sandbox::new();
    let receipt = sandbox.path("receipt.json");
    let options = format!("--local 2 --receipt {}", receipt.display());
    let script = format!("{}{}", dirty(&sandbox, 0), dirty(&sandbox, 1));
    let output = sandbox.run(&options, &script).exits(0);
    assert_contains(&err(&output), &["drain complete: 2 files, 10 B written, all synced"]);
    let receipt = json(&receipt);
    assert_eq!(receipt["complete"], true);
    assert_eq!(receipt["files"][1]["path"], "from-node-1");
    assert_eq!(std::fs::read(sandbox.shared("from-node-0")).expect("drained"), b"data\n");
}

#[test]
fn an_incomplete_drain_leaves_a_journal_that_recover_finishes() {
    let sandbox = Sandbox::new();
    sandbox.request("fail-drain");
    let output = sandbox.run("--local 2 --job half", &dirty(&sandbox, 1)).exits(75);
    assert_contains(&err(&output), &["MISSING: requested failure", "tameike recover --job half"]);
    let again = sandbox.run("--job other", "true").exits(0);
    assert_contains(&err(&again), &["job half was interrupted and left 5 B of 1 file not"]);
    sandbox.run("--job half", "true").exits(71);
    sandbox.tameike(&["recover", "--job", "half"]).exits(75);
    sandbox.cancel("fail-drain");
    let status = sandbox.tameike(&["status"]).output().expect("starts");
    let words = "job half was interrupted and left 5 B of 1 file not on the shared file system";
    assert_contains(&out(&status), &[words]);
    let recovered = sandbox.tameike(&["recover", "--job", "half"]).exits(0);
    assert_contains(&err(&recovered), &[words]);
    assert_eq!(std::fs::read(sandbox.shared("from-node-1")).expect("drained"), b"data\n");
    sandbox.assert_clean();
    sandbox.tameike(&["recover", "--job", "half"]).exits(0);
}

#[test]
fn signals_go_to_the_command_and_end_the_job() {
    let sandbox = Sandbox::new();
    let run = sandbox.start("", "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    run.signal("TERM");
    let output = run.exits(3);
    assert_eq!(out(&output), "term\n");
    let run = sandbox.start("", "trap 'echo int; exit 4' INT; echo ready; while :; do sleep 0.05; done");
    run.signal("INT");
    run.exits(4);
    let run = sandbox.start("", "echo ready; kill -9 $$");
    run.exits(128 + 9);
}

#[test]
fn a_command_that_ignores_the_end_is_killed_within_the_grace_time() {
    let sandbox = Sandbox::new();
    let run = sandbox.start("--grace 1", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    run.signal("TERM");
    run.exits(128 + 9);
}

#[test]
fn a_drain_that_takes_too_long_is_aborted() {
    let sandbox = Sandbox::new();
    sandbox.request("slow-drain");
    let script =
        format!("{} trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done", dirty(&sandbox, 0));
    let run = sandbox.start("--grace 1 --job slow", &script);
    run.signal("TERM");
    let output = run.exits(75);
    assert_contains(&err(&output), &["did not finish in time"]);
    // It reported `0 of 0 files`, and listed none.
    let text = err(&output);
    assert_contains(&text, &["from-node-0", "1 of 1 file not on the shared"]);
    sandbox.cancel("slow-drain");
    sandbox.tameike(&["recover", "--job", "slow"]).exits(0);
    assert!(sandbox.shared("from-node-0").exists());
}

#[test]
fn the_driver_waits_for_agents_that_report_progress_when_they_stop() {
    let sandbox = Sandbox::new();
    sandbox.request("slow-stop-0");
    let run = sandbox.start("--local 2 --grace 1", &format!("{} echo ready", dirty(&sandbox, 0)));
    run.exits(0);
    assert!(sandbox.shared("from-node-0").exists() && sandbox.shared("ended").exists());
}

#[test]
fn a_second_interrupt_ends_at_once_and_leaves_the_journal() {
    let sandbox = Sandbox::new();
    // Not at once: the driver ignores a repetition within 50 ms.
    let script = "trap 'sleep 0.1; echo again' INT; echo ready; while :; do sleep 0.05; done";
    let mut run = sandbox.start("--job twice", &format!("{} {script}", dirty(&sandbox, 0)));
    run.signal("INT");
    run.read("again\n");
    run.signal("INT");
    let output = run.exits(130);
    assert_contains(&err(&output), &["tameike recover --job twice"]);
    recover(&sandbox, "twice");
    assert!(sandbox.shared("from-node-0").exists());
}

/// Recovers a job with a killed driver, after its agents have exited.
fn recover(sandbox: &Sandbox, job: &str) -> Output {
    sandbox.await_end(job);
    sandbox.tameike(&["recover", "--job", job]).exits(0)
}

#[test]
fn a_killed_driver_leaves_only_the_journal() {
    let sandbox = Sandbox::new();
    let run =
        sandbox.start("--local 2 --job killed", &format!("{} echo ready; sleep 1000", dirty(&sandbox, 1)));
    run.signal("KILL");
    run.output();
    recover(&sandbox, "killed");
    assert_eq!(std::fs::read(sandbox.shared("from-node-1")).expect("drained"), b"data\n");
    sandbox.assert_clean();
    let run = sandbox.start("--local 2 --job killed", "echo ready; sleep 1000");
    run.signal("KILL");
    run.output();
    recover(&sandbox, "killed");
    sandbox.run("", "true").exits(0);
}

#[test]
fn a_crash_of_an_agent_is_reported_and_its_journal_recovered() {
    let sandbox = Sandbox::new();
    let kill = "kill -9 $(sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' $TAMEIKE_JOB_DIR/node-1/node.json);";
    let script = format!("{} {kill} sleep 1000", dirty(&sandbox, 1));
    let output = sandbox.run("--local 2 --job dead", &script).exits(75);
    assert_contains(&err(&output), &["the agent of node 1 on localhost failed"]);
    sandbox.tameike(&["recover", "--job", "dead"]).exits(0);
    assert!(sandbox.shared("from-node-1").exists());
    sandbox.assert_clean();
    // A node that cannot reply makes the drain incomplete, even without dirty data.
    let output =
        sandbox.run("--local 2 --keep-going --job on", &format!("{kill} sleep 0.3; echo went on")).exits(75);
    assert_eq!(out(&output), "went on\n");
    sandbox.tameike(&["recover", "--job", "on"]).exits(0);
}

#[test]
fn programs_left_running_are_ended_with_the_job() {
    let sandbox = Sandbox::new();
    let output = sandbox.run("", "(trap '' TERM; sleep 1000) > /dev/null 2>&1 & echo $!").exits(0);
    let pid: u32 = out(&output).trim().parse().expect("a number");
    assert_eq!(tameike_io::os::process::ProcessId::now(pid), None);
}

#[test]
fn failed_starts_report_the_reason_and_leave_nothing() {
    let sandbox = Sandbox::new();
    sandbox.request("fail-start-1");
    let output = sandbox.run("--local 3", "true").exits(71);
    assert_contains(&err(&output), &["node 1 on localhost: requested failure"]);
    sandbox.assert_clean();
    // A fault of several nodes was reported once per node.
    sandbox.request("fail-start-0");
    let output = sandbox.run("--local 2", "true").exits(71);
    assert_contains(&err(&output), &["nodes 0, 1 on localhost: requested failure"]);
    assert_eq!(err(&output).matches("requested failure").count(), 1, "{}", err(&output));
    sandbox.cancel("fail-start-0");
    sandbox.cancel("fail-start-1");
    sandbox.request("hang-start-2");
    let config = sandbox.path("config.toml");
    std::fs::write(&config, "start-limit = 1\nlocal = 3\n").expect("written");
    let output = sandbox.run(&format!("--config {}", config.display()), "true").exits(71);
    assert_contains(&err(&output), &["nodes [2] did not become ready within 1 s"]);
    sandbox.cancel("hang-start-2");
    sandbox.run("--capacity 900T", "true").exits(2);
    let output = sandbox.tameike(&["run", "--capacity", "9000T", "--", "true"]).exits(71);
    assert_contains(&err(&output), &["--capacity requests"]);
    sandbox.run("", "true").exits(0);
}

#[test]
fn exec_runs_on_one_node_or_all_from_inside_and_outside() {
    let sandbox = Sandbox::new();
    let program = sandbox.program.display();
    let script = format!(
        "export MINE=yes; cd /usr; {program} exec --node 1 -- sh -c 'echo $TAMEIKE_NODE $MINE $PWD; exit 5'; echo $?; \
         {program} exec --all -- sh -c 'echo $TAMEIKE_NODE of $TAMEIKE_NODES; echo oops >&2; exit $TAMEIKE_NODE'; echo $?; \
         echo words | {program} exec --node 1 -- cat; {program} exec --node 9 -- true; echo $?"
    );
    let output = sandbox.run("--local 3", &script).exits(0);
    let mut lines: Vec<_> = out(&output).lines().map(str::to_owned).collect();
    lines[2..5].sort();
    assert_eq!(
        lines,
        ["1 yes /usr", "5", "[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3", "2", "words", "71"],
        "{}",
        err(&output)
    );
    assert_contains(&err(&output), &["[2] oops", "no node 9"]);
}

#[test]
fn a_job_in_the_background_is_used_and_ended() {
    let sandbox = Sandbox::new();
    let shared = sandbox.path("shared");
    let shared = utf8(&shared);
    let up = ["up", "--local", "2", "--capacity", "64M", "--shared", shared, "--job", "back"];
    let output = sandbox.tameike(&up).exits(0);
    assert!(out(&output).starts_with("back\n"), "{output:?}");
    assert_contains(&out(&output), &["/back/mnt/shared"]);
    let script = "echo $TAMEIKE_NODE; cat /proc/self/mounts";
    let output = sandbox.tameike(&["exec", "--node", "1", "--", "sh", "-c", script]).exits(0);
    assert!(out(&output).starts_with("1\n"), "{output:?}");
    assert_contains(&out(&output), &["/back/mnt/cache fuse.tameike"]);
    let output = sandbox.tameike(&["status"]).output().expect("starts");
    assert_contains(&out(&output), &["job back: 2 nodes", "32.0 MiB"]);
    let output = sandbox.tameike(&["status", "--json"]).output().expect("starts");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json[0]["running"]["nodes"][1]["status"]["node"], 1);
    let dirty = format!("echo x > /dev/shm/tameike-{}-back-0/dirty", tameike_io::os::process::user());
    sandbox.tameike(&["exec", "--", "sh", "-c", &dirty]).exits(0);
    let output = sandbox.tameike(&["drain"]).exits(0);
    assert_contains(&out(&output), &["drain complete: 1 file, 2 B written"]);
    sandbox.tameike(&["down", "--job", "back"]).exits(0);
    sandbox.assert_clean();
    sandbox.tameike(&["status", "--job", "back"]).exits(71);
}

#[test]
fn only_the_job_sees_its_views() {
    let sandbox = Sandbox::new();
    let mut run =
        sandbox.start("--local 2", "echo ready; grep -c fuse.tameike /proc/self/mounts; cat > /dev/null");
    run.read("3\n");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("proc");
    assert!(!mounts.contains(sandbox.path("").to_str().expect("UTF-8")), "{mounts}");
    run.exits(0);
}

#[test]
fn many_jobs_at_once_do_not_collide_and_leave_nothing() {
    let sandbox = Sandbox::new();
    let runs: Vec<_> = (0..10)
        .map(|_| {
            let mut command = sandbox.run("--local 2", "echo $TAMEIKE_JOB");
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
}

/// An unwritable receipt was noticed after the job, which ended with 0.
#[test]
fn a_receipt_that_cannot_be_written_is_an_error() {
    let sandbox = Sandbox::new();
    let nowhere = sandbox.path("no/such/receipt.json");
    let options = format!("--receipt {}", nowhere.display());
    let output = sandbox.run(&options, "echo ran").exits(71);
    assert_contains(&err(&output), &["writing the receipt"]);
    assert!(out(&output).is_empty());
    let named = ["--receipt", utf8(&nowhere)];
    for action in ["recover", "drain", "down"] {
        let output = sandbox.tameike(&[&[action], &named[..]].concat()).exits(71);
        assert!(err(&output).contains("writing the receipt"), "{action}: {}", err(&output));
    }
    // An existing file stays until the receipt is written, and its directory can vanish before that.
    let dir = sandbox.path("receipts");
    std::fs::create_dir(&dir).expect("made");
    let receipt = dir.join("receipt.json");
    std::fs::write(&receipt, "before").expect("written");
    let options = format!("--receipt {}", receipt.display());
    let script = format!("grep -qx before {} && rm -r {}", receipt.display(), dir.display());
    let output = sandbox.run(&options, &script).exits(71);
    assert_contains(&err(&output), &["drain complete", "writing the receipt"]);
    sandbox.run(&options.replace("receipts/", ""), "exit 3").exits(3);
}

/// A start that failed because TMPDIR was full reported that once per node, without advice on TMPDIR.
#[test]
fn a_full_directory_for_jobs_is_reported_once() {
    if !is_root() {
        println!("not tested: mounting a small file system requires root");
        return;
    }
    let sandbox = Sandbox::new();
    let tmp = sandbox.path("tmp");
    let tameike = |arguments: &str| {
        let script = format!(
            "mount -t tmpfs -o size=64k,mode=1777 none {tmp}; head -c 60000 /dev/zero > {tmp}/filler
             head -c 60000 /dev/zero >> {tmp}/filler || true; exec {program} {arguments}",
            tmp = tmp.display(),
            program = sandbox.program.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        sandbox.set_up(&mut command);
        command.output().expect("unshare is installed")
    };
    let output = tameike("run --local 4 -- true");
    assert_code(&output, 71);
    assert_eq!(err(&output).matches("set TMPDIR to another directory").count(), 1, "{}", err(&output));
    let output = tameike("doctor");
    assert_code(&output, 71);
    let text = out(&output);
    assert_contains(&text, &["MISSING  job directory", "set TMPDIR", "`tameike run` cannot work here yet"]);
}

#[test]
fn the_doctor_runs_all_checks() {
    let sandbox = Sandbox::new();
    let output = sandbox.tameike(&["doctor", "--json"]).output().expect("starts");
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
    let open = sandbox.path("tmp").join(format!("tameike-{}", tameike_io::os::process::user()));
    assert!(Command::new("chmod").arg("777").arg(&open).status().expect("chmod").success());
    let output = sandbox.tameike(&["doctor"]).exits(71);
    assert_contains(&out(&output), &["MISSING  job directory", "0700"]);
    sandbox.run("", "true").exits(71);
}

#[test]
fn manuals_and_completions_come_from_the_definition() {
    let sandbox = Sandbox::new();
    let man = sandbox.path("man");
    sandbox.tameike(&["man", utf8(&man)]).exits(0);
    let page = std::fs::read_to_string(man.join("tameike-run.1")).expect("written");
    assert_contains(&page, &["capacity"]);
    for shell in ["bash", "zsh", "fish"] {
        let output = sandbox.tameike(&["completions", shell]).output().expect("starts");
        assert!(out(&output).contains("TAMEIKE_COMPLETE"), "{shell}");
    }
}

/// Shells offered files as values of `--job`.
#[test]
fn shells_offer_names_of_jobs() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("a-file"), "").expect("written");
    let completions = r#"PATH="$PWD:$PATH"
        . <(tameike completions bash); COMP_TYPE=9
        of_bash() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _clap_complete_tameike tameike "${@:$#}" ""; echo "bash $* ${COMPREPLY[*]}" | tr '\v' ' '; }
        of_fish() { echo "fish $* $(TAMEIKE_COMPLETE=fish tameike -- "$@")"; }
        of_zsh() { echo "zsh $* $(_CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$(($# - 1)) TAMEIKE_COMPLETE=zsh tameike -- "$@")"; }
        for shell in bash fish zsh; do
            "of_$shell" tameike exec --job ""; "of_$shell" tameike status --job de; "of_$shell" tameike recover --job "";
            "of_$shell" tameike exec --job x; "of_$shell" tameike run --job ""; "of_$shell" tameike run --hostf; "of_$shell" tameike run --hostfile a-f
        done"#;
    let output = sandbox
        .run("--local 1 --job demo", &format!("exec bash -c '{}'", completions.replace('\'', r"'\''")))
        .exits(0);
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
}
