//! A Tameike job of several agents on this machine, each with a device in memory.

use crate::outcome::{Context, Outcome};
use crate::servers::Servers;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

#[derive(Debug)]
pub struct Job {
    program: PathBuf,
    name: String,
    agents: Servers,
    /// The shared directory below its cache view.
    shared: Option<TempDir>,
}

impl Job {
    /// Starts a job of `nodes` agents with `program`; its name contains that of the target.
    pub fn start(program: &Path, target: &str, nodes: u32) -> Outcome<Self> {
        let shared = tempfile::Builder::new().prefix("tameike-bench-").tempdir_in("/dev/shm");
        let shared = shared.context(|| "make a directory in /dev/shm")?;
        let directory = shared.path().display().to_string();
        let name = format!("bench-{}-{target}", std::process::id());
        // From here on the drop runs `down`, also if `up` fails.
        let mut job =
            Self { program: program.to_owned(), name, agents: Servers::default(), shared: Some(shared) };
        let nodes = nodes.to_string();
        job.call(&["up", "--job", &job.name, "--local", &nodes, "--device", "ram", "--shared", &directory])?;
        job.agents = agents(&job.call(&["status", "--job", &job.name, "--json"])?)?;
        Ok(job)
    }

    pub fn servers(&self) -> Servers {
        self.agents.clone()
    }

    /// The command that starts a process on node `{node}`, with these options of `exec`.
    pub fn launcher(&self, options: &[&str]) -> Vec<String> {
        let program = self.program.display().to_string();
        let exec = [&program, "exec", "--job", &self.name, "--node", "{node}"];
        [&exec, options, &["--"]].concat().into_iter().map(str::to_owned).collect()
    }

    /// Stops the job. A second call does nothing.
    pub fn stop(&mut self) -> Outcome<()> {
        match self.shared.take() {
            Some(shared) => {
                self.call(&["down", "--job", &self.name])?;
                shared.close().context(|| "remove the shared directory of the job")
            }
            None => Ok(()),
        }
    }

    /// The output of the program with these arguments.
    fn call(&self, arguments: &[&str]) -> Outcome<Vec<u8>> {
        let what = format!("{} {}", self.program.display(), arguments.join(" "));
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context(|| format!("start {what}"))?;
        match output.status.success() {
            true => Ok(output.stdout),
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

/// The agent processes in the output of `status --json` for one job.
fn agents(status: &[u8]) -> Outcome<Servers> {
    let jobs: Value = serde_json::from_slice(status).context(|| "parse the state of the job")?;
    let nodes = jobs[0]["running"]["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let processes = nodes.iter().map(|node| u32::try_from(node["status"]["pid"].as_u64()?).ok());
    match processes.collect::<Option<Vec<u32>>>() {
        Some(processes) if !processes.is_empty() => Ok(Servers::new(processes)),
        _ => Err(format!("the job is running, but its state lists no agents: {jobs}")),
    }
}

pub fn version(program: &Path) -> Outcome<String> {
    super::version_of(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_parsed_from_the_state_of_a_job_and_missing_ones_are_errors() {
        let state = |second: &str| {
            format!(r#"[{{"running":{{"job":"a","nodes":[{{"node":0,"status":{{"pid":77}}}},{second}]}}}}]"#)
        };
        let found = agents(state(r#"{"node":1,"status":{"pid":78}}"#).as_bytes()).expect("two agents");
        assert_eq!(format!("{found:?}"), "Servers([77, 78])");
        for bad in
            [state(r#"{"node":1,"status":null}"#), r#"[{"cut-off":{"job":"a"}}]"#.to_owned(), "[]".to_owned()]
        {
            assert!(agents(bad.as_bytes()).expect_err(&bad).contains("no agents"));
        }
    }
}
