//! `tameike up` and `tameike volume start`: start a supervisor that is detached from the terminal, and wait until its job is ready.

use super::mount::mount;
use crate::arguments::{JobChoice, JobOptions};
use crate::driver::{Supervised, SupervisedStart};
use crate::report;
use crate::settings::JobPlan;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tameike_core::{Fault, JobId, Result};
use tameike_io::os::process::detach;

/// Starts the job and prints its name and views. Returns the exit code.
pub fn up(options: &JobOptions) -> u8 {
    let plan = JobPlan::new(options, false);
    let started = plan.and_then(|plan| supervise(&SupervisedStart::Job(Box::new(plan))));
    report::exit_code(started.map(|job| {
        println!("{job}");
        mount(&JobChoice { job: Some(job) })
    }))
}

/// Starts a supervisor, and returns its job when that is ready.
pub fn supervise(what: &SupervisedStart) -> Result<JobId> {
    let failed = |error| Fault::from_os("starting the job's supervisor", &error);
    let mut command = Command::new("/proc/self/exe");
    // A background job must not keep the current directory busy.
    command.arg0("tameike").arg("supervise").current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = detach(&mut command).spawn().map_err(failed)?;
    let mut line = serde_json::to_vec(what).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&line).map_err(failed)?;
    }
    let mut answer = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut answer).map_err(failed)?;
    }
    let state = serde_json::from_str(&answer)
        .map_err(|_| Fault::io("the job's supervisor exited without a reply; see the messages above"))?;
    match state {
        Supervised::Ready(job) => Ok(job),
        Supervised::Failed(fault) => Err(fault),
    }
}
