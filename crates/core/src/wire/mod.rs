//! Messages between agents, and between an agent and the command line.
//!
//! Each message is defined once, here, and encoded by `postcard`. A request is answered by the reply of the
//! same name. Bulk data does not stand in a message: it travels beside it as the payload, straight between
//! frames. Commands of the metadata state machine ([`meta::Command`]) are the same bytes on the wire and in
//! the log.

pub mod admin;
pub mod cache;
pub mod codec;
pub mod meta;
pub mod unit;

use crate::errno::Fault;
use serde::{Deserialize, Serialize};

/// Version of all messages; agents of different versions refuse each other when they connect.
pub const PROTOCOL_VERSION: u16 = 1;

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// To the metadata service.
    Meta(meta::MetaRequest),
    /// To the unit service.
    Unit(unit::UnitRequest),
    /// To the coordinator of a cached file.
    Cache(cache::CacheRequest),
    /// To the agent itself.
    Admin(admin::AdminRequest),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// From the metadata service.
    Meta(meta::MetaReply),
    /// From the unit service.
    Unit(unit::UnitReply),
    /// From the coordinator of a cached file.
    Cache(cache::CacheReply),
    /// From the agent itself.
    Admin(admin::AdminReply),
    /// The request failed and changed nothing, or its effect is told by the fault.
    Fault(Fault),
}
