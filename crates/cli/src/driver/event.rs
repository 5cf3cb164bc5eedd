//! The events of a job, and the loop's step: waits for an event, and handles what is the same in every phase.

use super::Driver;
use super::protocol::{ClientRequest, DriverReply};
use crate::mirror::MirrorEvent;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;
use tameike_agent::control::AgentAnswer;
use tameike_io::os::process::monotonic;
use tameike_io::os::signal::Arrived;

/// Identifies a request to the agents.
pub type GatherId = u64;

/// The identifier of replies to the start.
pub const START_ID: GatherId = 0;

pub enum Event {
    Agent {
        node: u32,
        answer: AgentAnswer,
    },
    /// An agent's process has exited.
    AgentGone {
        node: u32,
        how: String,
    },
    Signal(Arrived),
    /// An event of the mirror.
    Mirror(MirrorEvent),
    /// The job's command exited with this code.
    CommandEnded(u8),
    /// A client signals the command that it launched on another host.
    SignalCommand {
        node: u32,
        /// The name of the launched command.
        command: String,
        signal: i32,
    },
    Client {
        request: ClientRequest,
        /// Receives the replies; dropped after the last.
        reply: Sender<DriverReply>,
    },
}

/// An event that a phase must handle.
pub enum Notice {
    Signal(Arrived),
    /// The job's command exited with this code.
    CommandEnded(u8),
    /// All agents have replied to a request, or failed.
    Gathered,
    /// The progress of a request has changed.
    Progress(GatherId),
    /// The agent of a node exited without a request.
    AgentLost(u32),
    /// An agent exited as requested.
    AgentEnded,
    /// A client requests the end of the job.
    Down {
        /// Read every file back and compare it.
        verify: bool,
        reply: Sender<DriverReply>,
    },
    /// The mirror has ended.
    Mirrored,
    /// Another driver serves the volume now, on this host.
    Superseded(String),
    /// A message for the user.
    Message(String),
    TimedOut,
}

impl Driver {
    /// Waits for the next event that a phase must handle, until `deadline` (on the monotonic clock).
    pub(super) fn next(&mut self, deadline: Option<Duration>) -> Notice {
        loop {
            if self.leases_due().is_some_and(|due| due <= monotonic()) {
                self.tend_leases();
            }
            self.tend_resize();
            self.tend_lost_agents();
            self.poll_changes();
            if let Some(notice) = self.notices.pop_front() {
                return notice;
            }
            let due = [self.leases_due(), self.changes_due(), self.reconnect_due(), deadline];
            let wake = due.into_iter().flatten().min();
            let event = match wake {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(end) => self.events.recv_timeout(end.saturating_sub(monotonic())),
            };
            let notice = match event {
                Ok(event) => self.take(event),
                // The driver owns a sender, so the channel is never disconnected.
                Err(_) => deadline.filter(|end| *end <= monotonic()).map(|_| Notice::TimedOut),
            };
            if let Some(notice) = notice {
                self.notices.push_back(notice);
            }
        }
    }

    fn take(&mut self, event: Event) -> Option<Notice> {
        match event {
            Event::Agent { node, answer } => self.take_answer(node, answer),
            Event::AgentGone { node, how } => self.take_agent_gone(node, how),
            Event::Signal(arrived) => Some(Notice::Signal(arrived)),
            Event::Mirror(MirrorEvent::Message(text)) => Some(Notice::Message(text)),
            Event::Mirror(MirrorEvent::Ended(end)) => self.take_mirror_end(end),
            Event::CommandEnded(code) => Some(Notice::CommandEnded(code)),
            Event::SignalCommand { node, command, signal } => {
                self.signal_remote(node, command, signal);
                None
            }
            Event::Client { request: ClientRequest::Down { verify }, reply } => {
                Some(Notice::Down { verify, reply })
            }
            Event::Client { request, reply } => {
                self.take_client(request, reply);
                None
            }
        }
    }
}
