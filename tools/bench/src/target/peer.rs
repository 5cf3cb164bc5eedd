//! The servers, clients and mounts of a peer file system.
//!
//! The processes are children of this program in the foreground and have all their files in one directory. They end with this program, and
//! leave an installation of the same file system on this machine alone.

use crate::outcome::{Context, Outcome, output_of};
use crate::place::Limits;
use crate::servers::Servers;
use crate::wait::{self, Process};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time until a server or mount must be ready.
pub const READY_LIMIT: Duration = Duration::from_secs(30);
/// Lines of each log in the error if a process exits.
const LINES_SHOWN: usize = 8;

/// Processes, mounts and files.
#[derive(Debug)]
pub struct Peer {
    /// For errors: the packages that have the programs.
    install: &'static str,
    /// Servers first, then their clients.
    processes: Vec<Process>,
    mounts: Vec<PathBuf>,
    state: Option<TempDir>,
    root: PathBuf,
}

impl Peer {
    /// Makes the directory in `store`. `install` names the packages that have the programs.
    pub fn new(name: &str, install: &'static str, store: &Path) -> Outcome<Self> {
        let state = tempfile::Builder::new().prefix(&format!("tameike-bench-{name}-")).tempdir_in(store);
        let state = state.context(|| format!("make a directory in {}", store.display()))?;
        let root = state.path().to_owned();
        let peer = Self { install, processes: Vec::new(), mounts: Vec::new(), state: Some(state), root };
        peer.make("log")?;
        Ok(peer)
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The same as text, for command lines and settings.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes a directory in the directory.
    pub fn make(&self, name: &str) -> Outcome<()> {
        let path = self.path(name);
        fs::create_dir(&path).context(|| format!("make {}", path.display()))
    }

    /// Writes a file in the directory.
    pub fn write(&self, name: &str, text: &str) -> Outcome<()> {
        let path = self.path(name);
        fs::write(&path, text).context(|| format!("write {}", path.display()))
    }

    /// Where the mount of a node is; `{node}` stands for its number.
    pub fn mount_template(&self) -> String {
        self.text("mount-{node}")
    }

    /// All processes.
    pub fn servers(&self) -> Servers {
        Servers::new(self.processes.iter().map(|process| process.0.id()).collect())
    }

    /// Starts a program in the foreground, until this value is dropped. Returns its process ID.
    pub fn start(&mut self, command: &mut Command, log: &str) -> Outcome<u32> {
        let process = self.start_for_now(command, log)?;
        let number = process.0.id();
        self.processes.push(process);
        Ok(number)
    }

    /// Starts a program in the foreground, until the result is dropped.
    pub fn start_for_now(&self, command: &mut Command, log: &str) -> Outcome<Process> {
        let program = command.get_program().display().to_string();
        let said = self.path(&format!("log/{log}.out"));
        let file = File::create(&said).context(|| format!("make {}", said.display()))?;
        let other = file.try_clone().context(|| format!("open {}", said.display()))?;
        // Ctrl-C of the terminal must not reach it.
        let command = command.stdin(Stdio::null()).stdout(file).stderr(other).process_group(0);
        command.spawn().map(Process).context(|| format!("start {program} {}", self.install))
    }

    /// Runs a program, which must succeed.
    pub fn call(&self, command: &mut Command) -> Outcome<()> {
        output_of(command, &format!(" {}", self.install)).map(drop)
    }

    /// Waits until `ready` returns true, and fails if a process exits.
    pub fn wait(&mut self, what: &str, limits: &Limits, ready: impl Fn() -> Outcome<bool>) -> Outcome<()> {
        wait::until(what, READY_LIMIT, || {
            limits.interrupt.check()?;
            self.all_alive()?;
            ready()
        })
    }

    /// Starts a client that mounts the file system for `node` at the end of its command line, and waits for it.
    pub fn mount(&mut self, node: u32, command: &mut Command, limits: &Limits) -> Outcome<()> {
        self.make(&format!("mount-{node}"))?;
        let mount = self.path(&format!("mount-{node}"));
        self.start(command.arg(&mount), &format!("client-{node}"))?;
        // `stop` unmounts it also if waiting fails.
        self.mounts.push(mount.clone());
        self.wait(&format!("the mount of node {node}"), limits, || is_mounted(&mount))?;
        fs::metadata(&mount).context(|| format!("stat {}", mount.display()))?;
        Ok(())
    }

    /// Returns an error with the ends of the logs if a process has exited.
    fn all_alive(&mut self) -> Outcome<()> {
        for process in &mut self.processes {
            if let Some(status) = process.status()? {
                return Err(format!("a server ended ({status}) {}:{}", self.install, self.log_tail()));
            }
        }
        Ok(())
    }

    /// The last lines of all logs.
    pub fn log_tail(&self) -> String {
        let mut said = String::new();
        for entry in fs::read_dir(self.path("log")).into_iter().flatten().flatten() {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LINES_SHOWN)..] {
                said += &format!("\n  {}: {line}", entry.file_name().display());
            }
        }
        said
    }

    /// Unmounts, ends all processes and removes all files; a second call does nothing.
    pub fn stop(&mut self) -> Outcome<()> {
        let mut outcome = Ok(());
        for mount in self.mounts.drain(..) {
            let doing = || format!("unmount {}", mount.display());
            outcome = outcome.and(match is_mounted(&mount) {
                Ok(true) => unmount(&mount, UnmountFlags::DETACH).context(doing),
                other => other.map(drop),
            });
        }
        // Clients before servers: a client without its servers waits for them.
        self.processes.drain(..).rev().for_each(drop);
        match self.state.take() {
            Some(state) => outcome.and(state.close().context(|| "remove the files of a peer")),
            None => outcome,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Err(message) = self.stop() {
            eprintln!("tameike-bench: {message}");
        }
    }
}

fn is_mounted(place: &Path) -> Outcome<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts").context(|| "read the list of mounts")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == place)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stopwatch;
    use crate::wait::Interrupt;

    fn limits() -> Limits {
        Limits { watch: Stopwatch::start(), step: READY_LIMIT, interrupt: Interrupt::default() }
    }

    #[test]
    fn all_processes_and_files_end_with_it() {
        let mut peer = Peer::new("test", "(it is always there)", Path::new("/dev/shm")).expect("a directory");
        let number = peer.start(Command::new("sleep").arg("600"), "sleep").expect("a process");
        let root = peer.root.clone();
        assert!(root.exists() && peer.servers().usage().expect("its usage").is_some());
        drop(peer);
        assert!(!root.exists());
        assert!(!Path::new(&format!("/proc/{number}")).exists());
    }

    #[test]
    fn the_error_of_a_server_that_exits_has_its_log() {
        let mut peer = Peer::new("test", "(from nowhere)", Path::new("/dev/shm")).expect("a directory");
        peer.start(Command::new("sh").args(["-c", "echo no such disk >&2; exit 3"]), "server")
            .expect("a shell");
        let message = peer.wait("the server", &limits(), || Ok(false)).expect_err("it has ended");
        for part in ["exit status: 3", "(from nowhere)", "server.out: no such disk"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(peer.call(&mut Command::new("false")).is_err());
        assert!(
            peer.start(&mut Command::new("/no/program"), "none").expect_err("not there").contains("nowhere")
        );
    }

    #[test]
    fn a_client_that_mounts_nothing_leaves_nothing_to_unmount() {
        let mut peer = Peer::new("test", "(from nowhere)", Path::new("/dev/shm")).expect("a directory");
        assert!(peer.mount(0, &mut Command::new("false"), &limits()).is_err());
        assert_eq!(peer.stop(), Ok(()));
    }
}
