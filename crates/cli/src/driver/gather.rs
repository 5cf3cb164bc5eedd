//! Sends requests to all agents at once, and gathers the replies. The loss of an agent counts as its reply.

use super::Driver;
use super::event::{GatherId, Notice, START_ID};
use super::protocol::DriverReply;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use tameike_agent::control::{AgentAnswer, AgentReply, AgentRequest, Progress};
use tameike_core::{Errno, Fault};

/// Why a node that has left the job does not reply.
pub(super) const LEFT: &str = "it has left the job";

/// One request to all agents.
#[derive(Default)]
pub struct Gather {
    /// The request; `None` for the start.
    pub question: Option<AgentRequest>,
    /// Nodes that have not replied.
    pub waiting: BTreeSet<u32>,
    pub answers: BTreeMap<u32, AgentReply>,
    pub progress: BTreeMap<u32, Progress>,
    /// The client that sent the request, if any.
    pub client: Option<Sender<DriverReply>>,
}

impl Gather {
    pub fn total_progress(&self) -> Progress {
        self.progress.values().fold(Progress::default(), |sum, one| Progress {
            files_left: sum.files_left + one.files_left,
            bytes_left: sum.bytes_left + one.bytes_left,
            bytes_flushed: sum.bytes_flushed + one.bytes_flushed,
        })
    }
}

fn agent_failed(how: &str) -> Fault {
    Fault::new(Errno::EHOSTDOWN, format!("its agent has failed ({how})"))
}

impl Driver {
    /// Sends a request to all running agents.
    pub(super) fn ask(&mut self, request: &AgentRequest, client: Option<Sender<DriverReply>>) -> GatherId {
        self.ask_some(request, client, |_| true)
    }

    /// Sends a request to some of the running agents.
    pub(super) fn ask_some(
        &mut self,
        request: &AgentRequest,
        client: Option<Sender<DriverReply>>,
        is_asked: impl Fn(u32) -> bool,
    ) -> GatherId {
        let id = self.next_id;
        self.next_id += 1;
        let mut gather = Gather { question: Some(request.clone()), client, ..Gather::default() };
        for index in 0..self.links.len() {
            let node = self.links[index].node();
            if !is_asked(node) {
                continue;
            }
            let absence = self.absence(node);
            let is_end = matches!(request, AgentRequest::Stop { .. }) && !self.lost.contains_key(&node);
            if absence.is_none() || is_end {
                // An agent that cannot be written to exits, which is an event.
                self.links[index].send(id, request);
            }
            match absence {
                None => {
                    gather.waiting.insert(node);
                }
                // Others serve its data.
                Some(_) if self.is_stale(node) => {}
                Some(fault) => {
                    gather.answers.insert(node, AgentReply::Failed(fault));
                }
            }
        }
        self.gathers.insert(id, gather);
        id
    }

    /// Sends a request to agents that start while the job runs.
    pub(super) fn ask_arriving(&mut self, request: &AgentRequest, nodes: &BTreeSet<u32>) -> GatherId {
        let id = self.next_id;
        self.next_id += 1;
        for &node in nodes {
            self.links[node as usize].send(id, request);
        }
        let waiting = nodes.clone();
        self.gathers.insert(id, Gather { question: Some(request.clone()), waiting, ..Gather::default() });
        id
    }

    /// Returns the gather `id`; a finished one stays until it is taken.
    pub(super) fn gather(&self, id: GatherId) -> Option<&Gather> {
        self.gathers.get(&id)
    }

    pub(super) fn take_gather(&mut self, id: GatherId) -> Gather {
        self.gathers.remove(&id).unwrap_or_default()
    }

    /// Returns true if all agents have replied.
    pub(super) fn is_gathered(&self, id: GatherId) -> bool {
        self.gathers.get(&id).is_none_or(|gather| gather.waiting.is_empty())
    }

    /// Why the agent of a node does not reply to requests; `None` if it does, as far as is known.
    pub(super) fn absence(&self, node: u32) -> Option<Fault> {
        if self.record.gone.contains(&node) {
            return Some(Fault::new(Errno::EHOSTDOWN, LEFT));
        }
        if self.arriving.contains(&node) {
            return Some(Fault::new(Errno::EHOSTDOWN, "it is joining the job"));
        }
        let lost = self.lost.get(&node).map(|how| agent_failed(how));
        let excluded = |why| Fault::new(Errno::EHOSTDOWN, format!("excluded: {why}"));
        lost.or_else(|| self.why_excluded(node).map(excluded))
    }

    pub(super) fn take_answer(&mut self, node: u32, answer: AgentAnswer) -> Option<Notice> {
        match answer.reply {
            AgentReply::Leased(answer) => {
                self.take_lease(node, answer);
                return None;
            }
            AgentReply::Changes(changes) => {
                self.take_changes(node, changes);
                return None;
            }
            AgentReply::Superseded { host } => return Some(Notice::Superseded(host)),
            AgentReply::Kept { keeper, version } => return self.take_kept(keeper, version),
            reply if answer.id == START_ID && self.is_connecting(node) => {
                return self.take_connected(node, reply);
            }
            _ => {}
        }
        let gather = self.gathers.get_mut(&answer.id)?;
        if let AgentReply::Warming(so_far) = answer.reply {
            let is_gone = |client: &Sender<DriverReply>| client.send(DriverReply::Warming(so_far)).is_err();
            if gather.client.as_ref().is_some_and(is_gone)
                && let Some(link) = self.links.get_mut(node as usize)
            {
                // No caller waits for the reply.
                let id = self.next_id;
                self.next_id += 1;
                link.send(id, &AgentRequest::CancelWarm { command: answer.id });
            }
            return None;
        }
        if let AgentReply::Progress(progress) = answer.reply {
            gather.progress.insert(node, progress);
            return match &gather.client {
                Some(client) => {
                    // A client may have disconnected.
                    let _ = client.send(DriverReply::Progress(gather.total_progress()));
                    None
                }
                None => Some(Notice::Progress(answer.id)),
            };
        }
        if let AgentReply::Stopping = answer.reply {
            return Some(Notice::Progress(answer.id));
        }
        if let AgentReply::Stopped(left) = answer.reply {
            self.left.insert(node, left);
        }
        gather.answers.insert(node, answer.reply);
        gather.waiting.remove(&node);
        self.finish_gather(answer.id)
    }

    /// Completes the gather after the last reply.
    fn finish_gather(&mut self, id: GatherId) -> Option<Notice> {
        if !self.is_gathered(id) {
            return None;
        }
        match self.gathers.get(&id)?.client.clone() {
            None => Some(Notice::Gathered),
            Some(client) => {
                let gather = self.take_gather(id);
                let _ = client.send(self.reply_to_client(&gather));
                None
            }
        }
    }

    pub(super) fn take_agent_gone(&mut self, node: u32, how: String) -> Option<Notice> {
        if self.is_connecting(node) {
            self.give_up_connecting(node);
            return None;
        }
        let expected = self.stopping || self.left.contains_key(&node);
        let fault = agent_failed(&how);
        self.lost.insert(node, how);
        self.note_end_of_reports(node);
        let gathered = self.give_up(node, &fault);
        if self.arriving.contains(&node) {
            return gathered;
        }
        if expected {
            return gathered.or(Some(Notice::AgentEnded));
        }
        self.take_lost_member(node);
        Some(Notice::AgentLost(node))
    }

    /// Waits no longer for the replies of a node: it has this fault.
    pub(super) fn give_up(&mut self, node: u32, fault: &Fault) -> Option<Notice> {
        let mut gathered = None;
        let waiting: Vec<_> =
            self.gathers.iter().filter(|(_, g)| g.waiting.contains(&node)).map(|(id, _)| *id).collect();
        for id in waiting {
            if let Some(gather) = self.gathers.get_mut(&id) {
                gather.waiting.remove(&node);
                gather.answers.insert(node, AgentReply::Failed(fault.clone()));
            }
            gathered = self.finish_gather(id).or(gathered);
        }
        gathered
    }
}
