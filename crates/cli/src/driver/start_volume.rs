//! Creates and starts volumes.

use super::Driver;
use super::start::Starting;
use super::succession::Succession;
use super::volume::Volume;
use crate::place::base::{self, Base, JobDir, JobDirUse};
use crate::place::janitor;
use crate::place::record::JobRecord;
use crate::place::volume::{VolumeLock, VolumeRecord, VolumeState};
use crate::settings::JobPlan;
use crate::settings::volume::VolumeName;
use crate::volume::survey::{Survey, survey};
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::ask_until;

/// Time for agents of a killed driver to end.
const ORPHANS_LIMIT: Duration = Duration::from_secs(60);
/// Time for agents to end that cannot go on, and pause between looks.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(30);
const LEFTOVERS_PAUSE: Duration = Duration::from_millis(200);

/// Creates the stores of a volume with this plan.
pub(crate) fn create<A: AgentControl>(lock: VolumeLock, plan: JobPlan) -> Result<()> {
    let record = JobRecord::new(plan)?;
    lock.write(&VolumeRecord::new(VolumeState::Creating, record.clone()))?;
    let volume = Volume::new(lock, VolumeState::Creating, Succession::default());
    let driver = start::<A>(volume, record)?;
    match driver.stop_volume::<A>() {
        faults if faults.is_empty() => Ok(()),
        faults => Err(Fault::io(faults.join("; "))),
    }
}

/// Starts the agents of a volume that has stores, or connects to them if they run and have no driver.
pub(super) fn start_existing<A: AgentControl>(name: &VolumeName) -> Result<Driver> {
    VolumeRecord::find(name)?;
    let lock = VolumeLock::take(name)?;
    let record = VolumeRecord::find(name)?;
    if record.state == VolumeState::Creating {
        let message = format!(
            "the creation of volume {name} was interrupted: remove it with `tameike volume remove {name}`, and create it again"
        );
        return Err(Fault::new(Errno::EINVAL, message));
    }
    go_on::<A>(lock, &record)
}

/// Connects to the agents of a volume whose driver has failed. The record is that of a keeper.
pub(super) fn start_next(record: VolumeRecord) -> Result<Driver> {
    let none = || Fault::new(Errno::EINVAL, "the record is not that of a volume");
    let lock = VolumeLock::take_over(&record.job.plan.volume.as_ref().ok_or_else(none)?.name)?;
    let found = survey(&record)?;
    let newest = found.newest.as_ref().map_or(&record, |(_, newest)| newest);
    if !found.starts_driver {
        let message =
            "the volume is being stopped, or most of its agents have failed: it is not started again";
        return Err(Fault::new(Errno::EHOSTDOWN, message));
    }
    adopt(&lock, newest.job.clone(), Succession::after(&found, true))
}

/// What becomes of the agents that run when a volume is started.
enum Running {
    /// They go on with this driver.
    Adopted(Box<Driver>),
    /// None runs; this is the newest record.
    Nothing(Box<(Survey, VolumeRecord)>),
}

/// Connects to the agents that run, or stops them if they are too few. `None` if they have just ended.
fn take_running(lock: &VolumeLock, known: &VolumeRecord) -> Result<Option<Running>> {
    let found = survey(known)?;
    let newest = found.newest.as_ref().map_or(known, |(_, newest)| newest).clone();
    if found.running.is_empty() {
        return Ok(Some(Running::Nothing(Box::new((found, newest)))));
    }
    let mut succession = Succession::after(&found, true);
    succession.only_stops = newest.state != VolumeState::Running || !found.has_running_majority;
    match adopt(lock, newest.job, succession) {
        Err(fault) if matches!(fault.errno, Errno::ESRCH | Errno::EHOSTDOWN) => {
            log::info!("{fault}");
            Ok(None)
        }
        adopted => adopted.map(|driver| Some(Running::Adopted(Box::new(driver)))),
    }
}

/// Goes on with the agents that run, or starts all.
fn go_on<A: AgentControl>(lock: VolumeLock, known: &VolumeRecord) -> Result<Driver> {
    let take = || take_running(&lock, known).transpose();
    let busy = || Fault::new(Errno::EBUSY, "agents of the volume run, but too few to go on, and do not end");
    let (found, newest) =
        match ask_until(LEFTOVERS_LIMIT, LEFTOVERS_PAUSE, take).unwrap_or_else(|| Err(busy()))? {
            Running::Adopted(driver) => return Ok(*driver),
            Running::Nothing(found) => *found,
        };
    let JobRecord { map, founders, gone, mut plan, .. } = newest.job;
    plan.base_dir = base::path();
    if !plan.remote_program.exists() {
        plan.remote_program = std::env::current_exe()
            .map_err(|error| Fault::from_os("finding the path of this program", &error))?;
    }
    let record = JobRecord { map, founders, gone, ..JobRecord::new(plan)? };
    // The file with the state may be older than what the keepers have.
    let was_stopped = known.state == VolumeState::Stopped && known.job.map == record.map;
    let volume = Volume::new(lock, VolumeState::Running, Succession::after(&found, false));
    let mut driver = start::<A>(volume, record)?;
    if !was_stopped {
        driver.compare_copies();
    }
    Ok(driver)
}

/// Starts all agents.
fn start<A: AgentControl>(volume: Volume, record: JobRecord) -> Result<Driver> {
    let base = Base::open(&record.plan.base_dir)?;
    let job = record.plan.job.clone();
    // The stores of a driver that was killed are free when its agents have ended.
    janitor::await_orphans(&base, Some(&job), ORPHANS_LIMIT)?;
    janitor::sweep::<A>(&base, Some(&job))?;
    let job_dir = JobDir::open(&base, &job, JobDirUse::New)?;
    let driver =
        Driver::start(Starting { base, job_dir, record, mode: AgentMode::Volume, volume: Some(volume) })?;
    driver.open_socket()?;
    Ok(driver)
}

/// Connects to the agents that run.
fn adopt(lock: &VolumeLock, old: JobRecord, succession: Succession) -> Result<Driver> {
    let JobRecord { map, founders, gone, nodes, plan, .. } = old;
    let record = JobRecord { map, founders, gone, nodes, ..JobRecord::new(plan)? };
    let base = Base::open(&record.plan.base_dir)?;
    let job_dir = JobDir::open(&base, &record.plan.job, JobDirUse::Join)?;
    let volume = Some(Volume::new(lock.clone(), VolumeState::Running, succession));
    let driver = Driver::start(Starting { base, job_dir, record, mode: AgentMode::Volume, volume })?;
    driver.open_socket()?;
    crate::report::say(format_args!("this driver serves the volume from now on: its agents ran without one"));
    Ok(driver)
}
