//! Directories of one test: shared directory, base directory for jobs, and the real binary.

pub mod mounts;
pub mod preload;
pub mod programs;
pub mod promises;
pub mod small_disk;
pub mod spooled;
pub mod victims;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Time limit of a command, so that a hung job fails only its test.
const COMMAND_LIMIT_SECONDS: &str = "600";
/// The same with `TAMEIKE_SOAK=1`, which selects the long variants of tests.
const SOAK_COMMAND_LIMIT_SECONDS: &str = "3600";

/// Returns true for the long variants of tests.
pub fn is_soak() -> bool {
    std::env::var_os("TAMEIKE_SOAK").is_some_and(|value| value == "1")
}

/// Directories of one test.
pub struct Site {
    dir: TempDir,
}

impl Site {
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("tk").expect("a temporary directory");
        for name in ["shared", "tmp", "plain", "disk"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        Self { dir }
    }

    pub fn shared(&self) -> PathBuf {
        self.dir.path().join("shared")
    }

    /// A directory outside of jobs, for comparison.
    pub fn plain(&self) -> PathBuf {
        self.dir.path().join("plain")
    }

    /// A directory as a node's disk: the agent serves the node-local view of a job with this device, and the kernel serves that of
    /// one in memory.
    pub fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// The directory for the test's jobs.
    pub fn base(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    /// The binary with these arguments, killed after a time limit.
    pub fn tameike(&self, arguments: &[&str]) -> Command {
        // A test in the background inherits ignored terminal signals, and the job would inherit them too.
        let mut command = Command::new("env");
        let limit = if is_soak() { SOAK_COMMAND_LIMIT_SECONDS } else { COMMAND_LIMIT_SECONDS };
        command.args(["--default-signal=HUP,INT,QUIT", "timeout", "--signal=KILL", limit, binary()]);
        command.args(arguments);
        command.env("TMPDIR", self.base()).env_remove("TAMEIKE_JOB");
        command
    }

    /// `tameike run --local NODES --shared DIR [OPTIONS] -- sh -euc SCRIPT`, with the binary on the PATH.
    pub fn job(&self, nodes: u32, options: &[&str], script: &str) -> Command {
        let nodes = nodes.to_string();
        let shared = self.shared();
        let mut arguments = vec!["run", "--local", &nodes, "--shared", shared.to_str().expect("plain path")];
        let says = ["--preload", "--no-ring"].map(|option| options.contains(&option));
        if says == [false, false] && preload::is_wanted() {
            arguments.push("--preload");
        }
        if says[0] || preload::is_wanted() {
            preload::install();
        }
        arguments.extend(options);
        arguments.extend(["--", "sh", "-euc", script]);
        let mut command = self.tameike(&arguments);
        let directory = Path::new(binary()).parent().expect("the binary has a parent");
        command.env("PATH", format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default()));
        command
    }

    /// Runs a job that must succeed; returns its output.
    pub fn run(&self, nodes: u32, script: &str) -> String {
        succeed(&mut self.job(nodes, &[], script))
    }

    /// Panics if a job of this test has left a mount, a process, or a file other than `kept`.
    pub fn assert_clean(&self) {
        let base = self.base();
        let base = base.to_str().expect("plain path");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
        let left: Vec<_> = mounts.lines().filter(|line| line.contains(base)).collect();
        assert!(left.is_empty(), "mounts left: {left:#?}");
        assert_eq!(processes_naming(base), Vec::<String>::new(), "processes left");
        // The user's directory stays, with the lock that serializes starts of jobs.
        let mut left = files_below(&self.base());
        left.retain(|path| path.is_file() && !path.ends_with("lock"));
        assert!(left.is_empty(), "files left: {left:#?}");
    }
}

pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_tameike")
}

/// Runs a command that must succeed; returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}\n{}", shown(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Status and output of a command, for assertion messages.
pub fn shown(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n--- stdout\n{out}\n--- stderr\n{err}", output.status)
}

/// Command lines of processes whose environment or command line contains `text`.
pub fn processes_naming(text: &str) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let named = line.contains(text) || String::from_utf8_lossy(&environment).contains(text);
            (named && !line.is_empty()).then_some(line)
        })
        .collect()
}

pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .flat_map(|entry| {
            let mut found = vec![entry.path()];
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(files_below(&entry.path()));
            }
            found
        })
        .collect()
}
