//! The driver of a volume: serves it until it is stopped. The stores stay.
//!
//! The driver is a background process, like that of `up`, and the volume a job whose record outlives it (`place::volume`).

use super::Driver;
use super::drain::merge;
use super::event::{GatherId, Notice};
use super::protocol::{DriverReply, VolumeStatus};
use super::succession::{Succession, superseded};
use crate::place::janitor;
use crate::place::record::JobRecord;
use crate::place::volume::{VolumeLock, VolumeRecord, VolumeState};
use crate::report;
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode, AgentReply, AgentRequest};
use tameike_core::receipt::Receipt;
use tameike_core::{NodeId, Result};
use tameike_io::os::process::monotonic;

/// Time for agents to flush what programs have written.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// Time for agents to exit.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// The volume that a driver serves.
pub(super) struct Volume {
    lock: VolumeLock,
    /// Its state, as its record has it.
    pub(super) state: VolumeState,
    /// The copies are being compared, as the agents were killed.
    comparing: Option<GatherId>,
    /// The drivers before and after this one.
    pub(super) succession: Succession,
}

impl Volume {
    /// A volume that this process has locked, and that is being created or run.
    pub(super) fn new(lock: VolumeLock, state: VolumeState, succession: Succession) -> Self {
        Self { lock, state, comparing: None, succession }
    }
}

impl Driver {
    /// Writes the record of the job, and that of the volume that it serves, which its keepers then get too.
    pub(super) fn write_record(&mut self) -> Result<()> {
        if let Some(volume) = &self.volume {
            let record = VolumeRecord::new(volume.state, self.record.clone());
            volume.lock.write(&record)?;
            self.send_record(&record)?;
        }
        self.record.write(self.job_dir.path())
    }

    /// Whether the driver creates a volume.
    pub(super) fn creates_volume(&self) -> bool {
        self.volume.as_ref().is_some_and(|volume| volume.state == VolumeState::Creating)
    }

    /// Whether a volume can start although nodes have failed: each home has a copy on another node.
    pub(super) fn may_start_without(&self, failed: impl Fn(u32) -> bool) -> bool {
        let Some(map) = self.record.map.as_ref().filter(|_| self.mode == AgentMode::Volume && !self.adopts())
        else {
            // Programs use the volume whose agents run already.
            return self.adopts();
        };
        let has_failed = |node: NodeId| failed(node.0) || self.record.gone.contains(&node.0);
        map.homes().all(|home| !map.replicas(home).all(has_failed))
    }

    /// Has the nodes compare all copies, and repair those that differ from the primary's. The agents were killed, so copies may differ in
    /// what was not acknowledged or not synced.
    pub(super) fn compare_copies(&mut self) {
        if self.record.plan.replicas > 1 {
            report::say(format_args!("the agents were killed: the copies of all data are compared now"));
            let id = self.ask(&AgentRequest::CheckCopies, None);
            if let Some(volume) = &mut self.volume {
                volume.comparing = Some(id);
            }
        }
    }

    /// The state of the volume, for `status`.
    pub(super) fn volume_status(&self) -> Option<VolumeStatus> {
        let name = self.record.plan.volume.as_ref()?.name.clone();
        let compares_copies = self.volume.as_ref().is_some_and(|volume| volume.comparing.is_some());
        Some(VolumeStatus { name, compares_copies })
    }

    /// Takes the results of the comparison of all copies, if they are there.
    pub(super) fn take_comparison(&mut self) {
        let Some(id) = self.volume.as_ref().and_then(|volume| volume.comparing) else { return };
        if !self.is_gathered(id) {
            return;
        }
        if let Some(volume) = &mut self.volume {
            volume.comparing = None;
        }
        let (mut differences, mut faults) = (0, Vec::new());
        for (node, answer) in self.take_gather(id).answers {
            match answer {
                AgentReply::CopiesChecked(found) => {
                    differences += found.differences;
                    if found.failed > 0 {
                        faults.push(format!("node {node} has not compared {} units or homes", found.failed));
                    }
                }
                AgentReply::Failed(fault) => faults.push(format!("node {node}: {fault}")),
                other => faults.push(format!("node {node} sent an unexpected reply: {other:?}")),
            }
        }
        report::say(format_args!("all copies are compared: {differences} differed"));
        if !faults.is_empty() {
            let faults = faults.join("; ");
            report::say(format_args!(
                "{faults}: run `tameike check --replicas --job {}`",
                self.record.plan.job
            ));
        }
    }

    /// Flushes what programs have written, stops the agents, and notes that all copies are equal. Returns the faults.
    pub(super) fn stop_volume<A: AgentControl>(mut self) -> Vec<String> {
        let was_comparing = self.volume.as_ref().is_some_and(|volume| volume.comparing.is_some());
        let id = self.ask(&AgentRequest::Drain { verify: false }, None);
        self.await_gather(id, monotonic() + FLUSH_LIMIT);
        let in_time = self.is_gathered(id);
        let Receipt { mut faults, .. } = merge(&self.take_gather(id), in_time);
        let kept = self.keep_stopping().and_then(|()| self.await_kept(monotonic() + STOP_GRACE));
        faults.extend(kept.err().map(|fault| fault.to_string()));
        let Some(Volume { lock, .. }) = self.volume.take() else { return faults };
        let record = self.record.clone();
        let map = record.map.as_ref();
        let counts =
            |node: &u32| !record.gone.contains(node) && !map.is_some_and(|map| map.excludes(NodeId(*node)));
        let nodes: Vec<_> = (0..self.links.len() as u32).filter(counts).collect();
        let lost: Vec<_> = nodes.iter().filter(|node| self.lost.contains_key(*node)).copied().collect();
        faults.extend(lost.iter().map(|node| format!("the agent of node {node} has failed")));
        faults.extend(self.take_down::<A>(STOP_GRACE, false).faults);
        // Otherwise the next start compares the copies.
        let state = match faults.is_empty() && !was_comparing {
            true => VolumeState::Stopped,
            false => VolumeState::Running,
        };
        let record = VolumeRecord { faults: faults.clone(), ..VolumeRecord::new(state, record) };
        faults.extend(lock.write(&record).err().map(|fault| fault.to_string()));
        faults
    }

    /// Leaves the job's directory to the agents of this host, of which the last one removes it. The next driver may have its record there.
    fn leave_directory(&self) -> Result<()> {
        let dir = self.job_dir.path();
        let is_own = |record: JobRecord| record.driver() == self.record.driver();
        if JobRecord::read(dir)?.is_some_and(is_own) {
            JobRecord::remove(dir)?;
        }
        janitor::remove_unused_job_dir(&self.base, dir)
    }

    /// Serves a volume until a client or a signal stops it. Returns the faults of its end, which its record has, too.
    ///
    /// A driver that is superseded leaves the agents to the other one.
    pub(super) fn serve_volume<A: AgentControl>(mut self) -> Vec<String> {
        let client = loop {
            self.take_comparison();
            match self.next(None) {
                Notice::Signal(arrived) => {
                    report::say(format_args!("signal {}: stopping the volume", arrived.signal));
                    break None;
                }
                Notice::Down { reply, .. } => break Some(reply),
                Notice::AgentLost(node) => self.report_lost_agent(node),
                Notice::Message(text) => report::say(format_args!("{text}")),
                Notice::Superseded(host) => {
                    let left = self.leave_directory().err().map(|fault| fault.to_string());
                    return left.into_iter().chain([superseded(&host).to_string()]).collect();
                }
                Notice::Gathered
                | Notice::AgentEnded
                | Notice::Progress(_)
                | Notice::CommandEnded(_)
                | Notice::Mirrored
                | Notice::TimedOut => {}
            }
        };
        if let Some(client) = &client {
            // A client may have disconnected.
            let _ = client.send(DriverReply::Receipt(Receipt::default()));
        }
        // The connection ends with the process, when the volume has stopped.
        std::mem::forget(client);
        self.stop_volume::<A>()
    }
}
