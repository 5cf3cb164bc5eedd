//! A Tameike job of several agents on this machine, each with its data in memory.

use crate::outcome::{Context, Outcome};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A job that is up.
#[derive(Debug)]
pub struct Job {
    program: PathBuf,
    name: String,
    /// The shared directory behind it, which the measurements do not touch.
    shared: Option<TempDir>,
}

impl Job {
    /// Starts a job of `nodes` agents with `program`.
    pub fn start(program: &Path, nodes: u32) -> Outcome<Self> {
        let shared = tempfile::Builder::new().prefix("tameike-bench-").tempdir_in("/dev/shm");
        let shared = shared.context(|| "make a directory in /dev/shm")?;
        let directory = shared.path().display().to_string();
        let name = format!("bench-{}", std::process::id());
        // From here on `down` is owed, also when `up` fails half-way.
        let job = Self { program: program.to_owned(), name, shared: Some(shared) };
        let nodes = nodes.to_string();
        job.call(&["up", "--job", &job.name, "--local", &nodes, "--device", "ram", "--shared", &directory])?;
        Ok(job)
    }

    /// The command that starts a process on node `{node}`.
    pub fn launcher(&self) -> Vec<String> {
        let program = self.program.display().to_string();
        [&program, "exec", "--job", &self.name, "--node", "{node}", "--"].map(str::to_owned).to_vec()
    }

    /// Takes it down; a second call does nothing.
    pub fn stop(&mut self) -> Outcome<()> {
        match self.shared.take() {
            Some(shared) => {
                self.call(&["down", "--job", &self.name])?;
                shared.close().context(|| "remove the shared directory of the job")
            }
            None => Ok(()),
        }
    }

    fn call(&self, arguments: &[&str]) -> Outcome<()> {
        let what = format!("{} {}", self.program.display(), arguments.join(" "));
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context(|| format!("start {what}"))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(format!("{what} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr)))
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Err(message) = self.stop() {
            eprintln!("tameike-bench: {message}");
        }
    }
}

/// Name and version of `program`.
pub fn version(program: &Path) -> Outcome<String> {
    super::version_of(program)
}
