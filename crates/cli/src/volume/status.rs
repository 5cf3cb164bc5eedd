//! `tameike volume status`

use super::survey::survey;
use super::{bytes, controlled_from};
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
    /// What the user can do if it does not.
    #[serde(skip)]
    advice: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Running,
    /// Its agents run, and it has no driver at the moment.
    NoDriver,
    Stopped,
    /// Its agents were killed.
    Killed,
    /// Its creation was interrupted.
    NotCreated,
    /// Most of its nodes do not answer.
    Unknown,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::NoDriver => "no driver",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::NotCreated => "not created",
            Self::Unknown => "unknown",
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
    let agents = VolumeRecord::job_dir(name).map(|dir| status_of(&dir)).transpose()?;
    let mut driver_host = record.driver_host.clone();
    let (state, advice) = match record.state {
        _ if is_locked || agents.is_some() => (State::Running, Some(controlled_from(name, &driver_host))),
        VolumeState::Running | VolumeState::Stopping => unlocked(name, &record, &mut driver_host),
        VolumeState::Stopped => (State::Stopped, None),
        VolumeState::Creating => (State::NotCreated, None),
    };
    let plan = record.job.plan;
    Ok(Shown {
        name: name.clone(),
        state,
        hosts: plan.nodes.iter().map(|node| node.host.clone()).collect(),
        gone: record.job.gone,
        device: plan.device_root,
        replicas: plan.replicas,
        driver_host,
        agents,
        advice,
    })
}

/// The state of a volume that was started and not stopped, and whose record no driver has locked: whether its agents run, and whether they keep
/// a record of a driver on another host, which does not share the records of this one.
fn unlocked(name: &VolumeName, record: &VolumeRecord, driver_host: &mut String) -> (State, Option<String>) {
    let found = match survey(record) {
        Ok(found) => found,
        Err(fault) => return (State::Unknown, Some(format!("volume {name}: {fault}"))),
    };
    if found.running.is_empty() {
        return (State::Killed, None);
    }
    if let Some((_, newest)) = found.newest.filter(|(_, newest)| newest.driver_host != *driver_host) {
        *driver_host = newest.driver_host;
        return (State::Running, Some(controlled_from(name, driver_host)));
    }
    let next = match found.starts_driver {
        true => "start the next one within seconds".to_owned(),
        false => format!("wait for `tameike volume start {name}`"),
    };
    (State::NoDriver, Some(format!("volume {name} has no driver: its agents run, and {next}")))
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
    match (&shown.agents, &shown.advice) {
        (Some(agents), _) => report::status::write(agents, out),
        (None, Some(advice)) => writeln!(out, "{advice}"),
        (None, None) => write_all(std::slice::from_ref(shown), out),
    }
}
