//! Agents are killed with SIGKILL at random moments: acknowledged data reaches the shared directory, and reports are true.
//!
//! Programs on three nodes write small and large files in the cache view, append, overwrite, truncate, rename and remove, and
//! log outside of the views what close or fsync has acknowledged. An agent is killed during writes, the background flush, or
//! the drain. Then `recover` runs, sometimes interrupted, sometimes twice.

use crate::support::jobs::{
    Background, Job, Random, code_of_recovery, new_job, seed, signal, sleep_ms, wait_for,
};
use crate::support::promises::Promises;
use crate::support::{Run, Site, assert_contains, err, helper, is_soak, json, shown, succeed, utf8};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

const NODES: u32 = 3;
const INCOMPLETE: i32 = 75;
const AGENT_LOST: i32 = 70;
const FAILED: i32 = 71;
/// Number of kills in the long test and in the normal one.
const MOMENTS: u64 = 50;
const FEW_MOMENTS: u64 = 6;

/// S16a. S6b.
#[test]
fn acknowledged_data_survives_a_crash_of_any_agent_at_any_moment() {
    let first = seed();
    let moments = if is_soak() { MOMENTS } else { FEW_MOMENTS };
    let mut hits = 0;
    for moment in 0..moments {
        let seed = first + moment;
        println!("moment {moment}: TAMEIKE_SEED={seed}");
        hits += u64::from(Round::new(seed).play());
    }
    println!("{hits} of {moments} kills hit a running agent");
    assert!(hits >= moments / 2, "too few kills hit a running agent for a meaningful test");
}

/// The phase of a job in which an agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Writing,
    Flushing,
    Draining,
}

struct Round {
    seed: u64,
    random: Random,
    site: Site,
    job: Job,
    logs: PathBuf,
}

impl Round {
    fn new(seed: u64) -> Self {
        let (site, job) = new_job(&format!("crash-{seed:x}"));
        let logs = site.plain().to_owned();
        Self { seed, random: Random::new(seed), site, job, logs }
    }

    /// Runs the round; returns true if the kill hit a running agent.
    fn play(mut self) -> bool {
        let phase = [Phase::Writing, Phase::Flushing, Phase::Draining][(self.seed % 3) as usize];
        let mut running = self.start_job(phase);
        let victim = self.random.below(u64::from(NODES)) as u32;
        let moment_ms = self.await_moment(phase, &mut running);
        let killed = self.job.kill_agent(victim);
        println!("{phase:?} + {moment_ms} ms: node {victim} {}", if killed { "killed" } else { "had ended" });
        let output = running.output();
        let promises = self.promises();
        println!("{} files promised whole", promises.iter().map(Promises::whole_files).sum::<usize>());
        let interrupted = self.check_end_of_job(&output, killed, &promises);
        if interrupted {
            self.check_stores();
            self.recover(&promises);
        }
        self.check_kept(&promises);
        killed
    }

    /// A kill at any moment damages no store.
    fn check_stores(&self) {
        for store in self.job.devices(Path::new("/dev/shm")) {
            self.site.tameike(&["check", utf8(&store)]).exits(0);
        }
    }

    fn start_job(&self, phase: Phase) -> Background {
        // Dirty data must not have been flushed before.
        let pause = if phase == Phase::Draining {
            r#"tameike exec --all -- sh -c 'head -c 40M /dev/zero > $TAMEIKE_CACHE/last-$TAMEIKE_NODE'"#
        } else {
            "sleep 0.3"
        };
        let (writer, logs, seed) = (helper("writer.py"), self.logs.display(), self.seed);
        let script = format!(
            r#"tameike exec --all -- sh -c 'python3 {writer} "$TAMEIKE_CACHE" {logs}/$TAMEIKE_NODE {seed} 40' || true
               touch {logs}/wrote; {pause}; touch {logs}/ending"#
        );
        let receipt = self.logs.join("receipt");
        let options = ["--job", &self.job.name, "--receipt", utf8(&receipt), "--memory", "64MiB"];
        Background::start(&mut self.site.job(NODES, &options, &script))
    }

    /// Waits for the moment of the kill: during writes, after a number of log lines; else after a number of milliseconds, which it
    /// returns.
    fn await_moment(&mut self, phase: Phase, running: &mut Background) -> u64 {
        let (mark, lines, within_ms) = match phase {
            Phase::Writing => ("0", self.random.below(80), 10),
            Phase::Flushing => ("wrote", 0, 300),
            Phase::Draining => ("ending", 0, 80),
        };
        let mark = self.logs.join(mark);
        let has_come = || {
            let text = fs::read(&mark).ok()?;
            (text.iter().filter(|&&byte| byte == b'\n').count() as u64 >= lines).then_some(())
        };
        wait_for("the phase", || has_come().or_else(|| (!running.runs()).then_some(())));
        let moment_ms = self.random.below(within_ms);
        sleep_ms(moment_ms);
        moment_ms
    }

    fn promises(&self) -> Vec<Promises> {
        (0..NODES).map(|node| Promises::read(&self.logs.join(node.to_string()), node)).collect()
    }

    /// Checks the reports of the job. Returns true if it was interrupted.
    fn check_end_of_job(&self, output: &Output, killed: bool, promises: &[Promises]) -> bool {
        let interrupted = match output.status.code() {
            Some(0) => false,
            Some(AGENT_LOST) if killed => false,
            Some(INCOMPLETE) if killed => {
                let advice = format!("tameike recover --job {}", self.job.name);
                assert_contains(&err(output), &[&advice, "drain INCOMPLETE"]);
                assert_contains(&succeed(&mut self.site.tameike(&["status"])), &[&self.job.name]);
                true
            }
            _ => unreachable!("seed {}: {}", self.seed, shown(output)),
        };
        self.check_receipt(&self.logs.join("receipt"), promises);
        interrupted
    }

    /// Recovers the job; in some rounds a first recovery is killed at a random moment.
    fn recover(&mut self, promises: &[Promises]) {
        let receipt = self.logs.join("recovered");
        let arguments = ["recover", "--job", &self.job.name, "--receipt", utf8(&receipt), "--verify"];
        let target = self.random.below(3);
        if target > 0 {
            let victim = self.random.below(u64::from(NODES)) as u32;
            let killed = self.job.agent(victim);
            let mut first = Background::start(&mut self.site.tameike(&arguments));
            let program = first.program();
            wait_for("an agent", || (self.job.agent(victim) != killed || !first.runs()).then_some(()));
            sleep_ms(self.random.below(100));
            let hit = if target == 1 { signal(program, "KILL") } else { self.job.kill_agent(victim) };
            println!("recover hit: {hit} ({target})");
            let output = first.output();
            assert!(!hit || target == 1 || output.status.code() != Some(0) || !self.job.dir.exists());
        }
        // Agents exit after their driver was killed: until then the job cannot be recovered.
        let is_held = |messages: &str| {
            messages.contains("is still running") || messages.contains("is locked by another")
        };
        let output = wait_for("the end of the agents of the first recovery", || {
            let output = self.site.tameike(&arguments).output().expect("it starts");
            let held = output.status.code() == Some(FAILED) && is_held(&shown(&output));
            (!held).then_some(output)
        });
        let code = code_of_recovery(&shown(&output));
        assert_eq!(output.status.code(), Some(code), "seed {}: {}", self.seed, shown(&output));
        if receipt.exists() {
            self.check_receipt(&receipt, promises);
        }
        let again = self.site.tameike(&arguments[..3]).exits(0);
        assert_contains(&err(&again), &["has no leftovers"]);
    }

    /// A file that a receipt reports as synced or verified is in the shared directory as acknowledged, and has the receipt's
    /// checksum.
    fn check_receipt(&self, path: &Path, promises: &[Promises]) {
        let receipt = json(path);
        for file in receipt["files"].as_array().expect("files") {
            let name = file["path"].as_str().expect("a path");
            if !matches!(file["outcome"].as_str(), Some("synced" | "verified")) {
                assert_ne!(receipt["complete"], Value::Bool(true), "{file}");
                continue;
            }
            for promise in promises {
                assert_eq!(promise.breach(self.site.shared(), name), None, "seed {}: {file}", self.seed);
            }
            let content = fs::read(self.site.shared().join(name)).expect("a drained file");
            assert_eq!(file["size"].as_u64(), Some(content.len() as u64), "seed {}: {file}", self.seed);
            let sum = file["checksum"].as_str().expect("a checksum");
            if !sum.starts_with("units:") {
                assert_eq!(sum, blake3::hash(&content).to_hex().as_str(), "seed {}: {file}", self.seed);
            }
        }
    }

    fn check_kept(&self, promises: &[Promises]) {
        let broken: Vec<_> = promises.iter().flat_map(|promise| promise.broken(self.site.shared())).collect();
        assert!(broken.is_empty(), "seed {}: {broken:#?}", self.seed);
    }
}
