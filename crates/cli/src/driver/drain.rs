//! The drain of a job: all agents flush at once, and their receipts become one.

use super::Driver;
use super::event::Notice;
use super::gather::Gather;
use super::protocol::DriverReply;
use crate::place::mount_points;
use crate::report::progress::DrainProgress;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tameike_agent::control::{AgentReply, AgentRequest, Progress};
use tameike_core::receipt::{FileOutcome, Receipt};
use tameike_io::os::process::monotonic;

/// How long agents may still flush when the drain is over.
pub const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long agents may take to name the files that are left when a drain is broken off.
const NAMES_LIMIT: Duration = Duration::from_secs(2);

/// How a drain ended.
pub struct Drained {
    /// The receipt of all nodes.
    pub receipt: Receipt,
    /// Whether everything is on the shared file system.
    pub is_complete: bool,
    /// Whether it was broken off at once by the user.
    pub broken_off: bool,
}

/// The receipts of all nodes as one.
pub fn merge(gather: &Gather, in_time: bool) -> Receipt {
    let mut receipt = Receipt::default();
    for (node, reply) in &gather.answers {
        match reply {
            AgentReply::Receipt(part) => receipt.merge(part.clone()),
            AgentReply::Failed(fault) => receipt.faults.push(format!("node {node}: {fault}")),
            other => receipt.faults.push(format!("node {node} answered out of turn: {other:?}")),
        }
    }
    let why = if in_time { "did not answer" } else { "was not done when the time was over" };
    receipt.faults.extend(gather.waiting.iter().map(|node| format!("node {node} {why}")));
    receipt
}

/// Nothing is called complete that a damaged journal may have held more of.
fn doubt(receipt: &mut Receipt, damage: &[String]) {
    if damage.is_empty() {
        return;
    }
    for file in receipt.files.iter_mut().filter(|file| file.is_complete()) {
        let why = "written as far as it is known, but a damaged journal may have held more of it";
        file.outcome = FileOutcome::Missing(why.to_owned());
    }
    receipt.faults.extend(damage.iter().cloned());
}

impl Driver {
    /// Drains, and shows how far it is. Stops waiting at `deadline`, or `grace` after a first signal, or at
    /// the second signal at once. The receipt also names what programs outside of the job have written below the mounts.
    pub(super) fn drain(
        &mut self,
        verify: bool,
        deadline: Option<Duration>,
        clients: &[Sender<DriverReply>],
    ) -> Drained {
        // Without a shared directory nothing can be dirty, whoever is lost.
        let (mut receipt, broken_off) = match self.record.plan.shared_dir {
            Some(_) => self.drain_nodes(verify, deadline, clients),
            None => (Receipt::default(), false),
        };
        let is_complete = receipt.is_drained();
        self.strays.extend(mount_points::strays(self.job_dir.path()));
        // Nodes of one host say the same.
        self.strays.sort();
        self.strays.dedup();
        receipt.faults.extend(self.strays.iter().chain(&self.record.unknown).cloned());
        Drained { receipt, is_complete, broken_off }
    }

    fn drain_nodes(
        &mut self,
        verify: bool,
        deadline: Option<Duration>,
        clients: &[Sender<DriverReply>],
    ) -> (Receipt, bool) {
        let mut deadline = deadline;
        let mut show = DrainProgress::new();
        let mut broken_off = false;
        let id = self.ask(&AgentRequest::Drain { verify }, None);
        while !self.is_gathered(id) {
            match self.next(deadline) {
                Notice::Progress(of) if of == id => {
                    let progress = self.gather(id).map_or_else(Progress::default, Gather::total_progress);
                    show.update(progress);
                    for client in clients {
                        // One that went away has lost interest.
                        let _ = client.send(DriverReply::Progress(progress));
                    }
                }
                Notice::TimedOut => break,
                Notice::Signal(_) if deadline.is_some() => {
                    broken_off = true;
                    break;
                }
                Notice::Signal(_) => {
                    let grace = self.record.plan.grace_s;
                    deadline = Some(self.grace_deadline());
                    show.beside(|| {
                        crate::report::say(format_args!(
                            "draining for {grace} s more at most; once more to stop at once and leave a journal"
                        ));
                    });
                }
                Notice::AgentLost(node) => show.beside(|| self.tell_lost(node)),
                Notice::Gathered
                | Notice::AgentEnded
                | Notice::Progress(_)
                | Notice::CommandEnded(_)
                | Notice::Down { .. } => {}
            }
        }
        show.finish();
        let in_time = self.is_gathered(id);
        let gather = self.take_gather(id);
        let mut receipt = merge(&gather, in_time);
        self.name_undrained(&gather, &mut receipt);
        doubt(&mut receipt, &self.damage);
        (receipt, broken_off)
    }

    /// Names the files of the nodes that have not answered: a drain that is broken off says what is missing.
    fn name_undrained(&mut self, drain: &Gather, receipt: &mut Receipt) {
        if drain.waiting.is_empty() {
            return;
        }
        let id = self.ask_some(&AgentRequest::Undrained, None, |node| drain.waiting.contains(&node));
        self.await_gather(id, monotonic() + NAMES_LIMIT);
        for answer in self.take_gather(id).answers.into_values() {
            // What an agent cannot say is in its journal.
            if let AgentReply::Receipt(part) = answer {
                receipt.merge(part);
            }
        }
    }

    /// Has the agents write what the journals hold of files that are gone from the shared directory below `dir`. Returns the receipt of these
    /// files; after a signal it is not complete.
    pub(super) fn save_gone(&mut self, dir: &Path) -> Receipt {
        let id = self.ask(&AgentRequest::SaveGone { dir: dir.to_owned() }, None);
        while !self.is_gathered(id) {
            if let Notice::Signal(_) = self.next(None) {
                break;
            }
        }
        let in_time = self.is_gathered(id);
        merge(&self.take_gather(id), in_time)
    }

    /// The end of the grace time that begins now.
    pub(super) fn grace_deadline(&self) -> Duration {
        monotonic() + Duration::from_secs(self.record.plan.grace_s)
    }

    /// Tells the user in plain words that an agent is gone and what that means.
    pub(super) fn tell_lost(&self, node: u32) {
        let host = &self.record.plan.nodes[node as usize].host;
        let how = self.lost.get(&node).map_or("", String::as_str);
        crate::report::say(format_args!(
            "the agent of node {node} on {host} died ({how}). Files in its part of the shared and node-local \
             views are lost; what was written to the cache view is in its journal, which `tameike recover \
             --job {}` drains.",
            self.record.plan.job
        ));
    }
}
