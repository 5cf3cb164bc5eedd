//! A Tameike job of several agents on this machine, each with its data in memory.

use crate::outcome::{Context, Outcome, output_of};
use crate::servers::Servers;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A job that is up, or that a turn has ended.
#[derive(Debug)]
pub struct Job {
    program: PathBuf,
    name: String,
    /// Arguments of `up` beside the name.
    arguments: Vec<String>,
    agents: Servers,
    is_up: bool,
    /// The shared directory behind its cache view.
    shared: Option<TempDir>,
}

impl Job {
    /// Starts a job of `nodes` agents with `program` and these options of `up`, over a new directory in `parent`.
    pub fn start(program: &Path, target: &str, nodes: u32, parent: &Path, options: &[&str]) -> Outcome<Self> {
        let shared = tempfile::Builder::new().prefix("tameike-bench-").tempdir_in(parent);
        let shared = shared.context(|| format!("make a directory in {}", parent.display()))?;
        let (directory, nodes) = (shared.path().display().to_string(), nodes.to_string());
        // Names of jobs have 32 characters at most.
        let target = target.strip_prefix("tameike-").unwrap_or(target);
        let words = ["--local", &nodes, "--device", "ram", "--shared", &directory];
        let mut job = Self {
            program: program.to_owned(),
            name: format!("bench-{}-{target}", std::process::id()),
            arguments: words.iter().chain(options).map(|&word| word.to_owned()).collect(),
            agents: Servers::default(),
            is_up: false,
            shared: Some(shared),
        };
        job.up()?;
        Ok(job)
    }

    /// Starts it, unless it is up.
    pub fn up(&mut self) -> Outcome<()> {
        // `down` cleans up also after an `up` that failed half-way.
        if !std::mem::replace(&mut self.is_up, true) {
            let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
            self.call(&[&["up", "--job", &self.name][..], &arguments].concat())?;
            self.agents = agents(&self.call(&["status", "--job", &self.name, "--json"])?)?;
        }
        Ok(())
    }

    /// Drains and ends it, unless it has ended.
    pub fn down(&mut self) -> Outcome<()> {
        match std::mem::take(&mut self.is_up) {
            true => self.call(&["down", "--job", &self.name]).map(drop),
            false => Ok(()),
        }
    }

    /// Name and version of its program.
    pub fn version(&self) -> Outcome<String> {
        super::version_of(&self.program)
    }

    /// The directory behind its cache view.
    pub fn shared(&self) -> &str {
        self.arguments.iter().skip_while(|word| *word != "--shared").nth(1).map_or("", String::as_str)
    }

    /// Its agents.
    pub fn servers(&self) -> Servers {
        self.agents.clone()
    }

    /// The command that starts a process on node `{node}`, with these options of `exec`.
    pub fn launcher(&self, options: &[&str]) -> Vec<String> {
        let program = self.program.display().to_string();
        let exec = [&program, "exec", "--job", &self.name, "--node", "{node}"];
        [&exec, options, &["--"]].concat().into_iter().map(str::to_owned).collect()
    }

    /// Ends it, and removes its shared directory; a second call does nothing.
    pub fn stop(&mut self) -> Outcome<()> {
        self.down()?;
        self.shared.take().map_or(Ok(()), TempDir::close).context(|| "remove the shared directory of the job")
    }

    /// Runs the program, and returns its output.
    fn call(&self, arguments: &[&str]) -> Outcome<String> {
        output_of(Command::new(&self.program).args(arguments), "")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Err(message) = self.stop() {
            eprintln!("tameike-bench: {message}");
        }
    }
}

/// The process of each agent, from the output of `status --json`.
fn agents(status: &str) -> Outcome<Servers> {
    let jobs: Value = serde_json::from_str(status).context(|| "understand the state of the job")?;
    let nodes = jobs[0]["running"]["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let processes = nodes.iter().map(|node| u32::try_from(node["status"]["pid"].as_u64()?).ok());
    match processes.collect::<Option<Vec<u32>>>() {
        Some(processes) if !processes.is_empty() => Ok(Servers::new(processes)),
        _ => Err(format!("the job is up, but its state names no agents: {jobs}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_found_in_the_state_of_a_job_unless_one_does_not_answer() {
        let state = |second: &str| {
            format!(r#"[{{"running":{{"job":"a","nodes":[{{"node":0,"status":{{"pid":77}}}},{second}]}}}}]"#)
        };
        let found = agents(&state(r#"{"node":1,"status":{"pid":78}}"#)).expect("two agents");
        assert_eq!(format!("{found:?}"), "Servers([77, 78])");
        for bad in [
            state(r#"{"node":1,"status":null}"#),
            r#"[{"interrupted":{"job":"a"}}]"#.to_owned(),
            "[]".to_owned(),
        ] {
            assert!(agents(&bad).expect_err(&bad).contains("no agents"));
        }
    }
}
