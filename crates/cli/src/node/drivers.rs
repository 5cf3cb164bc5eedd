//! Which driver the agent of a volume serves: the one with the highest term that has its promise (`tameike_agent::keepers`).
//!
//! The agent outlives its driver. The next one connects through a socket in the node's directory, and has the agent promise its term.

use super::connection::Connection;
use crate::place::kept::KeptHere;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::control::{AgentReply, AgentRequest};
use tameike_agent::keepers::{Keeper, KeptRecord, Term};
use tameike_core::{Errno, Fault, Result};

/// Time without a message of a driver that renews leases, after which it has failed or is cut off.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The drivers of a volume, as its agent knows them.
pub(super) struct Drivers {
    kept: KeptHere,
    current: Option<Arc<Connection>>,
    /// When the current driver sent its last command, or the last driver was lost.
    since: Duration,
    /// The current driver renews leases.
    renews_leases: bool,
    /// The agent has joined the others.
    has_joined: bool,
}

impl Drivers {
    /// An agent that a driver has just started.
    pub fn new(kept: KeptHere, first: Arc<Connection>, now: Duration) -> Self {
        Self { kept, current: Some(first), since: now, renews_leases: false, has_joined: false }
    }

    /// The node as a keeper.
    pub fn keeper(&self) -> Option<Keeper> {
        self.kept.keeper()
    }

    /// The record that the node keeps.
    pub fn record(&self) -> Option<&KeptRecord<String>> {
        self.kept.record()
    }

    /// Whether the agent goes on when its driver is lost.
    pub fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// Notes that the agent has joined the others.
    pub fn joined(&mut self) {
        self.has_joined = true;
    }

    /// Takes a connection to the running agent. A driver that has a term is served at once, others when they have the agent's promise.
    ///
    /// # Errors
    /// - `EAGAIN`: the agent is starting
    /// - `ESTALE`: the agent has promised a later term
    pub fn connect(&mut self, connection: &Arc<Connection>, term: Option<Term>, now: Duration) -> Result<()> {
        if !self.has_joined {
            return Err(Fault::new(Errno::EAGAIN, "the agent is starting"));
        }
        match term {
            Some(term) if term < self.kept.promised() => {
                return Err(Fault::new(Errno::ESTALE, self.superseded_by()));
            }
            Some(term) if term > self.kept.promised() => drop(self.kept.promise(term)?),
            Some(_) => {}
            None => return Ok(()),
        }
        self.serve(connection, now);
        Ok(())
    }

    fn superseded_by(&self) -> String {
        let host = self.current.as_ref().map_or("", |current| current.host());
        format!("another driver serves the volume, on {host}")
    }

    fn serve(&mut self, connection: &Arc<Connection>, now: Duration) {
        (self.current, self.since, self.renews_leases) = (Some(connection.clone()), now, false);
    }

    /// Notes that a connection has ended.
    pub fn disconnected(&mut self, connection: &Arc<Connection>, now: Duration) {
        if self.serves(connection) {
            (self.current, self.since) = (None, now);
        }
    }

    fn serves(&self, connection: &Arc<Connection>) -> bool {
        self.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection))
    }

    /// Takes a command if it is about drivers, or of a driver that the agent does not serve, and returns its reply.
    pub fn take(
        &mut self,
        connection: &Arc<Connection>,
        request: &AgentRequest,
        now: Duration,
    ) -> Option<AgentReply> {
        let replied = match request {
            AgentRequest::Promise { term, is_trial } => self.promise(connection, (*term, *is_trial), now),
            _ if !self.serves(connection) => {
                let host = self.current.as_ref().map_or_else(String::new, |one| one.host().to_owned());
                return Some(AgentReply::Superseded { host });
            }
            AgentRequest::Keep(record) => {
                self.since = now;
                self.keep(record)
            }
            _ => {
                self.renews_leases |= matches!(request, AgentRequest::Lease(_));
                self.since = now;
                return None;
            }
        };
        Some(replied.unwrap_or_else(AgentReply::Failed))
    }

    fn promise(
        &mut self,
        connection: &Arc<Connection>,
        (term, is_trial): (Term, bool),
        now: Duration,
    ) -> Result<AgentReply> {
        if !self.serves(connection) && self.driverless(now).is_none() {
            return Err(Fault::new(Errno::EBUSY, self.superseded_by()));
        }
        let kept = if is_trial { self.kept.may_promise(term) } else { self.kept.promise(term) };
        let reply = AgentReply::Promised { keeper: self.kept.keeper(), kept: Box::new(kept?) };
        if !is_trial {
            self.serve(connection, now);
        }
        Ok(reply)
    }

    fn keep(&mut self, record: &KeptRecord<String>) -> Result<AgentReply> {
        self.kept.keep(record.clone())?;
        Ok(AgentReply::Kept { keeper: self.kept.keeper(), version: record.version })
    }

    /// How long the agent has had no driver; `None` if it has one.
    pub fn driverless(&self, now: Duration) -> Option<Duration> {
        let silent = now.saturating_sub(self.since);
        let is_lost = self.current.is_none() || self.renews_leases && silent > SILENCE_MAX;
        is_lost.then_some(silent)
    }
}
