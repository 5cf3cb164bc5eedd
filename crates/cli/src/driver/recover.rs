//! `tameike recover`: finishes the drain of interrupted jobs from the journals of their nodes.

use super::Driver;
use super::run::Ended;
use super::start::Starting;
use crate::arguments::RecoverArguments;
use crate::exit;
use crate::place::base::{self, Base, JobDir};
use crate::place::janitor::{self, Kept};
use crate::place::record::{JobRecord, JobState};
use crate::place::stores::{self, Store};
use crate::report::{self, plural};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode};
use tameike_core::{Errno, Fault, JobId, Result};
use tameike_io::os::process::{wait_ended, wall_seconds};

/// Time for a killed driver to exit.
const KILLED_DRIVER_LIMIT: Duration = Duration::from_secs(1);
/// Time for agents to exit after their driver was killed.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Recovers the named job, or all of this user on this host. Returns the largest exit code.
pub fn recover<A: AgentControl>(arguments: &RecoverArguments) -> u8 {
    let arguments = &RecoverArguments { to: arguments.to.as_ref().map(absolute), ..arguments.clone() };
    let (jobs, mut code) = match find_jobs::<A>(arguments) {
        Ok(found) => found,
        Err(fault) => {
            report::say(format_args!("{fault}"));
            return exit::FAILED;
        }
    };
    if jobs.is_empty() && code == 0 && arguments.job.is_none() {
        report::say(format_args!("nothing to recover: this user has no interrupted job on this host"));
    }
    for (base, kept) in &jobs {
        code = code.max(recover_one::<A>(base, kept, arguments));
    }
    code
}

/// Makes a path absolute for agents, whose working directory differs.
fn absolute(dir: &PathBuf) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.clone())
}

fn recover_one<A: AgentControl>(base: &Base, kept: &Kept, arguments: &RecoverArguments) -> u8 {
    let job = &kept.job;
    if kept.is_strays_alone() {
        report::say(format_args!("{}", kept.describe()));
        return exit::DRAIN_INCOMPLETE;
    }
    if is_all_lost(base, kept) {
        return report_lost(base, kept);
    }
    report::say(format_args!("{}", kept.state()));
    let code = match recover_job::<A>(base, job, arguments) {
        Ok(Ended { is_complete: true, is_kept, .. }) => return if is_kept { 0 } else { exit::FAILED },
        Ok(Ended { is_complete: false, .. }) => exit::DRAIN_INCOMPLETE,
        Err(fault) => {
            report::say(format_args!("recovering job {job}: {fault}"));
            exit::FAILED
        }
    };
    if arguments.discard && base.job_path(job).exists() {
        match janitor::discard_job(base, job) {
            Ok(()) => report::say(format_args!("job {job}: its journals on this host are removed")),
            Err(fault) => report::say(format_args!("removing the journals of job {job}: {fault}")),
        }
    }
    code
}

/// Returns true if the job has lost data, and nothing of it can be drained on any host.
fn is_all_lost(base: &Base, kept: &Kept) -> bool {
    let here = |record: JobRecord| !record.has_other_hosts();
    let record = JobRecord::read(&base.job_path(&kept.job));
    !kept.lost.is_empty()
        && kept.left.is_nothing()
        && kept.faults.is_empty()
        && record.is_ok_and(|record| record.is_some_and(here))
}

/// Reports what is lost, and removes the rest of the job.
fn report_lost(base: &Base, kept: &Kept) -> u8 {
    let job = &kept.job;
    kept.lost.iter().for_each(|lost| report::say(format_args!("job {job}: {lost}")));
    if let Ok(Some(record)) = JobRecord::read(&base.job_path(job)) {
        let dir = record.plan.shared_dir.as_deref().unwrap_or(Path::new("?")).display();
        let minutes = (wall_seconds() - record.started) / 60;
        let nodes = record.plan.nodes.len();
        report::say(format_args!(
            "job {job} (of {nodes} {}, started {minutes} minutes ago): nothing can be recovered. Of its data in \
             the cache view of {dir}, only what was flushed before exists: look for files that are missing, \
             short or partly zero",
            plural(nodes, "node")
        ));
    }
    match janitor::discard_job(base, job) {
        Ok(()) => report::say(format_args!("job {job}: its records on this host are removed")),
        Err(fault) => report::say(format_args!("removing the records of job {job}: {fault}")),
    }
    exit::DRAIN_INCOMPLETE
}

/// Returns the jobs to recover, each with its directory for jobs, and the exit code so far. Stores without a job directory get
/// one first. Then jobs without dirty data are removed; the rest needs recovery.
fn find_jobs<A: AgentControl>(arguments: &RecoverArguments) -> Result<(Vec<(Base, Kept)>, u8)> {
    report::receipt::check_place(arguments.receipt.as_deref())?;
    let today = Base::open(&base::path())?;
    let dirs = stores::search_dirs(&arguments.device)?;
    let roots = stores::roots(&today, &dirs)?;
    let wanted = arguments.job.as_ref();
    let mut code = 0;
    for (job, orphaned) in stores::orphaned(&stores::find(&roots)) {
        if wanted.is_some_and(|wanted| *wanted != job) || !can_adopt::<A>(&orphaned) {
            continue;
        }
        if let Err(fault) = today.lock().and_then(|lock| stores::adopt(&today, &lock, &orphaned)) {
            report::say(format_args!("job {job}: {fault}"));
            code = exit::FAILED;
        }
    }
    let mut jobs = Vec::new();
    let (mut existed, mut runs) = (false, false);
    for base in stores::bases(&today, &stores::find(&roots)) {
        let exists = || wanted.is_some_and(|job| base.job_path(job).exists());
        existed |= exists();
        let kept = base.unless_gone(interrupted_jobs::<A>(&base, wanted))?;
        runs |= kept.is_empty() && exists();
        jobs.extend(kept.into_iter().map(|kept| (base.clone(), kept)));
    }
    if let (Some(job), true) = (wanted, jobs.is_empty() && code == 0) {
        if runs {
            let message = format!("job {job} is still running; `tameike drain --job {job}` drains it");
            return Err(Fault::new(Errno::EBUSY, message));
        }
        let state = if existed {
            "ended and left nothing that the shared file system lacks: its records on this host are removed"
        } else {
            "has no leftovers on this host"
        };
        report::say(format_args!("job {job} {state}"));
    }
    Ok((jobs, code))
}

/// Returns true if no process has these stores open. An unused store may belong to a starting job whose directory is not
/// visible here: its agent must have exited.
fn can_adopt<A: AgentControl>(stores: &[&Store]) -> bool {
    stores.iter().all(|store| {
        let is_busy = || A::inspect(&store.dir).is_err_and(|fault| fault.errno == Errno::EBUSY);
        if store.is_unused() { store.owner.is_gone() } else { !is_busy() }
    })
}

/// Returns the interrupted jobs of a directory for jobs, or only `job`.
fn interrupted_jobs<A: AgentControl>(base: &Base, job: Option<&JobId>) -> Result<Vec<Kept>> {
    if let Some(record) = job.and_then(|job| JobRecord::read(&base.job_path(job)).ok().flatten()) {
        wait_ended(&[record.driver()], KILLED_DRIVER_LIMIT);
    }
    janitor::await_orphans(base, job, END_LIMIT)?;
    janitor::sweep::<A>(base, job)
}

fn recover_job<A: AgentControl>(base: &Base, job: &JobId, arguments: &RecoverArguments) -> Result<Ended> {
    let busy = || Fault::new(Errno::EBUSY, "another process recovers it now");
    let lock = base.lock()?;
    let job_dir = JobDir::lock_ended(base, &lock, job)?.ok_or_else(busy)?;
    let none = || {
        let message = format!(
            "its record is not on this host: run `tameike recover --job {job}` where the job was started"
        );
        Fault::new(Errno::ENOENT, message)
    };
    let old = JobRecord::read(job_dir.path())?.ok_or_else(none)?;
    let started = old.started;
    let JobRecord { unknown, map, founders, gone, plan, .. } = old;
    let new = JobRecord::new(plan)?;
    let record = JobRecord { state: JobState::Interrupted, started, unknown, map, founders, gone, ..new };
    job_dir.revive()?;
    drop(lock);
    let mut driver = Driver::start(Starting {
        base: base.clone(),
        job_dir,
        record,
        mode: AgentMode::Recover,
        volume: None,
    })?;
    driver.open_socket()?;
    let nodes = driver.links.len();
    report::say(format_args!("job {job}: {nodes} {} back", report::plural(nodes, "node")));
    let verify = arguments.verify || driver.record.plan.verify;
    let mut drained = driver.drain(verify, None, &[]);
    if let Some(dir) = arguments.to.as_deref().filter(|_| !drained.is_complete && !drained.cancelled) {
        let saved = driver.save_orphaned(dir);
        drained = driver.drain(verify, None, &[]);
        drained.is_complete &= saved.is_drained();
        drained.receipt.merge(saved);
    }
    Ok(driver.end_after_drain::<A>(&drained, None, arguments.receipt.as_deref()))
}
