//! Background jobs of a test, and kills of their processes.
#![allow(clippy::disallowed_methods, reason = "killed processes run in real time")]

use crate::support::{Site, files_below, processes_naming, utf8};
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit of waits.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Polling interval of waits.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Pseudo-random numbers of a seed (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Returns the seed of a test: `TAMEIKE_SEED`, or a random one. It is printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("TAMEIKE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()) << 16 | u64::from(pause_noise()));
    println!("TAMEIKE_SEED={seed}");
    seed
}

fn pause_noise() -> u16 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    (now.subsec_nanos() >> 8) as u16
}

/// Returns the expected exit code of a recovery that has drained all journals; it differs if files were interrupted during writes.
pub fn code_of_recovery(text: &str) -> i32 {
    if text.contains("  INTERRUPTED: ") && !text.contains("  MISSING: ") { 75 } else { 0 }
}

/// Waits until `ready` returns a value.
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(begin.elapsed() < WAIT_LIMIT, "timeout while waiting for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sleeps: the test depends on the moment of a kill.
pub fn sleep_ms(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Time for a job of a failed test to end.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A command in the background. When dropped, it gets SIGTERM, so that a job can clean up, and then SIGKILL.
pub struct Background(Option<Child>);

impl Background {
    /// Starts the command, and captures its output.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().expect("the command starts")))
    }

    /// Starts the command; returns when the file `ready` exists, or the command has ended.
    pub fn start_until(command: &mut Command, ready: &Path) -> Self {
        let mut running = Self::start(command);
        wait_for("the job to be ready", || (ready.exists() || !running.runs()).then_some(()));
        running
    }

    /// The program that `timeout`, the started process, runs.
    pub fn program(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.0.as_ref().expect("it runs").id());
        wait_for("the program", || fs::read_to_string(&path).ok()?.split_whitespace().next()?.parse().ok())
    }

    pub fn runs(&mut self) -> bool {
        self.0.as_mut().expect("it runs").try_wait().expect("a child").is_none()
    }

    pub fn output(mut self) -> Output {
        self.0.take().expect("it runs").wait_with_output().expect("a child")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // `timeout` forwards it.
        signal(child.id(), "TERM");
        let begin = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < END_LIMIT {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Sends a signal; returns true if the process existed.
pub fn signal(pid: u32, name: &str) -> bool {
    signal_all(&[pid], name)
}

/// Sends a signal to several processes; returns true if all existed.
fn signal_all(pids: &[u32], name: &str) -> bool {
    let pids = pids.iter().map(u32::to_string);
    let status = Command::new("kill").args(["-s", name]).args(pids).stderr(Stdio::null()).status();
    status.expect("kill is installed").success()
}

/// Whether a process runs, and is no zombie.
pub fn runs(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Kills all programs with this directory for jobs.
pub fn kill_programs(base: &str) {
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(base) {
            signal(pid, "KILL");
        }
    }
}

/// One job of a site, by its directories. When dropped, it checks that the job has left nothing.
pub struct Job {
    pub dir: PathBuf,
    pub name: String,
}

impl Job {
    /// A job that may not exist yet, with a name that no other test uses.
    pub fn new(site: &Site, name: &str) -> Self {
        let (user, name) = (rustix::process::geteuid().as_raw(), format!("{name}-{}", std::process::id()));
        Self { dir: site.base().join(format!("tameike-{user}")).join(&name), name }
    }

    /// Process id of a node's agent, if it runs.
    pub fn agent(&self, node: u32) -> Option<u32> {
        let text = fs::read(self.dir.join(format!("node-{node}/node.json"))).ok()?;
        let state: Value = serde_json::from_slice(&text).ok()?;
        u32::try_from(state["record"]["pid"].as_u64()?).ok()
    }

    /// Kills the agent of a node with SIGKILL; returns true if it ran.
    pub fn kill_agent(&self, node: u32) -> bool {
        self.kill_agents(node..node + 1)
    }

    /// Kills the agents of nodes with SIGKILL at once, because others would exit after the first. Returns true if all ran.
    pub fn kill_agents(&self, nodes: Range<u32>) -> bool {
        let pids: Option<Vec<u32>> =
            nodes.map(|node| self.agent(node).filter(|pid| is_agent(*pid))).collect();
        pids.is_some_and(|pids| signal_all(&pids, "KILL"))
    }

    /// Kills the job of these nodes. The agents are first: they would clean up after the exit of their driver, and the driver
    /// after theirs. No process is left to terminate programs of the nodes.
    pub fn kill(&self, site: &Site, running: Background, nodes: Range<u32>) {
        assert!(signal(running.program(), "STOP"));
        assert!(self.kill_agents(nodes));
        assert!(signal(running.program(), "KILL"));
        site.kill_processes();
        running.output();
    }

    /// Device directories of the job in `root`.
    pub fn devices(&self, root: &Path) -> Vec<PathBuf> {
        let part = format!("-{}-", self.name);
        let entries = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        entries
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(&part)))
            .collect()
    }

    /// Panics if the job has left a process, a file or shared memory.
    pub fn assert_removed(&self) {
        assert!(!self.dir.exists(), "files left: {:#?}", files_below(&self.dir));
        assert_eq!(self.devices(Path::new("/dev/shm")), Vec::<PathBuf>::new(), "shared memory left");
        assert_eq!(processes_naming(utf8(&self.dir)), Vec::<String>::new(), "processes left");
    }
}

/// A new site, and a job of it.
pub fn new_job(name: &str) -> (Site, Job) {
    let site = Site::new();
    let job = Job::new(&site, name);
    (site, job)
}

impl Drop for Job {
    /// After a failure: kills the agents of the job, and removes its devices in memory.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return self.assert_removed();
        }
        for node in 0..16 {
            self.kill_agent(node);
        }
        for device in self.devices(Path::new("/dev/shm")) {
            let _ = fs::remove_dir_all(device);
        }
    }
}

fn is_agent(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"tameike\0agent"))
}
