//! `tameike volume remove`: removes the stores of a stopped volume on all hosts, and then its record.

use crate::arguments::{StorePlace, VolumeRemoveArguments};
use crate::driver::launch::over_ssh;
use crate::place::volume::{VolumeLock, VolumeRecord};
use crate::place::volume_store;
use crate::report;
use crate::settings::volume::{VolumeId, VolumeName};
use std::process::Stdio;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::ask_until;

/// Time for an agent that has stopped to exit, and pause between looks.
const EXIT_LIMIT: Duration = Duration::from_secs(2);
const EXIT_PAUSE: Duration = Duration::from_millis(20);

/// Removes the volume. Returns the exit code.
pub fn remove(arguments: &VolumeRemoveArguments) -> Result<u8> {
    let name = &arguments.volume.name;
    let record = VolumeRecord::find(name)?;
    let lock = VolumeLock::take(name)?;
    let faults = remove_stores(&record)?;
    if !faults.is_empty() && !arguments.force {
        return Err(Fault::io(format!(
            "volume {name} is not removed completely: {}. Run the command again, or add --force to forget these nodes",
            faults.join("; ")
        )));
    }
    faults.iter().for_each(|fault| report::say(format_args!("{fault}")));
    lock.remove()?;
    Ok(0)
}

/// Removes what a failed creation of a volume has left.
pub fn give_up(name: &VolumeName) {
    let given_up = VolumeRecord::read(name).and_then(|record| {
        let lock = VolumeLock::take(name)?;
        match record.map(|record| remove_stores(&record)).transpose()? {
            Some(faults) if !faults.is_empty() => Err(Fault::io(faults.join("; "))),
            Some(_) => lock.remove(),
            None => Ok(()),
        }
    });
    if let Err(fault) = given_up {
        report::say(format_args!("removing what was created of volume {name}: {fault}"));
    }
}

/// Removes the stores of all nodes, and returns the faults of those that it could not remove.
fn remove_stores(record: &VolumeRecord) -> Result<Vec<String>> {
    let plan = &record.job.plan;
    let none = || Fault::new(Errno::EINVAL, "the record is not that of a volume");
    let VolumeId { number, .. } = plan.volume.as_ref().ok_or_else(none)?;
    let mut faults = Vec::new();
    for (node, host) in (0..).zip(&plan.nodes).filter(|(_, host)| host.device) {
        let place = StorePlace { dir: plan.device_dir(node), volume: number.clone(), node };
        let removed = if host.is_here() { remove_here(&place) } else { remove_there(record, &place) };
        faults.extend(removed.err().map(|fault| format!("node {node} on {}: {fault}", host.host)));
    }
    Ok(faults)
}

/// Removes a store on this host, for `volume remove` on another one. Returns the exit code.
pub fn store(place: &StorePlace) -> u8 {
    report::exit_code(remove_here(place).map(|()| 0))
}

fn remove_here(place: &StorePlace) -> Result<()> {
    // An agent that has just stopped may not have exited.
    let closed = || match volume_store::check_closed(&place.dir) {
        Err(fault) if fault.errno == Errno::EBUSY => None,
        closed => Some(closed),
    };
    ask_until(EXIT_LIMIT, EXIT_PAUSE, closed).unwrap_or_else(|| volume_store::check_closed(&place.dir))?;
    volume_store::remove(&place.dir, &place.volume, place.node)
}

fn remove_there(record: &VolumeRecord, place: &StorePlace) -> Result<()> {
    let (job, host) = (&record.job, &record.job.plan.nodes[place.node as usize]);
    let words = place.words("remove-store");
    let failed = |error| Fault::from_os(format_args!("running {}", job.plan.ssh[0]), &error);
    let output = over_ssh(job, host, &words, false).stdin(Stdio::null()).output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    Err(Fault::io(format!("{}: {}", output.status, messages.trim())))
}
