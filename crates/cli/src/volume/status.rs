//! `tameike volume status`

use super::bytes;
use crate::arguments::VolumeStatusArguments;
use crate::client::status_of;
use crate::driver::protocol::JobStatus;
use crate::place::volume::{self, VolumeLock, VolumeRecord, VolumeState};
use crate::report;
use crate::settings::volume::VolumeName;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use tameike_core::{Errno, Fault, Result, View};

/// A volume, as `--json` prints it.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Shown {
    name: VolumeName,
    state: State,
    /// Hosts of its nodes, in the order of the numbers of the nodes.
    hosts: Vec<String>,
    /// Nodes that have left the volume.
    gone: Vec<u32>,
    device: PathBuf,
    replicas: u32,
    /// The host with its driver.
    driver_host: String,
    /// The state of its agents, if its driver runs on this host.
    agents: Option<JobStatus>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Running,
    Stopped,
    /// Its agents were killed.
    Killed,
    /// Its creation was interrupted.
    NotCreated,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::NotCreated => "not created",
        }
    }
}

/// Shows one volume, or all of the user. Returns the exit code.
pub fn status(arguments: &VolumeStatusArguments) -> Result<u8> {
    let shown = match &arguments.name {
        Some(name) => vec![examine(name, VolumeRecord::find(name)?)?],
        None => {
            let found = volume::names()?.into_iter().filter_map(|name| {
                VolumeRecord::read(&name).transpose().map(|record| examine(&name, record?))
            });
            found.collect::<Result<_>>()?
        }
    };
    let mut out = std::io::stdout().lock();
    let printed = match (arguments.json, &arguments.name) {
        (true, _) => serde_json::to_string_pretty(&shown)
            .map_err(std::io::Error::from)
            .and_then(|text| writeln!(out, "{text}")),
        (false, Some(_)) => shown.iter().try_for_each(|shown| write_one(shown, &mut out)),
        (false, None) => write_all(&shown, &mut out),
    };
    printed.map_err(|error| Fault::from_os("printing the state", &error))?;
    Ok(0)
}

fn examine(name: &VolumeName, record: VolumeRecord) -> Result<Shown> {
    let is_locked = match VolumeLock::take(name) {
        Ok(_) => false,
        Err(fault) if fault.errno == Errno::EBUSY => true,
        Err(fault) => return Err(fault),
    };
    let state = match record.state {
        _ if is_locked => State::Running,
        VolumeState::Running | VolumeState::Stopping => State::Killed,
        VolumeState::Stopped => State::Stopped,
        VolumeState::Creating => State::NotCreated,
    };
    let agents = VolumeRecord::job_dir(name).map(|dir| status_of(&dir)).transpose()?;
    let plan = record.job.plan;
    Ok(Shown {
        name: name.clone(),
        state,
        hosts: plan.nodes.iter().map(|node| node.host.clone()).collect(),
        gone: record.job.gone,
        device: plan.device_root,
        replicas: plan.replicas,
        driver_host: record.driver_host,
        agents,
    })
}

/// The space of a volume that all copies of its files use, and its capacity, if it runs with its driver on this host.
fn space(shown: &Shown) -> Option<[String; 2]> {
    let nodes = &shown.agents.as_ref()?.nodes;
    let spaces = || {
        nodes.iter().filter_map(|line| line.status.as_ref()).map(|node| &node.space[View::JobShared.index()])
    };
    Some([bytes(spaces().map(|space| space.used)), bytes(spaces().map(|space| space.capacity))])
}

fn write_all(shown: &[Shown], out: &mut dyn Write) -> std::io::Result<()> {
    if shown.is_empty() {
        return writeln!(out, "this user has no volume; `tameike volume create` makes one");
    }
    let head = ["volume", "state", "nodes", "replicas", "used", "capacity", "device", "driver on"];
    let row = |shown: &Shown| {
        let [used, capacity] = space(shown).unwrap_or(["-".to_owned(), "-".to_owned()]);
        [
            shown.name.to_string(),
            shown.state.as_str().to_owned(),
            (shown.hosts.len() - shown.gone.len()).to_string(),
            shown.replicas.to_string(),
            used,
            capacity,
            shown.device.display().to_string(),
            if shown.state == State::Running { shown.driver_host.clone() } else { "-".to_owned() },
        ]
    };
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(shown.iter().map(row)).collect();
    report::table(&rows, [false, false, true, true, true, true, false, false], out)
}

fn write_one(shown: &Shown, out: &mut dyn Write) -> std::io::Result<()> {
    match (&shown.agents, shown.state) {
        (Some(agents), _) => report::status::write(agents, out),
        (None, State::Running) => {
            writeln!(
                out,
                "volume {} is controlled from {}: run this command there",
                shown.name, shown.driver_host
            )
        }
        (None, _) => write_all(std::slice::from_ref(shown), out),
    }
}
