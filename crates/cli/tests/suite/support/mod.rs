//! Directories of one test: shared directory, base directory for jobs, and the real binary.

pub mod interactive;
pub mod jobs;
pub mod mounts;
pub mod preload;
pub mod programs;
pub mod promises;
pub mod sandbox;
pub mod small_disk;
pub mod spooled;
pub mod trial;
pub mod volume;

use jobs::{kill_programs, wait_for};
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

/// Directories of one test. When dropped, it checks that the jobs of the test have left nothing.
pub struct Site {
    dir: TempDir,
    shared: PathBuf,
    plain: PathBuf,
    disk: PathBuf,
    base: PathBuf,
}

impl Site {
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("tk").expect("a directory");
        let [shared, plain, disk, base] = ["shared", "plain", "disk", "tmp"].map(|name| {
            let path = dir.path().join(name);
            fs::create_dir(&path).expect("a directory");
            path
        });
        Self { dir, shared, plain, disk, base }
    }

    pub fn shared(&self) -> &Path {
        &self.shared
    }

    /// A directory outside of jobs, for comparison.
    pub fn plain(&self) -> &Path {
        &self.plain
    }

    /// A directory as a node's disk: the agent serves the node-local view of a job with this device, and the kernel serves that of
    /// one in memory.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The directory for the test's jobs.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Stores a Python program; returns the command line that runs it.
    pub fn python(&self, program: &str) -> String {
        let path = self.dir.path().join("program.py");
        fs::write(&path, program).expect("written");
        format!("python3 {}", path.display())
    }

    /// The binary with these arguments, killed after a time limit.
    pub fn tameike(&self, arguments: &[&str]) -> Command {
        // A test in the background inherits ignored terminal signals, and the job would inherit them too.
        let mut command = Command::new("env");
        let limit = if is_soak() { SOAK_COMMAND_LIMIT_SECONDS } else { COMMAND_LIMIT_SECONDS };
        command.args(["--default-signal=HUP,INT,QUIT", "timeout", "--signal=KILL", limit, binary()]);
        command.args(arguments);
        command.env("TMPDIR", &self.base).env_remove("TAMEIKE_JOB");
        command
    }

    /// `tameike run --local NODES --shared DIR [OPTIONS] -- sh -euc SCRIPT`, with the binary on the PATH.
    pub fn job(&self, nodes: u32, options: &[&str], script: &str) -> Command {
        let nodes = nodes.to_string();
        let mut arguments = vec!["run", "--shared", utf8(&self.shared)];
        if !options.contains(&"--hostfile") {
            arguments.extend(["--local", &nodes]);
        }
        let [preloads, has_no_ring] = ["--preload", "--no-ring"].map(|option| options.contains(&option));
        if !preloads && !has_no_ring && preload::is_wanted() {
            arguments.push("--preload");
        }
        if preloads || preload::is_wanted() {
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

    /// Waits until no process of the test's jobs is left.
    pub fn await_processes(&self) {
        wait_for("the end of all processes", || processes_naming(utf8(&self.base)).is_empty().then_some(()));
    }

    /// Kills all processes of the test's jobs.
    pub fn kill_processes(&self) {
        wait_for("the end of all processes", || {
            kill_programs(utf8(&self.base));
            processes_naming(utf8(&self.base)).is_empty().then_some(())
        });
    }

    /// Panics if a job of this test has left a mount, a process or a file.
    pub fn assert_clean(&self) {
        let base = utf8(&self.base);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
        let left: Vec<_> = mounts.lines().filter(|line| line.contains(base)).collect();
        assert!(left.is_empty(), "mounts left: {left:#?}");
        assert_eq!(processes_naming(base), Vec::<String>::new(), "processes left");
        assert_no_files(&self.base);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_clean();
        }
    }
}

/// Panics if jobs have left a file below a directory. The user's directory stays, with the lock that serializes starts of jobs.
pub fn assert_no_files(base: &Path) {
    let mut left = files_below(base);
    left.retain(|path| path.is_file() && !path.ends_with("lock"));
    assert!(left.is_empty(), "files left: {left:#?}");
}

pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_tameike")
}

pub trait Run {
    /// Runs the command, which must exit with `code`.
    fn exits(&mut self, code: i32) -> Output;
}

impl Run for Command {
    #[track_caller]
    fn exits(&mut self, code: i32) -> Output {
        let output = self.output().expect("the command starts");
        assert_eq!(output.status.code(), Some(code), "{self:?}\n{}", shown(&output));
        output
    }
}

/// Runs a command that must succeed; returns its standard output.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    out(&command.exits(0))
}

/// Checks the exit code, and shows all output if it differs.
#[track_caller]
pub fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", shown(output));
}

/// Panics if a text lacks one of these parts.
#[track_caller]
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Standard output of a command.
pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error of a command.
pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Status and output of a command, for assertion messages.
pub fn shown(output: &Output) -> String {
    format!("{}\n--- stdout\n{}\n--- stderr\n{}", output.status, out(output), err(output))
}

/// A path as an argument.
pub fn utf8(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

/// The command as argument of another program, with the same variables.
pub fn wrapped(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// Returns true if tests can act as several users; else it prints that the test is skipped.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not tested: acting as another user or mounting requires root");
    }
    is_root
}

/// Path of a program of these tests.
pub fn helper(name: &str) -> String {
    format!("{}/tests/suite/support/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Reads a JSON document.
pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("a document")).expect("JSON")
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
