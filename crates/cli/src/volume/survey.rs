//! What the nodes of a volume keep, and whether their agents run, before a driver starts.

use crate::arguments::StorePlace;
use crate::driver::launch::over_ssh;
use crate::place::kept::{self, KeptFile};
use crate::place::volume::{VolumeRecord, VolumeState};
use crate::place::volume_store::StoreLabel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tameike_agent::keepers::{Found, Keeper, Kept, RecordVersion, Term, find};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::process::{detach, monotonic, start_thread};
use tameike_store::directory::is_open;

/// Time for the nodes to answer.
const LIMIT: Duration = Duration::from_secs(20);
/// Time for more nodes to answer, once those have that the start needs.
const MORE_TIME: Duration = Duration::from_secs(2);

/// The store of a node, as `tameike survey-store` prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Surveyed {
    /// An agent has the store open.
    is_running: bool,
    /// What the node keeps.
    kept: Option<KeptFile>,
}

/// The nodes of a volume, as far as they have answered.
pub(crate) struct Survey {
    /// Nodes whose agents run.
    pub running: Vec<u32>,
    /// The highest promised term.
    pub promised: Term,
    /// The newest record, with its version, if nodes keep one.
    pub newest: Option<(RecordVersion, VolumeRecord)>,
    /// Most keepers run.
    pub has_running_majority: bool,
    /// The agents start the next driver by themselves, if there is none.
    pub starts_driver: bool,
}

/// Prints the state of a store on this host, for a driver on another one. Returns the exit code.
pub fn print(place: &StorePlace) -> u8 {
    let printed = survey_here(place).and_then(|surveyed| {
        let line = serde_json::to_string(&surveyed).map_err(|error| Fault::io(error.to_string()))?;
        println!("{line}");
        Ok(0)
    });
    crate::report::exit_code(printed)
}

fn survey_here(place: &StorePlace) -> Result<Surveyed> {
    StoreLabel::read(&place.dir, &place.volume, place.node)?;
    Ok(Surveyed { is_running: is_open(&place.dir)?, kept: kept::read(&place.dir)? })
}

/// Asks the nodes of a volume, those of the newest record that they keep in the end.
///
/// # Errors
/// `EHOSTDOWN` if too few nodes answer to know which record is the newest.
pub(crate) fn survey(known: &VolumeRecord) -> Result<Survey> {
    let mut record = known.clone();
    loop {
        let found = ask(&record)?;
        let newest = found.newest.as_ref().map(|(_, newest)| newest);
        match newest.filter(|newest| newest.job.plan.nodes.len() > record.job.plan.nodes.len()) {
            // The nodes that were added since may keep a newer record.
            Some(newer) => record = newer.clone(),
            None => return Ok(found),
        }
    }
}

fn ask(record: &VolumeRecord) -> Result<Survey> {
    let (sender, answers) = channel();
    let nodes: Vec<_> = (0..).zip(&record.job.plan.nodes).collect();
    let asked = nodes.iter().filter(|(node, host)| host.device && !record.job.gone.contains(node));
    let asked: Vec<u32> = asked.map(|(node, _)| *node).collect();
    let processes = asked.iter().map(|node| begin(record, *node, &sender)).collect::<Result<Vec<_>>>()?;
    drop(sender);
    let mut deadline = monotonic() + LIMIT;
    let (mut answered, mut faults) = (BTreeMap::new(), BTreeMap::new());
    while answered.len() + faults.len() < asked.len() {
        let Ok((node, answer)) = answers.recv_timeout(deadline.saturating_sub(monotonic())) else { break };
        match answer {
            Ok(surveyed) => drop(answered.insert(NodeId(node), surveyed)),
            Err(fault) => drop(faults.insert(node, fault)),
        }
        if matches!(find(&keepers(&answered)), Found::Newest(_)) {
            deadline = deadline.min(monotonic() + MORE_TIME);
        }
    }
    for process in processes.into_iter().flatten() {
        end(process);
    }
    evaluate(&answered).map_err(|fault| {
        let host = |node: u32| &record.job.plan.nodes[node as usize].host;
        let faults: Vec<_> =
            faults.iter().map(|(node, fault)| format!("node {node} on {}: {fault}", host(*node))).collect();
        Fault::new(fault.errno, format!("{fault} ({})", faults.join("; ")))
    })
}

/// Ends an ssh that still waits for its host.
fn end(mut process: Child) {
    // It may have exited.
    let _ = process.kill();
    let _ = process.wait();
}

fn keepers(answered: &BTreeMap<NodeId, Surveyed>) -> BTreeMap<Keeper, Kept<String>> {
    let keeper = |(node, surveyed): (&NodeId, &Surveyed)| {
        let KeptFile { store, kept } = surveyed.kept.clone()?;
        Some((Keeper { node: *node, store }, kept))
    };
    answered.iter().filter_map(keeper).collect()
}

fn evaluate(answered: &BTreeMap<NodeId, Surveyed>) -> Result<Survey> {
    let kept = keepers(answered);
    let running = answered.iter().filter(|(_, surveyed)| surveyed.is_running).map(|(node, _)| node.0);
    let mut survey = Survey {
        running: running.collect(),
        promised: kept.values().map(|kept| kept.promised).max().unwrap_or_default(),
        newest: None,
        has_running_majority: true,
        starts_driver: false,
    };
    match find(&kept) {
        Found::Nothing => {}
        Found::Newest(found) => {
            let runs = |keeper: Keeper| survey.running.contains(&keeper.node.0);
            survey.has_running_majority = found.keepers.is_majority(runs) && found.before.is_majority(runs);
            let newest = kept::decode(found)?;
            survey.starts_driver = newest.state == VolumeState::Running
                && !found.keepers.is_empty()
                && survey.has_running_majority;
            survey.newest = Some((found.version, newest));
        }
        Found::TooFew(_) => {
            let message =
                "most of the nodes that keep the record of the volume do not answer: start it when they do";
            return Err(Fault::new(Errno::EHOSTDOWN, message));
        }
    }
    Ok(survey)
}

type Answers = Sender<(u32, Result<Surveyed>)>;

/// Asks one node. Returns the process that does, if it is on another host.
fn begin(record: &VolumeRecord, node: u32, answers: &Answers) -> Result<Option<Child>> {
    let plan = &record.job.plan;
    let none = || Fault::new(Errno::EINVAL, "the record is not that of a volume");
    let volume = plan.volume.as_ref().ok_or_else(none)?.number.clone();
    let (place, host) = (StorePlace { dir: plan.device_dir(node), volume, node }, &plan.nodes[node as usize]);
    let answers = answers.clone();
    if host.is_here() {
        // The receiver is there until all have answered.
        drop(answers.send((node, survey_here(&place))));
        return Ok(None);
    }
    let mut command = over_ssh(&record.job, host, &place.words("survey-store"), false);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = detach(&mut command)
        .spawn()
        .map_err(|error| Fault::from_os(format_args!("running {}", plan.ssh[0]), &error))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    start_thread("survey", move || {
        let text = output.map(std::io::read_to_string).transpose().unwrap_or_default().unwrap_or_default();
        let messages =
            errors.map(std::io::read_to_string).transpose().unwrap_or_default().unwrap_or_default();
        // The survey may have ended.
        let _ = answers.send((node, parse(&text, &messages, &place.dir)));
    })?;
    Ok(Some(child))
}

/// Parses what another host has printed. Login scripts of a site may print before.
fn parse(text: &str, messages: &str, dir: &Path) -> Result<Surveyed> {
    let parsed = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    parsed.ok_or_else(|| Fault::io(format!("reading {}: {}", dir.display(), messages.trim())))
}
