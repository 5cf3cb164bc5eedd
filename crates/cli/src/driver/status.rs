//! Replies to requests of other commands.

use super::Driver;
use super::drain::merge;
use super::gather::Gather;
use super::protocol::{ClientRequest, CopyLine, DriverReply, JobStatus, NodeLine};
use super::resize::Restarted;
use std::sync::mpsc::Sender;
use tameike_agent::control::{AgentReply, AgentRequest};
use tameike_core::{Errno, Fault};

/// The agents that receive a request.
enum Receivers {
    All,
    /// The first running agent.
    First,
    Node(u32),
}

/// What the nodes have found that serve homes.
fn copy_lines(gather: &Gather) -> Vec<CopyLine> {
    let line = |(&node, reply): (&u32, &AgentReply)| {
        let (report, fault) = match reply {
            AgentReply::CopiesChecked(report) => (Some(report.clone()), None),
            AgentReply::Failed(fault) => (None, Some(fault.to_string())),
            other => (None, Some(format!("unexpected reply: {other:?}"))),
        };
        CopyLine { node, report, fault }
    };
    gather.answers.iter().map(line).collect()
}

impl Driver {
    pub(super) fn take_client(&mut self, request: ClientRequest, reply: Sender<DriverReply>) {
        let (question, receivers) = match request {
            ClientRequest::Status => (AgentRequest::Status, Receivers::All),
            ClientRequest::Drain { verify } => (AgentRequest::Drain { verify }, Receivers::All),
            ClientRequest::Warm { paths } => (AgentRequest::Warm { paths }, Receivers::First),
            ClientRequest::Files(files) => (AgentRequest::Files(files), Receivers::First),
            ClientRequest::CheckCopies if self.record.plan.replicas > 1 => {
                (AgentRequest::CheckCopies, Receivers::All)
            }
            ClientRequest::CheckCopies => {
                let job = &self.record.plan.job;
                let fault = Fault::new(Errno::EINVAL, format!("job {job} has no replicas to compare"));
                // A client may have disconnected.
                let _ = reply.send(DriverReply::Failed(fault));
                return;
            }
            ClientRequest::Measure { node, order } => (AgentRequest::Measure(order), Receivers::Node(node)),
            ClientRequest::Grow { nodes } => return self.grow(nodes, reply),
            ClientRequest::Shrink { nodes } => return self.shrink(&nodes, reply),
            ClientRequest::Restart { nodes, program, new_store } => {
                return self.restart(&nodes, Restarted { program, new_store }, reply);
            }
            ClientRequest::Down { .. } | ClientRequest::Launch(_) | ClientRequest::Signal { .. } => {
                let fault = Fault::new(Errno::EPROTO, "unexpected request");
                // A client may have disconnected.
                let _ = reply.send(DriverReply::Failed(fault));
                return;
            }
        };
        let first = self.links.iter().map(|link| link.node()).find(|node| self.absence(*node).is_none());
        let id = self.ask_some(&question, Some(reply.clone()), |node| match receivers {
            Receivers::All => true,
            Receivers::First => first == Some(node),
            Receivers::Node(receiver) => receiver == node,
        });
        if self.is_gathered(id) {
            let gather = self.take_gather(id);
            let _ = reply.send(self.reply_to_client(&gather));
        }
    }

    /// Returns the reply to a client after all agents have replied.
    pub(super) fn reply_to_client(&self, gather: &Gather) -> DriverReply {
        if let Some(AgentRequest::Drain { .. }) = gather.question {
            return DriverReply::Receipt(merge(gather, true));
        }
        if let Some(AgentRequest::CheckCopies) = gather.question {
            return DriverReply::CopiesChecked(copy_lines(gather));
        }
        if let Some(AgentRequest::Warm { .. } | AgentRequest::Files(_) | AgentRequest::Measure(_)) =
            gather.question
        {
            return match gather.answers.values().next() {
                Some(AgentReply::Warmed(warmed)) => DriverReply::Warmed(warmed.clone()),
                Some(AgentReply::Files(lines)) => DriverReply::Files(lines.clone()),
                Some(AgentReply::Measured(outcome)) => DriverReply::Measured(outcome.clone()),
                Some(AgentReply::Failed(fault)) => DriverReply::Failed(fault.clone()),
                _ => DriverReply::Failed(Fault::new(Errno::EHOSTDOWN, "no agent of the job runs")),
            };
        }
        let line = |(node, host): (u32, &crate::settings::hostfile::HostSpec)| {
            let (status, fault) = match gather.answers.get(&node) {
                Some(AgentReply::Status(status)) => {
                    let mut status = (**status).clone();
                    status.unreachable.retain(|other| !self.record.gone.contains(&other.0));
                    (Some(status), None)
                }
                Some(AgentReply::Failed(fault)) => (None, Some(fault.to_string())),
                _ => (
                    None,
                    Some(self.absence(node).map_or_else(|| "no reply".to_owned(), |fault| fault.to_string())),
                ),
            };
            NodeLine { node, host: host.host.clone(), status, fault }
        };
        let present = (0..).zip(&self.record.plan.nodes).filter(|(node, _)| !self.record.gone.contains(node));
        DriverReply::Status(JobStatus {
            job: self.record.plan.job.clone(),
            volume: self.volume_status(),
            started: self.record.started,
            shared_dir: self.record.plan.shared_dir.clone(),
            nodes: present.map(line).collect(),
            replicas: self.replica_status(),
            mirror: self.mirror_status(),
        })
    }
}
