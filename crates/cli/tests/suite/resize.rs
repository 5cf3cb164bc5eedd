//! Nodes are added to running jobs, leave them and are restarted, while programs change files and check all that they see.

use crate::support::jobs::{Background, new_job, seed, signal, sleep_ms, wait_for};
use crate::support::trial::Trial;
use crate::support::{Run, assert_contains, err, json, out, shown, utf8};
use serde_json::Value;
use std::fs;

/// Data in the job-shared view, in MiB, of which each node gets a share.
const DATA: u64 = 96;

/// Runs a command on the job of a trial.
fn tameike(trial: &Trial, words: &[&str]) -> std::process::Command {
    let (command, rest) = words.split_first().expect("a command");
    let mut all = vec![*command, "--job", &trial.job.name];
    all.extend(rest);
    trial.site.tameike(&all)
}

/// The bytes that the nodes of a job have in the job-shared view.
fn used(trial: &Trial) -> Vec<u64> {
    used_on(&json_of(&out(&tameike(trial, &["status", "--json"]).exits(0))))
}

fn used_on(status: &Value) -> Vec<u64> {
    let nodes = status[0]["running"]["nodes"].as_array().expect("nodes").clone();
    nodes.iter().map(|node| node["status"]["space"][1]["used"].as_u64().expect("bytes")).collect()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Writes data in the job-shared view that stays there, with its checksum.
fn write_data(trial: &Trial) {
    let script = format!(
        r#"cd "$TAMEIKE_SHARED"; head -c {DATA}M /dev/urandom > data; sha256sum data > {}/sum; mkdir small
           for number in $(seq 300); do echo $number > small/$number; done"#,
        trial.directory.display()
    );
    tameike(trial, &["exec", "--", "sh", "-euc", &script]).exits(0);
}

fn check_data(trial: &Trial, node: &str) {
    let script = format!(
        r#"cd "$TAMEIKE_SHARED"; sha256sum --check --quiet {}/sum
           for number in $(seq 300); do test "$(cat small/$number)" = $number; done"#,
        trial.directory.display()
    );
    tameike(trial, &["exec", "--node", node, "--", "sh", "-euc", &script]).exits(0);
}

/// S54a. S54b.
#[test]
fn data_spreads_over_added_nodes_while_programs_change_files() {
    let trial = Trial::new("grow", 2, &[0, 1], seed());
    // The programs of this node end before it leaves.
    let running = trial.start("2", "0 1 3", "");
    write_data(&trial);
    let grown = tameike(&trial, &["grow", "--local", "2"]).exits(0);
    assert_contains(&err(&grown), &["2 nodes added"]);
    let used = used(&trial);
    let even = used.iter().sum::<u64>() / 4;
    assert!(used.len() == 4 && used.iter().all(|bytes| bytes.abs_diff(even) < even / 4), "{used:?}");
    check_data(&trial, "3");
    let nodes =
        out(&tameike(&trial, &["exec", "--node", "2", "--", "sh", "-c", "echo $TAMEIKE_NODES"]).exits(0));
    assert_eq!(nodes.trim(), "4");
    sleep_ms(500);
    trial.stop_programs();
    let messages = trial.end(running);
    assert_contains(
        &messages,
        &["node 2 on localhost has joined the job", "node 3 on localhost has joined the job"],
    );
    println!("{} operations", trial.operations());
}

/// Programs of others run while nodes are added: fio verifies all that it writes, and git and tar work on many small files. The data is
/// spread evenly afterwards. S54a. S54b.
#[test]
fn fio_git_and_tar_see_no_error_while_nodes_are_added() {
    let (site, job) = new_job("growfio");
    let directory = site.plain();
    let script = format!(
        r#"cd "$TAMEIKE_SHARED"
           tameike exec --node 1 -- sh -euc '
               cd "$TAMEIKE_SHARED"; git init -q work; cd work
               git config core.trustctime false; git config user.email a@b; git config user.name a
               round=0
               while [ ! -e {0}/stop ]; do
                   round=$((round + 1)); mkdir -p dir-$round
                   for file in $(seq 60); do echo $round $file > dir-$round/$file; done
                   git add . && git commit -qm $round
                   tar cf ../tree.tar . && mkdir ../copy && tar xf ../tree.tar -C ../copy && diff -r . ../copy
                   rm -r ../copy; touch {0}/worked
               done
               git fsck --strict && test -z "$(git status --porcelain)" && test $(git rev-list --count HEAD) = $round' &
           git=$!
           while [ ! -e {0}/stop ]; do
               fio --name=verified --filename=verified --size=192M --rw=randwrite --bsrange=4k-256k --ioengine=psync --end_fsync=1 \
                   --verify=crc32c --verify_fatal=1 --verify_backlog=64 --minimal > words || {{ cat words; exit 1; }}
               touch {0}/verified
           done
           wait $git
           tameike exec --node 3 -- sh -euc 'cd "$TAMEIKE_SHARED"; git -C work fsck --strict'"#,
        directory.display()
    );
    let options = ["--job", &job.name, "--replicas", "2", "--memory", "256MiB"];
    let mut running = Background::start(&mut site.job(2, &options, &script));
    let done = |name: &str| directory.join(name).exists();
    wait_for("the programs", || (done("worked") && done("verified") || !running.runs()).then_some(()));
    let of_job = |words: &[&str]| site.tameike(&[&words[..1], &["--job", &job.name], &words[1..]].concat());
    let fill = r#"head -c 512M /dev/urandom > "$TAMEIKE_SHARED/filled""#;
    of_job(&["exec", "--node", "0", "--", "sh", "-euc", fill]).exits(0);
    let grown = of_job(&["grow", "--local", "2"]).output().expect("it runs");
    if !running.runs() {
        unreachable!("the job has ended: {}", shown(&running.output()));
    }
    assert_contains(&err(&grown), &["2 nodes added"]);
    // All programs work with the nodes that were added.
    for name in ["worked", "verified"] {
        fs::remove_file(directory.join(name)).expect("it exists");
    }
    wait_for("the programs", || (done("worked") && done("verified") || !running.runs()).then_some(()));
    let used = used_on(&json_of(&out(&of_job(&["status", "--json"]).exits(0))));
    fs::write(directory.join("stop"), "").expect("written");
    let output = running.output();
    assert!(output.status.success(), "{}", shown(&output));
    let even = used.iter().sum::<u64>() / 4;
    assert!(used.len() == 4 && used.iter().all(|bytes| bytes.abs_diff(even) < even / 10), "{used:?}");
}

/// S54a. S54c.
#[test]
fn nodes_leave_while_programs_of_others_change_files() {
    let trial = Trial::new("shrink", 4, &[0, 1], seed());
    let running = trial.start("2", "0 1", "");
    write_data(&trial);
    let agent = trial.job.agent(3).expect("it runs");
    tameike(&trial, &["shrink", "--nodes", "2,3"]).exits(0);
    assert!(!signal(agent, "CONT"), "the agent has ended");
    assert!(!trial.job.dir.join("node-3").exists());
    check_data(&trial, "1");
    assert_eq!(used(&trial).len(), 2);
    let refused = err(&tameike(&trial, &["shrink", "--nodes", "1"]).exits(71));
    assert_contains(&refused, &["2 replicas need as many nodes with a device, and 1 are left"]);
    let refused = err(&tameike(&trial, &["exec", "--node", "3", "--", "true"]).exits(71));
    assert_contains(&refused, &["node 3 has left the job"]);
    // A node with another number comes in their place.
    tameike(&trial, &["grow", "--local", "1"]).exits(0);
    check_data(&trial, "4");
    trial.stop_programs();
    let messages = trial.end(running);
    assert_contains(
        &messages,
        &["node 2 on localhost has left the job", "node 3 on localhost has left the job"],
    );
}

/// S54a. S54d.
#[test]
fn agents_are_restarted_while_programs_of_other_nodes_change_files() {
    for nodes in [2, 3] {
        let writers: &'static [u32] = if nodes == 2 { &[0] } else { &[0, 1] };
        let trial = Trial::new(&format!("restart{nodes}"), nodes, writers, seed());
        let running = trial.start("2", "0 1", "");
        write_data(&trial);
        let last = nodes - 1;
        let before = trial.job.agent(last).expect("it runs");
        tameike(&trial, &["restart", "--nodes", &last.to_string()]).exits(0);
        let after = trial.job.agent(last).expect("it runs");
        assert!(before != after && !signal(before, "CONT"), "{before} {after}");
        check_data(&trial, &last.to_string());
        let status = json_of(&out(&tameike(&trial, &["status", "--json"]).exits(0)));
        assert_eq!(status[0]["running"]["replicas"]["homes_with_one_copy"], Value::from(0), "{status}");
        trial.stop_programs();
        trial.end(running);
    }
}

#[test]
fn changes_of_nodes_that_are_not_possible_are_refused() {
    let (site, job) = new_job("refused");
    let script = "for words in 'grow --local 1' 'shrink --nodes 1' 'restart --nodes 1'; do tameike $words && exit 9; done; true";
    let messages = err(&site.job(2, &["--job", &job.name], script).exits(0));
    assert_eq!(messages.matches("start it with --replicas 2 or 3").count(), 3, "{messages}");
    let (site, job) = new_job("refused2");
    let script = r#"
        refuse() { tameike "$@" && exit 9; true; }
        refuse grow --hosts elsewhere.example
        refuse shrink --nodes 0
        refuse shrink --nodes 7
        refuse restart --nodes 0
        # The agent of a new node cannot start, and the job goes on.
        touch "$TAMEIKE_JOB_DIR/node-3"
        refuse grow --local 2
        ls "$TAMEIKE_JOB_DIR"
        tameike grow --local 2
        tameike exec --node 4 -- true"#;
    let messages = err(&site.job(3, &["--job", &job.name, "--replicas", "2"], script).exits(0));
    let parts = [
        "all agents of this job listen on the loopback",
        "node 0 runs the command of the job",
        "the job has no node 7",
        "node 3 on localhost: ",
        "2 nodes added",
    ];
    assert_contains(&messages, &parts);
}

/// S54a.
#[test]
fn an_added_node_that_fails_takes_nothing_with_it() {
    let mut trial = Trial::new("growfail", 3, &[0, 1], seed());
    let mut running = trial.start("2", "0 1 2", "");
    write_data(&trial);
    let mut growing = Background::start(&mut tameike(&trial, &["grow", "--local", "1"]));
    wait_for("the new agent", || trial.job.agent(3));
    sleep_ms(trial.random.below(4000));
    println!("killed: {}", trial.job.kill_agent(3));
    wait_for("the end of the change", || (!growing.runs()).then_some(()));
    println!("{}", shown(&growing.output()));
    sleep_ms(2500);
    if !running.runs() {
        unreachable!("the job has ended: {}", shown(&running.output()));
    }
    check_data(&trial, "2");
    trial.stop_programs();
    trial.end(running);
}

/// S54a.
#[test]
fn a_job_that_has_grown_is_recovered_after_all_its_processes_were_killed() {
    let trial = Trial::new("growkill", 2, &[0], seed());
    let last = format!("touch {}/ending; sleep 1000", trial.directory.display());
    let running = trial.start("2", "0", &last);
    tameike(&trial, &["grow", "--local", "2"]).exits(0);
    tameike(&trial, &["shrink", "--nodes", "1"]).exits(0);
    let fill = r#"for number in $(seq 40); do head -c 200000 /dev/urandom > "$TAMEIKE_CACHE/kept-$number"; done
                  cd "$TAMEIKE_CACHE"; sha256sum kept-*"#;
    let sums = out(&tameike(&trial, &["exec", "--node", "3", "--", "sh", "-euc", fill]).exits(0));
    trial.stop_programs();
    wait_for("the programs", || trial.directory.join("ending").exists().then_some(()));
    // The driver must not end the job when it misses its agents.
    assert!(signal(running.program(), "STOP"));
    for node in [0, 2, 3] {
        assert!(trial.job.kill_agent(node));
    }
    assert!(signal(running.program(), "KILL"));
    trial.site.kill_processes();
    running.output();
    let receipt = trial.directory.join("receipt");
    trial.site.tameike(&["recover", "--job", &trial.job.name, "--receipt", utf8(&receipt)]).exits(0);
    // All files may have been flushed before.
    assert!(!receipt.exists() || json(&receipt)["complete"] == Value::Bool(true));
    fs::write(trial.directory.join("kept"), sums).expect("written");
    let mut check = std::process::Command::new("sha256sum");
    check.args(["--check", "--quiet", utf8(&trial.directory.join("kept"))]).current_dir(trial.site.shared());
    crate::support::succeed(&mut check);
}
