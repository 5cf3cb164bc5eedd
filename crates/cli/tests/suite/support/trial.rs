//! A job with replicas whose programs change files in both views and check all that they see, while a test disturbs it.

use super::jobs::{Background, Job, Random, new_job, wait_for};
use super::{Site, assert_code, err, helper, json, shown, succeed, utf8};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A job whose programs check what they see.
pub struct Trial {
    seed: u64,
    pub random: Random,
    pub site: Site,
    pub job: Job,
    nodes: u32,
    /// The nodes whose programs change files.
    writers: &'static [u32],
    pub directory: PathBuf,
}

impl Trial {
    /// A job of so many nodes.
    pub fn new(name: &str, nodes: u32, writers: &'static [u32], seed: u64) -> Self {
        let (site, job) = new_job(&format!("{name}-{seed:x}"));
        let directory = site.plain().to_owned();
        println!("TAMEIKE_SEED={seed}");
        Self { seed, random: Random::new(seed), site, job, nodes, writers, directory }
    }

    /// Starts the job; returns when all programs have changed files. When they have ended, nodes check what they have left, and `last` runs.
    pub fn start(&self, replicas: &str, readers: &str, last: &str) -> Background {
        let maker = self.nodes.min(3) - 1;
        let (checker, directory, seed) = (helper("checker.py"), self.directory.display(), self.seed);
        let writers: Vec<_> = self.writers.iter().map(u32::to_string).collect();
        let (on_all, all) = (writers.join(" "), writers.join(","));
        let script = format!(
            r#"tameike exec --node {maker} -- sh -euc 'mkdir "$TAMEIKE_SHARED/two" "$TAMEIKE_CACHE/two"'
               check() {{ node=$1; shift; tameike exec --node $node -- python3 {checker} "$@" {directory}; }}
               others=; for node in {on_all}; do check $node run {seed} & others="$others $!"; done
               for other in $others; do wait $other; done
               for node in {readers}; do check $node verify {all}; done
               {last}"#
        );
        let receipt = self.directory.join("receipt");
        let options = ["--job", &self.job.name, "--replicas", replicas, "--receipt", utf8(&receipt)];
        let options = [&options[..], &["--memory", "256MiB"]].concat();
        let mut running = Background::start(&mut self.site.job(self.nodes, &options, &script));
        let begun = |view, node| self.directory.join(format!("begun-{view}-{node}")).exists();
        let all_begun = || self.writers.iter().all(|node| begun("shared", node) && begun("cache", node));
        wait_for("the programs", || (all_begun() || !running.runs()).then_some(()));
        if running.runs() {
            return running;
        }
        unreachable!("the job has ended: {}", shown(&running.output()))
    }

    pub fn stop_programs(&self) {
        fs::write(self.directory.join("stop"), "").expect("written");
    }

    /// Checks the end of the job: no program has met an error. Returns its messages.
    pub fn end(&self, running: Background) -> String {
        let output = running.output();
        assert_code(&output, 0);
        self.check_shared();
        err(&output)
    }

    /// The shared directory has all that programs have left in the cache view, and what the receipt says.
    pub fn check_shared(&self) {
        let receipt = json(&self.directory.join("receipt"));
        assert_eq!(receipt["complete"], Value::Bool(true), "{receipt}");
        check_receipt(&receipt, self.site.shared());
        let writers: Vec<_> = self.writers.iter().map(u32::to_string).collect();
        let mut command = Command::new("python3");
        command.args([&helper("checker.py"), "verify", &writers.join(","), utf8(&self.directory)]);
        command.env("TAMEIKE_NODE", "0").env("TAMEIKE_CACHE", self.site.shared());
        succeed(command.env_remove("TAMEIKE_SHARED"));
    }

    /// What the programs have left.
    fn left(&self) -> impl Iterator<Item = Value> {
        let names = self
            .writers
            .iter()
            .flat_map(|node| ["shared", "cache"].map(|view| format!("left-{view}-{node}")));
        names.map(|name| json(&self.directory.join(name)))
    }

    /// The longest call of a program that was in flight at a time, or began up to 10 seconds later. Calls that wait for locks do not count.
    pub fn longest_call(&self, time: Duration) -> Duration {
        let slow = self.left().flat_map(|left| left["slow"].as_array().expect("a list").clone());
        let seconds = |value: &Value| Duration::from_secs_f64(value.as_f64().expect("seconds"));
        let calls = slow.map(|call| (seconds(&call[0]), seconds(&call[1])));
        let after = calls
            .filter(|(begin, length)| *begin + *length > time && *begin < time + Duration::from_secs(10));
        after.map(|(_, length)| length).max().unwrap_or_default()
    }

    pub fn operations(&self) -> u64 {
        self.left().map(|left| left["operations"].as_u64().expect("a number")).sum()
    }
}

/// Files that a receipt reports as synced are in a directory, and have the receipt's checksums.
pub fn check_receipt(receipt: &Value, directory: &Path) {
    for file in receipt["files"].as_array().expect("files") {
        let name = file["path"].as_str().expect("a path");
        assert!(matches!(file["outcome"].as_str(), Some("synced" | "verified")), "{file}");
        let content = fs::read(directory.join(name)).expect("a drained file");
        assert_eq!(file["size"].as_u64(), Some(content.len() as u64), "{file}");
        let sum = file["checksum"].as_str().expect("a checksum");
        assert!(sum.starts_with("units:") || sum == blake3::hash(&content).to_hex().as_str(), "{file}");
    }
}
