//! `tameike recover`: the drain of jobs that were cut off, finished from the journals of their nodes.

use super::{Driver, Starting};
use crate::arguments::RecoverArguments;
use crate::exit;
use crate::place::base::{self, Base, JobDir};
use crate::place::janitor;
use crate::place::record::{JobRecord, JobState};
use crate::report;
use std::path::PathBuf;
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode};
use tameike_core::{Errno, Fault, JobId, Result};

/// How long agents of a job whose driver was killed may take to end.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Recovers the named job, or all of this user on this host. Returns the exit code: the worst of all jobs'.
pub fn recover<A: AgentControl>(arguments: &RecoverArguments) -> u8 {
    let base = Base::open(&base::path());
    let jobs = base.and_then(|base| Ok((cut_off::<A>(&base, arguments.job.as_ref())?, base)));
    let (jobs, base) = match jobs {
        Ok(found) => found,
        Err(fault) => {
            report::say(format_args!("{fault}"));
            return exit::FAILED;
        }
    };
    if jobs.is_empty() {
        report::say(format_args!("nothing to recover: no job of yours on this host was cut off"));
    }
    let recover_one = |job: &JobId| {
        let code = match recover_job::<A>(&base, job, arguments) {
            Ok(true) => return 0,
            Ok(false) => exit::DRAIN_INCOMPLETE,
            Err(fault) => {
                report::say(format_args!("recovering job {job}: {fault}"));
                exit::FAILED
            }
        };
        if arguments.discard {
            match janitor::discard_job(&base, job) {
                Ok(()) => report::say(format_args!("job {job}: its journals on this host are removed")),
                Err(fault) => report::say(format_args!("removing the journals of job {job}: {fault}")),
            }
        }
        code
    };
    jobs.iter().map(recover_one).max().unwrap_or(0)
}

/// The jobs to recover: first whatever holds nothing is swept, and what is kept needs recovery.
fn cut_off<A: AgentControl>(base: &Base, job: Option<&JobId>) -> Result<Vec<JobId>> {
    janitor::await_orphans(base, END_LIMIT)?;
    let kept: Vec<_> = janitor::sweep::<A>(base)?.into_iter().map(|kept| kept.job).collect();
    let Some(job) = job else { return Ok(kept) };
    if kept.contains(job) {
        return Ok(vec![job.clone()]);
    }
    if base.jobs()?.contains(job) {
        let message = format!("job {job} is still running; `tameike drain --job {job}` drains it");
        return Err(Fault::new(Errno::EBUSY, message));
    }
    report::say(format_args!("job {job} has left nothing on this host"));
    Ok(Vec::new())
}

fn recover_job<A: AgentControl>(base: &Base, job: &JobId, arguments: &RecoverArguments) -> Result<bool> {
    let busy = || Fault::new(Errno::EBUSY, "somebody else recovers it now");
    let lock = base.lock()?;
    let job_dir = JobDir::take_dead(base, &lock, job)?.ok_or_else(busy)?;
    let none = || {
        let message = format!(
            "its record is not on this host: run `tameike recover --job {job}` where the job was started"
        );
        Fault::new(Errno::ENOENT, message)
    };
    let old = JobRecord::read(job_dir.path())?.ok_or_else(none)?;
    let started = old.started;
    let record = JobRecord { state: JobState::CutOff, started, ..JobRecord::new(old.plan)? };
    job_dir.revive()?;
    drop(lock);
    let mut driver =
        Driver::start(Starting { base: base.clone(), job_dir, record, mode: AgentMode::Recover })?;
    driver.open_door()?;
    let nodes = driver.links.len();
    report::say(format_args!("job {job}: {nodes} {} back", report::plural(nodes, "node")));
    let drained = driver.drain(arguments.verify || driver.record.plan.verify, None, &[]);
    let receipt: Option<&PathBuf> = arguments.receipt.as_ref();
    Ok(driver.end_after_drain::<A>(&drained, receipt))
}
