//! `tameike volume`: file systems on local disks of several hosts that outlive jobs.
//!
//! A volume runs as a background job of its owner (`driver/volume.rs`), whose record and stores outlive it (`place/volume.rs`,
//! `place/volume_store.rs`). These commands talk to the driver of that job as those of other jobs do (`client`).

mod mount;
pub mod remove;
mod status;
pub(crate) mod survey;

use crate::arguments::{
    VolumeAction, VolumeCreateArguments, VolumeGrowArguments, VolumeRestartArguments, VolumeShrinkArguments,
};
use crate::client;
use crate::driver::protocol::ClientRequest;
use crate::driver::{SupervisedStart, create_volume};
use crate::place::volume::{VolumeLock, VolumeRecord, VolumeState};
use crate::report::{self, plural};
use crate::settings::volume::{VolumeId, VolumeName};
use crate::settings::{JobPlan, size};
use std::path::PathBuf;
use tameike_agent::control::AgentControl;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::random_bytes;

/// Carries out a subcommand. Returns the exit code.
pub fn volume<A: AgentControl>(action: &VolumeAction) -> u8 {
    report::exit_code(match action {
        VolumeAction::Create(arguments) => create::<A>(arguments),
        VolumeAction::Start(choice) => start(&choice.name),
        VolumeAction::Stop(choice) => stop(&choice.name),
        VolumeAction::Status(arguments) => status::status(arguments),
        VolumeAction::Grow(VolumeGrowArguments { volume, added }) => {
            running(&volume.name).and_then(|dir| client::add_nodes(&dir, added))
        }
        VolumeAction::Shrink(VolumeShrinkArguments { volume, nodes }) => {
            running(&volume.name).and_then(|dir| client::remove_nodes(&dir, nodes))
        }
        VolumeAction::Restart(VolumeRestartArguments { volume, restarted, new_store }) => {
            running(&volume.name).and_then(|dir| client::restart_nodes(&dir, restarted, *new_store))
        }
        VolumeAction::Mount(arguments) => mount::mount(arguments),
        VolumeAction::Unmount(arguments) => mount::unmount(arguments),
        VolumeAction::Remove(arguments) => remove::remove(arguments),
    })
}

fn create<A: AgentControl>(arguments: &VolumeCreateArguments) -> Result<u8> {
    let name = &arguments.volume.name;
    let lock = VolumeLock::take(name)?;
    if VolumeRecord::read(name)?.is_some() {
        let message =
            format!("volume {name} exists already: choose another name, or see `tameike volume status`");
        return Err(Fault::new(Errno::EEXIST, message));
    }
    let number: String = random_bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let volume = VolumeId { name: name.clone(), number };
    let plan = JobPlan { volume: Some(volume), ..JobPlan::new(&arguments.job_options(), false)? };
    let nodes = plan.nodes.iter().filter(|node| node.device).count();
    create_volume::<A>(lock, plan).inspect_err(|_| remove::give_up(name))?;
    report::say(format_args!(
        "volume {name}: {nodes} {} created; `tameike volume start {name}` starts it",
        plural(nodes, "store")
    ));
    Ok(0)
}

fn start(name: &VolumeName) -> Result<u8> {
    client::supervise(&SupervisedStart::Volume(name.clone()))?;
    report::say(format_args!("volume {name} runs; `tameike volume mount {name} DIR` attaches to it"));
    Ok(0)
}

/// Returns the directory of the job that serves a volume, which must run with its driver on this host.
fn running(name: &VolumeName) -> Result<PathBuf> {
    let record = VolumeRecord::find(name)?;
    VolumeRecord::job_dir(name).ok_or_else(|| match VolumeLock::take(name) {
        Err(fault) if fault.errno == Errno::EBUSY => {
            Fault::new(Errno::EHOSTDOWN, controlled_from(name, &record.driver_host))
        }
        _ => Fault::new(
            Errno::EHOSTDOWN,
            format!(
                "volume {name} has no driver on this host: `tameike volume status {name}` shows whether it runs, `tameike volume start {name}` starts it"
            ),
        ),
    })
}

/// What to do with a volume that has its driver on another host.
fn controlled_from(name: &VolumeName, host: &str) -> String {
    format!("volume {name} is controlled from {host}: run this command there")
}

fn stop(name: &VolumeName) -> Result<u8> {
    client::end(&running(name)?, &ClientRequest::Down { verify: false })?;
    let VolumeRecord { state, faults, .. } = VolumeRecord::find(name)?;
    if !faults.is_empty() {
        let faults = faults.join("; ");
        let message = format!(
            "volume {name} has stopped, but: {faults}. The next start compares the copies of its data"
        );
        return Err(Fault::io(message));
    }
    if state != VolumeState::Stopped {
        report::say(format_args!(
            "volume {name} has stopped before the copies of its data were compared: the next start begins again"
        ));
    }
    Ok(0)
}

/// A sum of bytes for a table.
fn bytes(values: impl Iterator<Item = u64>) -> String {
    size::show(values.sum())
}
