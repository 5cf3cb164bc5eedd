//! The driver of a background job: started by `up`, ended by `down` or a signal.

use super::Driver;
use super::event::Notice;
use super::protocol::DriverReply;
use super::run::start_job;
use crate::exit;
use crate::report;
use crate::settings::JobPlan;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, Write};
use std::sync::mpsc::Sender;
use tameike_agent::control::AgentControl;
use tameike_core::{Fault, JobId, Result};

/// The one line that a supervisor prints, for `up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supervised {
    /// The job is ready.
    Ready(JobId),
    /// It could not start.
    Failed(Fault),
}

/// Supervises the job whose plan comes on standard input. Returns the exit code.
pub fn supervise<A: AgentControl>() -> u8 {
    let started = read_plan().and_then(start_job::<A>).and_then(|driver| {
        redirect_messages(&driver)?;
        Ok(driver)
    });
    let said = match &started {
        Ok(driver) => Supervised::Ready(driver.record.plan.job.clone()),
        Err(fault) => Supervised::Failed(fault.clone()),
    };
    let line = serde_json::to_string(&said).expect("plain data");
    // `up` may have been interrupted; the job is up all the same, and `status` shows it.
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

/// Messages go to a file in the job's directory from now on: there is no terminal any more.
fn redirect_messages(driver: &Driver) -> Result<()> {
    let path = driver.job_dir.path().join("supervisor.log");
    let failed = |error| Fault::from_os(format_args!("making {}", path.display()), &error);
    let file = File::create(&path).map_err(failed)?;
    rustix::stdio::dup2_stderr(&file).map_err(|error| failed(error.into()))
}

fn until_down<A: AgentControl>(mut driver: Driver) -> u8 {
    let mut asked: Option<(bool, Option<Sender<DriverReply>>)> = None;
    while asked.is_none() {
        match driver.next(None) {
            Notice::Signal(arrived) => {
                report::say(format_args!("signal {}: draining and ending", arrived.signal));
                asked = Some((driver.record.plan.verify, None));
            }
            Notice::Down { verify, reply } => {
                asked = Some((verify || driver.record.plan.verify, Some(reply)));
            }
            Notice::AgentLost(node) => driver.tell_lost(node),
            Notice::Gathered
            | Notice::AgentEnded
            | Notice::Progress(_)
            | Notice::CommandEnded(_)
            | Notice::TimedOut => {}
        }
    }
    let (verify, client) = asked.unwrap_or_default();
    let deadline = client.is_none().then(|| driver.grace_deadline());
    driver.end_commands();
    let clients: Vec<_> = client.into_iter().collect();
    let drained = driver.drain(verify, deadline, &clients);
    for client in &clients {
        // A client that went away has lost interest. Who stays sees the connection end when all is down.
        let _ = client.send(DriverReply::Receipt(drained.receipt.clone()));
    }
    let ended = driver.end_after_drain::<A>(&drained, None);
    // The connections end with the process, so that nothing of the job is left when a client sees it.
    std::mem::forget(clients);
    if ended.is_complete { 0 } else { exit::DRAIN_INCOMPLETE }
}
