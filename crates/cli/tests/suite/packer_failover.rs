//! The packer's agent is killed or stopped, or its node leaves the job, while programs of other nodes change packed files and check all that they see.

use crate::support::jobs::{Background, new_job, seed, signal, sleep_ms, wait_for};
use crate::support::trial::{Trial, hostfile_of_node_1};
use crate::support::{Run, Site, assert_contains, is_soak, out, succeed, utf8};
use serde_json::Value;
use std::fs;
use std::time::Duration;
use tameike_io::os::process::monotonic;

const NODES: u32 = 4;
/// The packer at first.
const PACKER: u32 = 1;
/// The nodes with programs. The node of the command has no device.
const WRITERS: &[u32] = &[0, 2];
/// Number of jobs in the long test and in the normal one.
const KILLED_JOBS: u64 = 60;
const FEW_KILLED_JOBS: u64 = 3;
/// Time for which a stopped agent stays so, in the long test and in the normal one.
const LONG_STOPPED_MS: u64 = 30_000;
const STOPPED_MS: u64 = 5000;
/// Longest call of a program while a killed packer is replaced, and while one that hangs is.
const SERVES_AGAIN: Duration = Duration::from_secs(4);
const LONGEST_CALL: Duration = Duration::from_secs(8);

fn trial(name: &str, seed: u64) -> Trial {
    Trial::new(name, NODES, WRITERS, seed).with_packer_on_node_1()
}

/// Ends a trial. The container is intact, and has nothing that packers leave to each other.
fn end(trial: &Trial, running: Background) -> String {
    let messages = trial.end(running);
    check_container(&trial.site);
    messages
}

fn check_container(site: &Site) {
    let container = site.shared().join(".tameike-packed");
    site.tameike(&["agg", "verify", utf8(&container)]).exits(0);
    let listed = out(&site.tameike(&["agg", "ls", "-r", utf8(&container)]).exits(0));
    assert!(!listed.contains(".tameike-packed"), "{listed}");
}

/// Waits until other nodes have copies of all that the excluded node had.
fn await_copies(trial: &Trial, running: &mut Background) {
    let lacking = || {
        let output = trial.site.tameike(&["status", "--job", &trial.job.name, "--json"]).output().ok()?;
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let replicas = &status[0]["running"]["replicas"];
        let is_excluded = replicas["excluded"].as_array()?.len() == 1;
        is_excluded.then(|| replicas["homes_with_one_copy"].as_u64())?
    };
    wait_for("all copies", || (!running.runs() || lacking()? == 0).then_some(()));
}

/// S38b. S52a. S52b.
#[test]
fn programs_meet_no_error_when_the_packer_is_killed() {
    let first = seed();
    let jobs = if is_soak() { KILLED_JOBS } else { FEW_KILLED_JOBS };
    for seed in first..first + jobs {
        let mut trial = trial("packer", seed);
        let mut running = trial.start("2", "0 2", "");
        sleep_ms(trial.random.below(1500));
        let time = monotonic();
        assert!(trial.job.kill_agent(PACKER));
        // In every second job, the programs end while homes are copied.
        if seed % 2 == 0 {
            await_copies(&trial, &mut running);
        }
        sleep_ms(300);
        trial.stop_programs();
        end(&trial, running);
        let pause = trial.longest_call(time);
        println!("{} operations, longest call {} ms", trial.operations(), pause.as_millis());
        assert!(pause < SERVES_AGAIN, "{pause:?}");
    }
}

/// S38b. S52a. S52b. S52e.
#[test]
fn a_stopped_packer_that_continues_damages_nothing() {
    let mut trial = trial("stopped-packer", seed());
    let running = trial.start("2", "0 2", "");
    sleep_ms(trial.random.below(300));
    let agent = trial.job.agent(PACKER).expect("it runs");
    let time = monotonic();
    assert!(signal(agent, "STOP"));
    sleep_ms(if is_soak() { LONG_STOPPED_MS } else { STOPPED_MS });
    assert!(signal(agent, "CONT"));
    sleep_ms(2000);
    trial.stop_programs();
    let messages = end(&trial, running);
    assert_contains(&messages, &["does not answer", "answers again"]);
    let pause = trial.longest_call(time);
    println!("{} operations, longest call {} ms", trial.operations(), pause.as_millis());
    assert!(pause < LONGEST_CALL, "{pause:?}");
}

/// S38b. S54b.
#[test]
fn the_packer_moves_when_its_node_is_restarted_or_leaves() {
    let trial = trial("packer-leaves", seed());
    let running = trial.start("2", "0 2", "");
    for command in ["restart", "shrink"] {
        trial.site.tameike(&[command, "--job", &trial.job.name, "--nodes", &PACKER.to_string()]).exits(0);
        sleep_ms(500);
    }
    trial.stop_programs();
    end(&trial, running);
}

/// S38b.
#[test]
fn a_packer_that_is_killed_during_the_drain_leaves_it_complete() {
    let first = seed();
    for seed in first..first + if is_soak() { 30 } else { 2 } {
        let mut trial = trial("packer-drain", seed);
        let last = format!(
            r#"for node in 0 2; do tameike exec --node $node -- sh -c 'cd "$TAMEIKE_CACHE"; mkdir last-$TAMEIKE_NODE; for i in $(seq 200); do seq $i > last-$TAMEIKE_NODE/$i; done'; done
               touch {}/ending"#,
            trial.directory.display()
        );
        let mut running = trial.start("2", "0 2", &last);
        trial.stop_programs();
        let mut is_ending = || trial.directory.join("ending").exists() || !running.runs();
        wait_for("the drain", || is_ending().then_some(()));
        sleep_ms(trial.random.below(80));
        // At the end of the job, the agent may have ended.
        println!("killed: {}", trial.job.kill_agent(PACKER));
        let output = running.output();
        let code = output.status.code();
        if code != Some(0) {
            // It was killed when it ended packing, after the drain.
            assert_eq!(code, Some(75));
            trial.site.tameike(&["recover", "--job", &trial.job.name]).exits(0);
        }
        trial.check_shared();
        check_container(&trial.site);
    }
}

/// Files that grow large, files that are removed while a program has them open, and directories with marks.
const SCENE: &str = r#"
import os, subprocess, sys
os.chdir(os.environ["TAMEIKE_CACHE"])
os.mkdir("d")
os.mkdir("off")
subprocess.run(["tameike", "layout", "set", "--aggregate=off", "off"], check=True)
large, gone = open("d/large", "wb"), open("d/gone", "w+")
large.write(b"x" * 3_000_000)
os.fsync(large.fileno())
gone.write("gone")
os.fsync(gone.fileno())
os.unlink("d/gone")
with open("d/small", "w") as small: small.write("small")
with open("d/renamed", "w") as renamed: renamed.write("renamed")
kept = open("d/renamed")
os.rename("d/renamed", "d/new")
subprocess.run(["sh", "-euc", sys.argv[1]], check=True)
gone.seek(0)
assert gone.read() == "gone"
gone.write("!")
gone.seek(0)
assert gone.read() == "gone!"
assert kept.read() == "renamed" and open("d/small").read() == "small"
large.write(b"y" * 1_000_000)
large.close()
os.rename("d", "e")
os.rename("off", "plain")
for name in ["plain/file", "e/late"]:
    with open(name, "x") as file: file.write("late")
assert sorted(os.listdir("e")) == ["large", "late", "new", "small"], os.listdir("e")
"#;

/// S33b. S35a. S36a. S38b. S52f.
#[test]
fn large_files_marks_and_removed_open_files_survive_the_packer() {
    let (site, job) = new_job("packer-scene");
    let hosts = hostfile_of_node_1(site.plain());
    let fail = format!("{}\nkill_agent {PACKER}", crate::failover::FAIL);
    let fail_file = site.plain().join("fail");
    fs::write(&fail_file, fail).expect("written");
    let script = format!(r#"{} "$(cat {})""#, site.python(SCENE), fail_file.display());
    let options = ["--job", &job.name, "--replicas", "2", "--aggregate=on", "--hostfile", utf8(&hosts)];
    site.job(NODES, &options, &script).exits(0);
    let content = |name: &str| fs::read(site.shared().join(name)).map(|bytes| bytes.len()).ok();
    assert_eq!(
        [content("e/large"), content("plain/file"), content("e/late")],
        [Some(4_000_000), Some(4), None]
    );
    check_container(&site);
    let read = r#"cd "$TAMEIKE_CACHE/e"; cat late new small; ls | wc -l"#;
    assert_eq!(succeed(&mut site.job(1, &["--aggregate=on"], read)), "laterenamedsmall4\n");
}
