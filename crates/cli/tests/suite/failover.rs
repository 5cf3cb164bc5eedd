//! Nodes of a job with replicas fail or hang, while programs on other nodes change files in both views and check all that they see.

use crate::support::jobs::{code_of_recovery, new_job, seed, signal, sleep_ms, wait_for};
use crate::support::trial::{Trial, check_receipt};
use crate::support::{Run, assert_code, assert_contains, err, is_soak, json, shown, succeed, utf8};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;
use tameike_core::{Cluster, InodeId, JobId, NodeId, NodeInfo};
use tameike_io::os::process::monotonic;

const NODES: u32 = 4;
/// The node that fails.
const VICTIM: u32 = 2;
const INCOMPLETE: i32 = 75;
/// Number of jobs with two kills in the long test and in the normal one.
const KILLED_JOBS: u64 = 100;
const FEW_KILLED_JOBS: u64 = 3;
/// Longest call of a program while the homes of a killed agent are taken over.
const SERVES_AGAIN: Duration = Duration::from_secs(2);
/// Number of kills during the drain, likewise.
const DRAIN_KILLS: u64 = 30;
const FEW_DRAIN_KILLS: u64 = 2;
/// Time for which a stopped agent stays so, in the long tests and in the normal ones.
const LONG_STOPPED_MS: u64 = 30_000;
const STOPPED_MS: u64 = 5000;
/// Longest call of a program while a node that hangs is excluded and its homes are taken over.
const LONGEST_CALL: Duration = Duration::from_secs(8);

/// S53b.
#[test]
fn copies_are_equal_while_programs_change_files() {
    let seed = seed();
    let trial = Trial::new("compare", NODES, &[0, 1, 2], seed);
    let running = trial.start("3", "0 3", "");
    let checks = if is_soak() { 100 } else { 4 };
    for _ in 0..checks {
        let arguments = ["check", "--replicas", "--json", "--job", &trial.job.name];
        let found: Value =
            serde_json::from_slice(&trial.site.tameike(&arguments).exits(0).stdout).expect("JSON");
        assert_eq!(found["outcome"], "equal", "{found:#}");
        let nodes = found["nodes"].as_array().expect("nodes");
        let count = |name: &str| nodes.iter().filter_map(|node| node["report"][name].as_u64()).sum::<u64>();
        assert!(count("homes") == 64 && count("units") > 0, "{found:#}");
    }
    trial.stop_programs();
    trial.end(running);
}

fn in_milliseconds(mut times: Vec<Duration>) -> String {
    times.sort();
    let [median, longest] = [times[times.len() / 2], times[times.len() - 1]];
    format!("median {} ms, longest {} ms, of {}", median.as_millis(), longest.as_millis(), times.len())
}

/// Two of four agents are killed, the second one when all data has its copies again. Every second job packs the files of the cache view.
///
/// S6b. S7a. S18a. S52a. S52b. S52g.
#[test]
fn programs_of_other_nodes_meet_no_error_when_agents_are_killed() {
    let first = seed();
    let jobs = if is_soak() { KILLED_JOBS } else { FEW_KILLED_JOBS };
    let mut pauses = Vec::new();
    for seed in first..first + jobs {
        pauses.extend(kill_two_agents(seed, seed % 2 == 0));
        println!("longest calls after kills: {}", in_milliseconds(pauses.clone()));
    }
    let longest = pauses.iter().max().expect("a kill");
    assert!(*longest < SERVES_AGAIN, "{longest:?}");
}

/// Returns the longest call of a program after each kill.
fn kill_two_agents(seed: u64, packs: bool) -> [Duration; 2] {
    let trial = Trial::new("kill", NODES, &[0, 1], seed);
    let mut trial = if packs { trial.with_packed_files() } else { trial };
    let mut running = trial.start("2", "0 1", "");
    let victims = if trial.random.below(2) == 0 { [2, 3] } else { [3, 2] };
    let mut times = Vec::new();
    for (killed, victim) in victims.into_iter().enumerate() {
        sleep_ms(trial.random.below(500));
        times.push(monotonic());
        assert!(trial.job.kill_agent(victim));
        wait_for("all copies", || (!running.runs() || lacking(&trial, killed + 1)? == 0).then_some(()));
    }
    sleep_ms(500);
    trial.stop_programs();
    let messages = trial.end(running);
    for victim in victims {
        assert_contains(&messages, &[&format!("node {victim} on localhost has failed")]);
    }
    assert_contains(&messages, &["other nodes serve its data", "all data has 2 copies again"]);
    let ends = [times[1], times[1] + Duration::from_secs(10)];
    let pauses = [0, 1].map(|kill| trial.longest_call_until(times[kill], ends[kill]));
    println!(
        "{} operations, longest calls {} ms and {} ms",
        trial.operations(),
        pauses[0].as_millis(),
        pauses[1].as_millis()
    );
    pauses
}

/// The number of homes with one copy, when so many nodes are excluded.
fn lacking(trial: &Trial, excluded: usize) -> Option<u64> {
    let output =
        trial.site.tameike(&["status", "--job", &trial.job.name, "--json"]).output().expect("it runs");
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let replicas = &status[0]["running"]["replicas"];
    (replicas["excluded"].as_array()?.len() == excluded).then(|| replicas["homes_with_one_copy"].as_u64())?
}

#[test]
fn an_agent_that_is_killed_during_the_drain_leaves_it_complete() {
    let first = seed();
    for seed in first..first + if is_soak() { DRAIN_KILLS } else { FEW_DRAIN_KILLS } {
        let mut trial = Trial::new("drain", NODES, &[0, 1], seed);
        // Dirty data must not have been flushed before.
        let last = format!(
            r#"tameike exec --all -- sh -c 'head -c 20M /dev/zero > "$TAMEIKE_CACHE/last-$TAMEIKE_NODE"'; touch {}/ending"#,
            trial.directory.display()
        );
        let mut running = trial.start("2", "3", &last);
        trial.stop_programs();
        let mut is_ending = || trial.directory.join("ending").exists() || !running.runs();
        wait_for("the drain", || is_ending().then_some(()));
        sleep_ms(trial.random.below(80));
        println!("killed: {}", trial.job.kill_agent(VICTIM));
        trial.end(running);
    }
}

#[test]
fn one_of_three_replicas_is_enough() {
    let mut trial = Trial::new("three", NODES, &[0, 1], seed());
    let running = trial.start("3", "0 1 3", "");
    sleep_ms(trial.random.below(300));
    let time = monotonic();
    assert!(trial.job.kill_agent(VICTIM));
    sleep_ms(500);
    trial.stop_programs();
    trial.end(running);
    println!("longest call after the kill: {} ms", trial.longest_call(time).as_millis());
}

#[test]
fn a_stopped_agent_is_excluded_and_readmitted_without_an_error_of_a_program() {
    let mut trial = Trial::new("stop", NODES, &[0, 1], seed());
    let running = trial.start("2", "0 1 2 3", "");
    sleep_ms(trial.random.below(300));
    let agent = trial.job.agent(VICTIM).expect("it runs");
    let time = monotonic();
    assert!(signal(agent, "STOP"));
    sleep_ms(if is_soak() { LONG_STOPPED_MS } else { STOPPED_MS });
    assert!(signal(agent, "CONT"));
    sleep_ms(2000);
    trial.stop_programs();
    let messages = trial.end(running);
    assert_contains(&messages, &["node 2 on localhost does not answer", "node 2 on localhost answers again"]);
    let pause = trial.longest_call(time);
    println!("{} operations, longest call {} ms", trial.operations(), pause.as_millis());
    assert!(pause < LONGEST_CALL, "{pause:?}");
}

/// Programs of the excluded node use neither locks nor files that are removed while open, since it may lose these.
///
/// S52e. S52f.
#[test]
fn programs_of_a_stopped_agent_continue_when_it_is_readmitted() {
    let mut trial = Trial::new("excluded", NODES, &[0, 1, VICTIM], seed());
    let running = trial.start("2", "0 1 2 3", "");
    sleep_ms(trial.random.below(300));
    let agent = trial.job.agent(VICTIM).expect("it runs");
    assert!(signal(agent, "STOP"));
    sleep_ms(if is_soak() { LONG_STOPPED_MS } else { STOPPED_MS });
    assert!(signal(agent, "CONT"));
    sleep_ms(2000);
    trial.stop_programs();
    assert_contains(&trial.end(running), &["node 2 on localhost answers again"]);
}

/// Functions of a script: kills the agent of a node, and waits until others serve its homes.
pub const FAIL: &str = r#"
    kill_agent() {
        kill -KILL $(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$TAMEIKE_JOB_DIR/node-$1/node.json")
        until tameike status | grep -q "^replicas: .*excluded.* $1"; do sleep 0.02; done
    }"#;

/// Writes files of several sizes, closed ones and one that is open and synced, and waits.
const WRITER: &str = r#"
import hashlib, os, random, sys, time
directory = sys.argv[1]
choose = random.Random(7)
with open(f"{directory}/sums", "w") as sums:
    for variable in ["TAMEIKE_SHARED", "TAMEIKE_CACHE"]:
        os.mkdir(f"{os.environ[variable]}/d")
        for number in range(24):
            content = choose.randbytes([10, 5000, 300_000, 3 << 20][number % 4])
            path = f"{os.environ[variable]}/d/{number}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            assert os.write(file, content) == len(content)
            if number < 20:
                os.close(file)
            else:
                os.fsync(file)
            sums.write(f"{hashlib.sha256(content).hexdigest()}  {path}\n")
open(f"{directory}/written", "w").close()
time.sleep(1000)
"#;

/// S16a. S45c. S52c.
#[test]
fn files_of_a_failed_node_are_read_on_others_and_drained() {
    let (site, job) = new_job("written");
    let (writer, directory) = (site.python(WRITER), site.plain().display());
    let script = format!(
        r#"{FAIL}
           tameike exec --node {VICTIM} -- {writer} {directory} & until test -e {directory}/written; do sleep 0.02; done
           kill_agent {VICTIM}
           sha256sum --check --quiet {directory}/sums
           tameike exec --node 3 -- sha256sum --check --quiet {directory}/sums"#
    );
    let receipt = site.plain().join("receipt");
    let options = ["--job", &job.name, "--replicas", "2", "--receipt", utf8(&receipt)];
    let output = site.job(NODES, &options, &script).exits(0);
    let receipt = json(&receipt);
    assert_eq!(receipt["complete"], Value::Bool(true), "{}", shown(&output));
    check_receipt(&receipt, site.shared());
    assert_eq!(receipt["files"].as_array().map(Vec::len), Some(24), "{receipt}");
}

/// S45a. S52c.
#[test]
fn files_that_programs_of_a_failed_node_had_open_for_writing_are_interrupted() {
    let (site, job) = new_job("open");
    let writer = site.python(&WRITER.replace("os.fsync(file)", "pass"));
    let directory = site.plain().display();
    let script = format!(
        r#"{FAIL}
           tameike exec --node {VICTIM} -- {writer} {directory} & until test -e {directory}/written; do sleep 0.02; done
           kill_agent {VICTIM}"#
    );
    let options = ["--job", &job.name, "--replicas", "2"];
    let messages = err(&site.job(NODES, &options, &script).exits(INCOMPLETE));
    assert_contains(&messages, &["drain INCOMPLETE: 4 of 24 files interrupted while written"]);
    let advice = site.tameike(&["recover", "--job", &job.name]).exits(0);
    assert_contains(&err(&advice), &["has no leftovers"]);
}

/// Reads all files of `sums`, and creates others; prints for each the view, the call, and "ok" or the error.
const CALLS: &str = r#"
import errno, hashlib, os, sys
directory = sys.argv[1]

def tell(view, call, function, *arguments):
    try:
        outcome = function(*arguments)
    except OSError as error:
        outcome = errno.errorcode[error.errno]
    print(view, call, outcome)

def read(path, digest):
    with open(path, "rb") as file:
        return "ok" if hashlib.sha256(file.read()).hexdigest() == digest else "WRONG"

def create(path):
    with open(path, "x") as file:
        file.write("new")
    with open(path) as file:
        return "ok" if file.read() == "new" else "WRONG"

for line in open(f"{directory}/sums"):
    digest, path = line.split()
    tell("shared" if path.startswith(os.environ["TAMEIKE_SHARED"]) else "cache", "read", read, path, digest)
for view, variable in [("shared", "TAMEIKE_SHARED"), ("cache", "TAMEIKE_CACHE")]:
    for number in range(40):
        tell(view, "create", create, f"{os.environ[variable]}/new-{number}")
"#;

/// Whether other nodes than these have the root of the job-shared view and its entries.
fn keep_root(failed: [u32; 2]) -> bool {
    let node =
        |id| NodeInfo { id: NodeId(id), host: String::new(), address: String::new(), group: 0, device: true };
    let job = JobId::new("job").expect("a name");
    let cluster = Cluster::new(job, (0..NODES).map(node).collect(), 2).expect("a cluster");
    let map = cluster.map();
    let mut homes = [cluster.inode_home(InodeId::ROOT), cluster.children_home(InodeId::ROOT)].into_iter();
    homes.all(|home| {
        let mut replicas = map.backups(home).iter().copied().chain([map.primary(home)]);
        replicas.any(|node| !failed.contains(&node.0))
    })
}

/// Two nodes fail one after the other. What only they have cannot be used until `recover`, and in the job-shared view is lost.
///
/// S20a. S20b. S46a.
#[test]
fn files_without_a_copy_fail_and_others_stay_usable() {
    let pairs = [[3, 2], [2, 1], [3, 1]];
    let kept = pairs.into_iter().find(|pair| keep_root(*pair)).expect("a pair");
    let lost = pairs.into_iter().find(|pair| !keep_root(*pair)).unwrap_or(kept);
    for failed in [kept, lost] {
        let calls = calls_after(failed);
        let count = |call: &str| calls.lines().filter(|line| *line == call).count();
        println!(
            "{failed:?}: {} of 24 files read, {} of 40 created",
            count("shared read ok"),
            count("shared create ok")
        );
        println!(
            "in the cache view: {} of 24 files read, {} of 40 created",
            count("cache read ok"),
            count("cache create ok")
        );
        for view in ["shared", "cache"] {
            for (call, all) in [("read", 24), ("create", 40)] {
                let [fine, down] =
                    ["ok", "EHOSTDOWN"].map(|outcome| count(&format!("{view} {call} {outcome}")));
                assert_eq!(fine + down, all, "{view} {call}: {calls}");
                assert_eq!(fine > 0, view == "cache" || keep_root(failed), "{view} {call}: {calls}");
            }
        }
        // Each file has a home of its own, and one in six homes has no other copies.
        assert!(count("cache create EHOSTDOWN") > 0, "{calls}");
    }
}

/// Runs a job of which these nodes fail, and recovers its cache view. Returns the outcomes of calls after the failures.
fn calls_after(failed: [u32; 2]) -> String {
    let (site, job) = new_job("twice");
    let directory = site.plain().display().to_string();
    let program = site.plain().join("writer.py");
    fs::write(&program, WRITER.replace("time.sleep(1000)", "")).expect("written");
    let (writer, calls) = (program.display(), site.python(CALLS));
    let script = format!(
        r#"{FAIL}
           python3 {writer} {directory}; kill_agent {}; kill_agent {}
           tameike exec --node {} -- {calls} {directory} > {directory}/calls"#,
        failed[0],
        failed[1],
        6 - failed[0] - failed[1]
    );
    let options = ["--job", &job.name, "--replicas", "2", "--keep-going"];
    let messages = err(&site.job(NODES, &options, &script).exits(INCOMPLETE));
    let [first, second] = failed;
    let parts = [
        format!("node {first} on localhost has failed (signal: 9 (SIGKILL)): other nodes serve its data"),
        format!("the agent of node {second} on localhost failed (signal: 9 (SIGKILL))"),
        format!("problem: node {second}: its agent has failed"),
        format!("tameike recover --job {}", job.name),
    ];
    assert_contains(&messages, &parts.each_ref().map(String::as_str));
    let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
    assert_code(&recovered, code_of_recovery(&shown(&recovered)));
    let sums = fs::read_to_string(site.plain().join("sums")).expect("sums");
    let of_cache: String = sums.lines().skip(24).flat_map(|line| [line, "\n"]).collect();
    let view = of_cache.split_whitespace().nth(1).and_then(|path| path.strip_suffix("/d/0")).expect("a path");
    fs::write(site.plain().join("of-shared"), of_cache.replace(view, utf8(site.shared()))).expect("written");
    succeed(Command::new("sha256sum").args(["--check", "--quiet"]).arg(site.plain().join("of-shared")));
    fs::read_to_string(site.plain().join("calls")).expect("calls")
}

/// What a failed node had is copied to others, so that the next failure loses nothing.
///
/// S52a. S52g.
#[test]
fn lost_copies_are_replaced_before_the_next_failure() {
    let (site, job) = new_job("replaced");
    let directory = site.plain().display().to_string();
    let program = site.plain().join("writer.py");
    fs::write(&program, WRITER.replace("time.sleep(1000)", "")).expect("written");
    let (writer, calls, name) = (program.display(), site.python(CALLS), &job.name);
    let script = format!(
        r#"{FAIL}
           python3 {writer} {directory}; kill_agent 3
           until tameike status --job {name} | grep -x 'replicas: 2, excluded node: 3'; do sleep 0.2; done
           kill_agent 2
           tameike exec --node 1 -- {calls} {directory} > {directory}/calls"#
    );
    let options = ["--job", name, "--replicas", "2"];
    let messages = err(&site.job(NODES, &options, &script).exits(0));
    assert_contains(&messages, &["all data has 2 copies again"]);
    let calls = fs::read_to_string(site.plain().join("calls")).expect("calls");
    assert!(calls.lines().all(|line| line.ends_with(" ok")), "{calls}");
    assert_eq!(calls.lines().count(), 2 * (24 + 40), "{calls}");
}

/// Takes locks, or tries to take those of other nodes.
const LOCKS: &str = r#"
import fcntl, os, sys, time
action, node, directory = sys.argv[1:]
files = [os.open(f"{os.environ['TAMEIKE_SHARED']}/two/{node}-{number}", os.O_RDWR | os.O_CREAT, 0o644) for number in range(8)]

def takes(number):
    lock = fcntl.flock if number % 2 else fcntl.lockf
    try:
        lock(files[number], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False

taken = [takes(number) for number in range(8)]
if action == "hold":
    assert all(taken)
    open(f"{directory}/holds-{node}", "w").close()
    time.sleep(1000)
assert taken == [action == "free"] * 8, f"node {node}: {taken}"
"#;

/// S21f. S21g. S52d.
#[test]
fn only_locks_of_an_excluded_node_end() {
    let (site, job) = new_job("held");
    let (locks, directory) = (site.python(LOCKS), site.plain().display());
    let script = format!(
        r#"agent=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$TAMEIKE_JOB_DIR/node-2/node.json")
           tameike exec --node 2 -- sh -euc 'mkdir "$TAMEIKE_SHARED/two"'
           for node in 1 2; do tameike exec --node $node -- {locks} hold $node {directory} & done
           for node in 1 2; do until test -e {directory}/holds-$node; do sleep 0.02; done; done
           {locks} held 1 {directory}; {locks} held 2 {directory}
           kill -STOP $agent; until tameike status | grep -q 'excluded node: 2'; do sleep 0.02; done
           {locks} held 1 {directory}; {locks} free 2 {directory}
           kill -CONT $agent; while tameike status | grep -q 'excluded'; do sleep 0.02; done
           {locks} held 1 {directory}; tameike exec --node 3 -- {locks} held 1 {directory}"#
    );
    site.job(NODES, &["--job", &job.name, "--replicas", "2"], &script).exits(0);
}
