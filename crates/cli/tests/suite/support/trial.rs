//! A job with replicas whose programs change files in both views and check all that they see, while a test disturbs it.

use super::jobs::{Background, Job, Random, new_job, wait_for};
use super::{Run, Site, assert_code, err, helper, json, shown, succeed, utf8};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tameike_io::os::process::host_name;

/// Programs that check what they see, on some nodes of a job.
pub struct Checkers {
    seed: u64,
    /// The nodes whose programs change files.
    writers: &'static [u32],
    /// Where they leave what must be there; outside of the views.
    directory: PathBuf,
    packs: bool,
}

impl Checkers {
    pub fn new(writers: &'static [u32], directory: PathBuf, seed: u64) -> Self {
        println!("TAMEIKE_SEED={seed}");
        Self { seed, writers, directory, packs: false }
    }

    /// The job packs the files of the cache view.
    pub fn with_packed_files(self) -> Self {
        Self { packs: true, ..self }
    }

    fn nodes(&self, separator: &str) -> String {
        self.writers.iter().map(u32::to_string).collect::<Vec<_>>().join(separator)
    }

    /// A script that runs them, after the node `maker` has made a directory for all. When they have ended, `readers` check what they have left,
    /// and `last` runs.
    pub fn script(&self, maker: u32, readers: &str, last: &str) -> String {
        let (checker, directory, seed) = (helper("checker.py"), self.directory.display(), self.seed);
        let (on_all, all, packs) = (self.nodes(" "), self.nodes(","), u8::from(self.packs));
        format!(
            r#"tameike exec --node {maker} -- sh -euc 'mkdir "$TAMEIKE_SHARED/two" "$TAMEIKE_CACHE/two"'
               check() {{ node=$1; shift; tameike exec --node $node -- env CHECKER_PACKS={packs} python3 {checker} "$@" {directory}; }}
               others=; for node in {on_all}; do check $node run {seed} & others="$others $!"; done
               for other in $others; do wait $other; done
               for node in {readers}; do check $node verify {all}; done
               {last}"#
        )
    }

    pub fn receipt(&self) -> PathBuf {
        self.directory.join("receipt")
    }

    /// Returns when all of them have changed files.
    pub fn await_begin(&self, mut running: Background) -> Background {
        let begun = |view, node| self.directory.join(format!("begun-{view}-{node}")).exists();
        let all_begun = || self.writers.iter().all(|node| begun("shared", node) && begun("cache", node));
        wait_for("the programs", || (all_begun() || !running.runs()).then_some(()));
        if running.runs() {
            return running;
        }
        unreachable!("the job has ended: {}", shown(&running.output()))
    }

    pub fn stop(&self) {
        fs::write(self.directory.join("stop"), "").expect("written");
    }

    /// A directory has what they have left in the cache view, nothing else, and what the receipt says.
    pub fn check(&self, directory: &Path) {
        let receipt = json(&self.receipt());
        assert_eq!(receipt["complete"], Value::Bool(true), "{receipt}");
        check_receipt(&receipt, directory);
        let mut command = Command::new("python3");
        command.args([&helper("checker.py"), "verify", &self.nodes(","), utf8(&self.directory)]);
        command.env("TAMEIKE_NODE", "0").env("TAMEIKE_CACHE", directory);
        succeed(command.env_remove("TAMEIKE_SHARED"));
    }

    fn left(&self, nodes: &'static [u32]) -> impl Iterator<Item = Value> {
        let names =
            nodes.iter().flat_map(|node| ["shared", "cache"].map(|view| format!("left-{view}-{node}")));
        names.map(|name| json(&self.directory.join(name)))
    }

    /// The longest call of programs on these nodes that was in flight at a time, or began before `until`. Calls that wait for locks do not count.
    pub fn longest_call(&self, nodes: &'static [u32], time: Duration, until: Duration) -> Duration {
        let slow = self.left(nodes).flat_map(|left| left["slow"].as_array().expect("a list").clone());
        let seconds = |value: &Value| Duration::from_secs_f64(value.as_f64().expect("seconds"));
        let calls = slow.map(|call| (seconds(&call[0]), seconds(&call[1])));
        let after = calls.filter(|(begin, length)| *begin + *length > time && *begin < until);
        after.map(|(_, length)| length).max().unwrap_or_default()
    }

    pub fn operations(&self) -> u64 {
        self.left(self.writers).map(|left| left["operations"].as_u64().expect("a number")).sum()
    }
}

/// A job on this machine with such programs.
pub struct Trial {
    checkers: Checkers,
    pub random: Random,
    pub site: Site,
    pub job: Job,
    nodes: u32,
    hostfile: Option<PathBuf>,
    pub directory: PathBuf,
}

impl Trial {
    /// A job of so many nodes.
    pub fn new(name: &str, nodes: u32, writers: &'static [u32], seed: u64) -> Self {
        let (site, job) = new_job(&format!("{name}-{seed:x}"));
        let directory = site.plain().to_owned();
        let checkers = Checkers::new(writers, directory.clone(), seed);
        Self { checkers, random: Random::new(seed), site, job, nodes, hostfile: None, directory }
    }

    /// Has node 1 pack the files of the cache view in a job of four nodes: node 0, the node of the command, has no device.
    pub fn with_packer_on_node_1(mut self) -> Self {
        assert_eq!(self.nodes, 4, "this host has four names");
        self.hostfile = Some(hostfile_of_node_1(&self.directory));
        self.with_packed_files()
    }

    /// Has the job pack the files of the cache view.
    pub fn with_packed_files(mut self) -> Self {
        self.checkers = self.checkers.with_packed_files();
        self
    }

    /// Starts the job; returns when all programs have changed files. When they have ended, nodes check what they have left, and `last` runs.
    pub fn start(&self, replicas: &str, readers: &str, last: &str) -> Background {
        let script = self.checkers.script(self.nodes.min(3) - 1, readers, last);
        let receipt = self.checkers.receipt();
        let options = ["--job", &self.job.name, "--replicas", replicas, "--receipt", utf8(&receipt)];
        let packed: &[&str] = if self.checkers.packs { &["--aggregate=on"] } else { &[] };
        let hosts = self.hostfile.as_ref().map_or_else(Vec::new, |file| vec!["--hostfile", utf8(file)]);
        let options = [&options[..], &["--memory", "256MiB"], packed, &hosts].concat();
        let running = Background::start(&mut self.site.job(self.nodes, &options, &script));
        self.checkers.await_begin(running)
    }

    pub fn stop_programs(&self) {
        self.checkers.stop();
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
        if !self.checkers.packs {
            return self.checkers.check(self.site.shared());
        }
        let copy = self.directory.join("copy");
        let script = format!(r#"cp -a "$TAMEIKE_CACHE" {}"#, copy.display());
        self.site.job(1, &["--aggregate=on"], &script).exits(0);
        self.checkers.check(&copy);
    }

    /// The longest call of a program that was in flight at a time, or began up to 10 seconds later. Calls that wait for locks do not count.
    pub fn longest_call(&self, time: Duration) -> Duration {
        self.longest_call_until(time, time + Duration::from_secs(10))
    }

    /// The same with an end of this time.
    pub fn longest_call_until(&self, time: Duration, until: Duration) -> Duration {
        self.checkers.longest_call(self.checkers.writers, time, until)
    }

    pub fn operations(&self) -> u64 {
        self.checkers.operations()
    }
}

/// Writes a hostfile with four names of this host, the first one of which has no device, into a directory.
pub fn hostfile_of_node_1(directory: &Path) -> PathBuf {
    let path = directory.join("hosts");
    let hosts = format!("localhost device=no\n127.0.0.1\n::1\n{}\n", host_name());
    fs::write(&path, hosts).expect("written");
    path
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
