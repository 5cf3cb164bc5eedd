//! The driver of a background job: `up` starts it, `down` or a signal ends it. Or that of a volume.

use super::Driver;
use super::event::Notice;
use super::run::start_job;
use super::start_volume::{start_existing, start_next};
use crate::exit;
use crate::place::volume::VolumeRecord;
use crate::report;
use crate::settings::JobPlan;
use crate::settings::volume::VolumeName;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, Write};
use tameike_agent::control::AgentControl;
use tameike_core::{Fault, JobId, Result};

/// The line that a supervisor reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupervisedStart {
    /// Run a job with this plan.
    Job(Box<JobPlan>),
    /// Serve this volume.
    Volume(VolumeName),
    /// Serve the volume of this record, whose last driver has failed.
    NextDriver(Box<VolumeRecord>),
}

/// The line that a supervisor prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supervised {
    /// The job is ready.
    Ready(JobId),
    /// The job could not start.
    Failed(Fault),
}

/// Reads what to start from standard input, and runs it until it ends. Returns the exit code.
pub fn supervise<A: AgentControl>() -> u8 {
    let started = read_start().and_then(|start| match start {
        SupervisedStart::Job(plan) => start_job::<A>(*plan),
        SupervisedStart::Volume(name) => start_existing::<A>(&name),
        SupervisedStart::NextDriver(record) => start_next(*record),
    });
    let started = started.and_then(|driver| {
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
        Ok(driver) if driver.volume.is_some() => {
            let faults = driver.serve_volume::<A>();
            faults.iter().for_each(|fault| report::say(format_args!("{fault}")));
            if faults.is_empty() { 0 } else { exit::FAILED }
        }
        Ok(driver) => until_down::<A>(driver),
        Err(_) => exit::FAILED,
    }
}

fn read_start() -> Result<SupervisedStart> {
    let mut line = String::new();
    let failed = |error| Fault::from_os("reading what to start", &error);
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
            | Notice::Mirrored
            | Notice::Superseded(_)
            | Notice::TimedOut => {}
        }
    };
    let deadline = client.is_none().then(|| driver.grace_deadline());
    driver.end_commands();
    let ended = driver.drain_and_end::<A>(verify, deadline, client.into_iter().collect(), None);
    if ended.is_complete { 0 } else { exit::DRAIN_INCOMPLETE }
}
