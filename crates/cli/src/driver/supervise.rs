//! The driver of a background job: `up` starts it, `down` or a signal ends it.

use super::Driver;
use super::event::Notice;
use super::run::start_job;
use crate::exit;
use crate::report;
use crate::settings::JobPlan;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, Write};
use tameike_agent::control::AgentControl;
use tameike_core::{Fault, JobId, Result};

/// The line that a supervisor prints for `up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supervised {
    /// The job is ready.
    Ready(JobId),
    /// The job could not start.
    Failed(Fault),
}

/// Reads a plan from standard input, and runs its job until it ends. Returns the exit code.
pub fn supervise<A: AgentControl>() -> u8 {
    let started = read_plan().and_then(start_job::<A>).and_then(|driver| {
        redirect_messages(&driver)?;
        Ok(driver)
    });
    let state = match &started {
        Ok(driver) => Supervised::Ready(driver.record.plan.job.clone()),
        Err(fault) => Supervised::Failed(fault.clone()),
    };
    let line = serde_json::to_string(&state).expect("plain data");
    // If `up` was interrupted, the job runs nevertheless, and `status` shows it.
    let _ = writeln!(std::io::stdout(), "{line}");
    match started {
        Ok(driver) => until_down::<A>(driver),
        Err(_) => exit::FAILED,
    }
}

fn read_plan() -> Result<JobPlan> {
    let mut line = String::new();
    let failed = |error| Fault::from_os("reading the job's plan", &error);
    std::io::stdin().lock().read_line(&mut line).map_err(failed)?;
    serde_json::from_str(&line).map_err(|error| failed(error.into()))
}

/// Redirects messages to a file in the job's directory, because there is no terminal.
fn redirect_messages(driver: &Driver) -> Result<()> {
    let path = driver.job_dir.path().join("supervisor.log");
    let failed = |error| Fault::from_os(format_args!("making {}", path.display()), &error);
    let file = File::create(&path).map_err(failed)?;
    rustix::stdio::dup2_stderr(&file).map_err(|error| failed(error.into()))
}

fn until_down<A: AgentControl>(mut driver: Driver) -> u8 {
    let (verify, client) = loop {
        match driver.next(None) {
            Notice::Signal(arrived) => {
                report::say(format_args!("signal {}: draining and ending", arrived.signal));
                break (driver.record.plan.verify, None);
            }
            Notice::Down { verify, reply } => {
                break (verify || driver.record.plan.verify, Some(reply));
            }
            Notice::AgentLost(node) => driver.report_lost_agent(node),
            Notice::Message(text) => report::say(format_args!("{text}")),
            Notice::Gathered
            | Notice::AgentEnded
            | Notice::Progress(_)
            | Notice::CommandEnded(_)
            | Notice::TimedOut => {}
        }
    };
    let deadline = client.is_none().then(|| driver.grace_deadline());
    driver.end_commands();
    let ended = driver.drain_and_end::<A>(verify, deadline, client.into_iter().collect(), None);
    if ended.is_complete { 0 } else { exit::DRAIN_INCOMPLETE }
}
