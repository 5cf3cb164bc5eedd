//! Creates and starts volumes.

use super::Driver;
use super::start::Starting;
use super::volume::Volume;
use crate::place::base::{self, Base, JobDir, JobDirUse};
use crate::place::janitor;
use crate::place::record::JobRecord;
use crate::place::volume::{VolumeLock, VolumeRecord, VolumeState};
use crate::settings::JobPlan;
use crate::settings::volume::VolumeName;
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode};
use tameike_core::{Errno, Fault, Result};

/// Time for agents of a killed driver to end.
const ORPHANS_LIMIT: Duration = Duration::from_secs(60);

/// Creates the stores of a volume with this plan.
pub(crate) fn create<A: AgentControl>(lock: VolumeLock, plan: JobPlan) -> Result<()> {
    let record = JobRecord::new(plan)?;
    lock.write(&VolumeRecord::new(VolumeState::Creating, record.clone()))?;
    let driver = start::<A>(lock, record, true)?;
    match driver.stop_volume::<A>() {
        faults if faults.is_empty() => Ok(()),
        faults => Err(Fault::io(faults.join("; "))),
    }
}

/// Starts the agents of a volume that has stores.
pub(super) fn start_existing<A: AgentControl>(name: &VolumeName) -> Result<Driver> {
    VolumeRecord::find(name)?;
    let lock = VolumeLock::take(name)?;
    let VolumeRecord { state, job: old, .. } = VolumeRecord::find(name)?;
    if state == VolumeState::Creating {
        let message = format!(
            "the creation of volume {name} was interrupted: remove it with `tameike volume remove {name}`, and create it again"
        );
        return Err(Fault::new(Errno::EINVAL, message));
    }
    let mut plan = old.plan;
    plan.base_dir = base::path();
    if !plan.remote_program.exists() {
        plan.remote_program = std::env::current_exe()
            .map_err(|error| Fault::from_os("finding the path of this program", &error))?;
    }
    let new = JobRecord::new(plan)?;
    let record = JobRecord { map: old.map, founders: old.founders, gone: old.gone, ..new };
    let was_killed = state == VolumeState::Running;
    let mut driver = start::<A>(lock, record, false)?;
    if was_killed {
        driver.compare_copies();
    }
    Ok(driver)
}

fn start<A: AgentControl>(lock: VolumeLock, record: JobRecord, is_new: bool) -> Result<Driver> {
    let base = Base::open(&record.plan.base_dir)?;
    let job = record.plan.job.clone();
    // The stores of a driver that was killed are free when its agents have ended.
    janitor::await_orphans(&base, Some(&job), ORPHANS_LIMIT)?;
    janitor::sweep::<A>(&base, Some(&job))?;
    let job_dir = JobDir::open(&base, &job, JobDirUse::New)?;
    let volume = Some(Volume::new(lock, is_new));
    let driver = Driver::start(Starting { base, job_dir, record, mode: AgentMode::Volume, volume })?;
    driver.open_socket()?;
    Ok(driver)
}
