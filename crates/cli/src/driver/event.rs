//! What can happen to a job, and the loop's step: wait for an event, and act on what is the same in every
//! phase.

use super::Driver;
use super::protocol::{ClientRequest, DriverReply};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;
use tameike_agent::control::AgentAnswer;
use tameike_io::os::process::monotonic;
use tameike_io::os::signal::Arrived;

/// Identifies a request to the agents. Answers to the start have the number 0.
pub type GatherId = u64;

/// Something that happened.
pub enum Event {
    /// An agent said something.
    Agent {
        /// Which node.
        node: u32,
        /// What it said.
        answer: AgentAnswer,
    },
    /// An agent's process has ended.
    AgentGone {
        /// Which node.
        node: u32,
        /// How, for a person.
        how: String,
    },
    /// A signal arrived.
    Signal(Arrived),
    /// The job's command ended with this exit code.
    CommandEnded(u8),
    /// Another command wants a command that it launched on another host to be signalled.
    SignalCommand {
        /// Which node.
        node: u32,
        /// The name of the launched command.
        command: String,
        /// The signal's number.
        signal: i32,
    },
    /// Another command asks something.
    Client {
        /// What.
        request: ClientRequest,
        /// Takes the answers; dropped after the last.
        reply: Sender<DriverReply>,
    },
}

/// What a phase must look at.
pub enum Notice {
    /// A signal arrived.
    Signal(Arrived),
    /// The job's command ended with this exit code.
    CommandEnded(u8),
    /// All agents have answered a question, or are gone.
    Gathered,
    /// How far the agents are with a question has changed.
    Progress(GatherId),
    /// The agent of a node is gone, without having been asked to.
    AgentLost(u32),
    /// An agent that was asked to has ended.
    AgentEnded,
    /// Somebody asks the job to end.
    Down {
        /// Whether to read everything back.
        verify: bool,
        /// Takes the receipt.
        reply: Sender<DriverReply>,
    },
    /// The time is over.
    TimedOut,
}

impl Driver {
    /// Waits for the next thing that a phase must look at, until `deadline` (on the monotonic clock).
    pub(super) fn next(&mut self, deadline: Option<Duration>) -> Notice {
        loop {
            let event = match deadline {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(end) => self.events.recv_timeout(end.saturating_sub(monotonic())),
            };
            // The driver holds a sender itself, so that the channel is never disconnected.
            let Ok(event) = event else { return Notice::TimedOut };
            if let Some(notice) = self.take(event) {
                return notice;
            }
        }
    }

    fn take(&mut self, event: Event) -> Option<Notice> {
        match event {
            Event::Agent { node, answer } => self.take_answer(node, answer),
            Event::AgentGone { node, how } => self.take_agent_gone(node, how),
            Event::Signal(arrived) => Some(Notice::Signal(arrived)),
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
