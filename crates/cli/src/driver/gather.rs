//! Questions to all agents at once, and their answers. An agent that is gone counts as having answered.

use super::Driver;
use super::event::{GatherId, Notice};
use super::protocol::DriverReply;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use tameike_agent::control::{AgentAnswer, AgentReply, AgentRequest, Progress};
use tameike_core::{Errno, Fault};

/// One question to all agents.
#[derive(Default)]
pub struct Gather {
    /// What was asked; nothing for the start.
    pub question: Option<AgentRequest>,
    /// Who has not answered yet.
    pub waiting: BTreeSet<u32>,
    /// The last answer of each.
    pub answers: BTreeMap<u32, AgentReply>,
    /// How far each is.
    pub progress: BTreeMap<u32, Progress>,
    /// The other command that asks, when it is not the driver itself.
    pub client: Option<Sender<DriverReply>>,
}

impl Gather {
    /// How far all are together.
    pub fn total_progress(&self) -> Progress {
        self.progress.values().fold(Progress::default(), |sum, one| Progress {
            files_left: sum.files_left + one.files_left,
            bytes_left: sum.bytes_left + one.bytes_left,
            bytes_flushed: sum.bytes_flushed + one.bytes_flushed,
        })
    }
}

impl Driver {
    /// Asks all agents that live.
    pub(super) fn ask(&mut self, request: &AgentRequest, client: Option<Sender<DriverReply>>) -> GatherId {
        self.ask_some(request, client, |_| true)
    }

    /// Asks the first agent that lives.
    pub(super) fn ask_one(&mut self, request: &AgentRequest, client: Sender<DriverReply>) -> GatherId {
        let first = self.links.iter().map(|link| link.node()).find(|node| !self.lost.contains_key(node));
        self.ask_some(request, Some(client), |node| Some(node) == first)
    }

    /// Asks the agent of one node.
    pub(super) fn ask_node(
        &mut self,
        request: &AgentRequest,
        client: Sender<DriverReply>,
        node: u32,
    ) -> GatherId {
        self.ask_some(request, Some(client), |asked| asked == node)
    }

    /// Asks some of the agents that live.
    pub(super) fn ask_some(
        &mut self,
        request: &AgentRequest,
        client: Option<Sender<DriverReply>>,
        is_asked: impl Fn(u32) -> bool,
    ) -> GatherId {
        let id = self.next_id;
        self.next_id += 1;
        let mut gather = Gather { question: Some(request.clone()), client, ..Gather::default() };
        for link in self.links.iter_mut().filter(|link| is_asked(link.node())) {
            match self.lost.get(&link.node()) {
                Some(how) => {
                    let fault = Fault::new(Errno::EHOSTDOWN, format!("its agent is gone ({how})"));
                    gather.answers.insert(link.node(), AgentReply::Failed(fault));
                }
                None => {
                    // An agent that cannot be written to ends, and its end is an event.
                    link.send(id, request);
                    gather.waiting.insert(link.node());
                }
            }
        }
        self.gathers.insert(id, gather);
        id
    }

    /// The gather with this number; a finished one stays until it is taken.
    pub(super) fn gather(&self, id: GatherId) -> Option<&Gather> {
        self.gathers.get(&id)
    }

    pub(super) fn take_gather(&mut self, id: GatherId) -> Gather {
        self.gathers.remove(&id).unwrap_or_default()
    }

    /// Whether everybody has answered.
    pub(super) fn is_gathered(&self, id: GatherId) -> bool {
        self.gathers.get(&id).is_none_or(|gather| gather.waiting.is_empty())
    }

    pub(super) fn take_answer(&mut self, node: u32, answer: AgentAnswer) -> Option<Notice> {
        let gather = self.gathers.get_mut(&answer.id)?;
        if let AgentReply::Warming(so_far) = answer.reply {
            let is_gone = |client: &Sender<DriverReply>| client.send(DriverReply::Warming(so_far)).is_err();
            if gather.client.as_ref().is_some_and(is_gone)
                && let Some(link) = self.links.get_mut(node as usize)
            {
                // Nobody waits for its answer.
                let id = self.next_id;
                self.next_id += 1;
                link.send(id, &AgentRequest::BreakOff { command: answer.id });
            }
            return None;
        }
        if let AgentReply::Progress(progress) = answer.reply {
            gather.progress.insert(node, progress);
            return match &gather.client {
                Some(client) => {
                    // A client that went away has lost interest.
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

    /// Acts when the last answer is there.
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
        let expected = self.stopping || self.left.contains_key(&node);
        self.lost.insert(node, how.clone());
        let mut gathered = None;
        let waiting: Vec<_> =
            self.gathers.iter().filter(|(_, g)| g.waiting.contains(&node)).map(|(id, _)| *id).collect();
        for id in waiting {
            if let Some(gather) = self.gathers.get_mut(&id) {
                gather.waiting.remove(&node);
                let fault = Fault::new(Errno::EHOSTDOWN, format!("its agent is gone ({how})"));
                gather.answers.insert(node, AgentReply::Failed(fault));
            }
            gathered = self.finish_gather(id).or(gathered);
        }
        if expected { gathered.or(Some(Notice::AgentEnded)) } else { Some(Notice::AgentLost(node)) }
    }
}
