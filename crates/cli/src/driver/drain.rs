//! The drain of a job: all agents flush at once, and the driver merges their receipts.

use super::Driver;
use super::event::Notice;
use super::gather::Gather;
use super::protocol::DriverReply;
use crate::place::mount_points;
use crate::report::progress::{self, Display};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tameike_agent::control::{AgentReply, AgentRequest, Progress};
use tameike_core::receipt::{FileOutcome, Receipt};
use tameike_io::os::process::monotonic;

/// Time for agents to flush after the drain.
pub const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Time for agents to list undrained files after an aborted drain.
const NAMES_LIMIT: Duration = Duration::from_secs(2);

pub struct Drained {
    pub receipt: Receipt,
    /// Everything is on the shared file system.
    pub is_complete: bool,
    /// The user aborted the drain.
    pub cancelled: bool,
}

/// Merges the receipts of all nodes.
pub fn merge(gather: &Gather, in_time: bool) -> Receipt {
    let mut receipt = Receipt::default();
    for (node, reply) in &gather.answers {
        match reply {
            AgentReply::Receipt(part) => receipt.merge(part.clone()),
            AgentReply::Failed(fault) => receipt.faults.push(format!("node {node}: {fault}")),
            other => receipt.faults.push(format!("node {node} sent an unexpected reply: {other:?}")),
        }
    }
    let why = if in_time { "did not reply" } else { "did not finish in time" };
    receipt.faults.extend(gather.waiting.iter().map(|node| format!("node {node} {why}")));
    receipt
}

/// Marks complete files as missing if a journal is damaged, because it may have held more of them.
fn doubt(receipt: &mut Receipt, damage: &[String]) {
    if damage.is_empty() {
        return;
    }
    for file in receipt.files.iter_mut().filter(|file| file.is_complete()) {
        let why = "known data is written, but a damaged journal may have held more";
        file.outcome = FileOutcome::Missing(why.to_owned());
    }
    receipt.faults.extend(damage.iter().cloned());
}

impl Driver {
    /// Drains, and shows progress. Stops waiting at `deadline`, or `grace` after a first signal, or at once after a second
    /// signal. The receipt also lists files that programs outside the job wrote below the mount points.
    pub(super) fn drain(
        &mut self,
        verify: bool,
        deadline: Option<Duration>,
        clients: &[Sender<DriverReply>],
    ) -> Drained {
        // Without a shared directory nothing can be dirty, even if agents are lost.
        let (mut receipt, cancelled) = match self.record.plan.shared_dir {
            Some(_) => self.drain_nodes(verify, deadline, clients),
            None => (Receipt::default(), false),
        };
        let is_complete = receipt.is_drained();
        self.strays.extend(mount_points::strays(self.job_dir.path()));
        // Nodes of one host report the same.
        self.strays.sort();
        self.strays.dedup();
        receipt.faults.extend(self.strays.iter().chain(&self.record.unknown).cloned());
        Drained { receipt, is_complete, cancelled }
    }

    fn drain_nodes(
        &mut self,
        verify: bool,
        deadline: Option<Duration>,
        clients: &[Sender<DriverReply>],
    ) -> (Receipt, bool) {
        let mut deadline = deadline;
        let mut display = Display::new(progress::DRAIN);
        let mut cancelled = false;
        let mut id = self.ask(&AgentRequest::Drain { verify }, None);
        let mut epoch = self.map_epoch();
        loop {
            if self.is_gathered(id) && !self.awaits_exclusion() {
                if self.keeps_primaries_of(epoch) {
                    break;
                }
                // Nodes that had replied may have taken over dirty files since. Receipts list all files of a node.
                self.take_gather(id);
                (id, epoch) = (self.ask(&AgentRequest::Drain { verify }, None), self.map_epoch());
                continue;
            }
            match self.next(deadline) {
                Notice::Progress(of) if of == id => {
                    let progress = self.gather(id).map_or_else(Progress::default, Gather::total_progress);
                    display.drained(progress);
                    for client in clients {
                        // A client may have disconnected.
                        let _ = client.send(DriverReply::Progress(progress));
                    }
                }
                Notice::TimedOut => break,
                Notice::Signal(_) if deadline.is_some() => {
                    cancelled = true;
                    break;
                }
                Notice::Signal(_) => {
                    let grace = self.record.plan.grace_s;
                    deadline = Some(self.grace_deadline());
                    display.beside(|| {
                        crate::report::say(format_args!(
                            "draining for at most {grace} s more; another signal stops at once and leaves the journals"
                        ));
                    });
                }
                Notice::AgentLost(node) => display.beside(|| self.report_lost_agent(node)),
                Notice::Message(text) => display.beside(|| crate::report::say(format_args!("{text}"))),
                Notice::Gathered
                | Notice::AgentEnded
                | Notice::Progress(_)
                | Notice::Mirrored
                | Notice::Superseded(_)
                | Notice::CommandEnded(_)
                | Notice::Down { .. } => {}
            }
        }
        display.finish();
        let in_time = self.is_gathered(id);
        let gather = self.take_gather(id);
        let mut receipt = merge(&gather, in_time);
        self.name_undrained(&gather, &mut receipt);
        doubt(&mut receipt, &self.damage);
        (receipt, cancelled)
    }

    /// Adds the undrained files of nodes that have not replied, so that the receipt of an aborted drain lists what is missing.
    fn name_undrained(&mut self, drain: &Gather, receipt: &mut Receipt) {
        if drain.waiting.is_empty() {
            return;
        }
        let id = self.ask_some(&AgentRequest::Undrained, None, |node| drain.waiting.contains(&node));
        self.await_gather(id, monotonic() + NAMES_LIMIT);
        for answer in self.take_gather(id).answers.into_values() {
            // Files that an agent cannot report are in its journal.
            if let AgentReply::Receipt(part) = answer {
                receipt.merge(part);
            }
        }
    }

    /// Has the agents write journaled data of files that are missing in the shared directory below `dir`. Returns the receipt of
    /// these files, which is incomplete after a signal.
    pub(super) fn save_orphaned(&mut self, dir: &Path) -> Receipt {
        let id = self.ask(&AgentRequest::SaveRemoved { dir: dir.to_owned() }, None);
        while !self.is_gathered(id) {
            match self.next(None) {
                Notice::Signal(_) => break,
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                _ => {}
            }
        }
        let in_time = self.is_gathered(id);
        merge(&self.take_gather(id), in_time)
    }

    /// Returns the end of a grace time that begins now.
    pub(super) fn grace_deadline(&self) -> Duration {
        monotonic() + Duration::from_secs(self.record.plan.grace_s)
    }

    /// Reports a failed agent and the consequences to the user, unless other nodes have its data: then its exclusion is reported.
    pub(super) fn report_lost_agent(&self, node: u32) {
        if self.survives_losses() {
            return;
        }
        let host = &self.record.plan.nodes[node as usize].host;
        let how = self.lost.get(&node).map_or("", String::as_str);
        if let Some(volume) = &self.record.plan.volume {
            let name = &volume.name;
            crate::report::say(format_args!(
                "the agent of node {node} on {host} failed ({how}). Its part of volume {name} is missing until `tameike \
                 volume stop {name}` and `tameike volume start {name}`"
            ));
            return;
        }
        crate::report::say(format_args!(
            "the agent of node {node} on {host} failed ({how}). Files in its part of the shared and node-local \
             views are lost; data written to the cache view is in its journal, which `tameike recover \
             --job {}` drains.",
            self.record.plan.job
        ));
    }
}
