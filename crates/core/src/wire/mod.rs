//! Messages between agents, and between an agent and the command line.
//!
//! Each message is defined here once, and encoded by `postcard`. The reply to a request has the same name. Bulk data is
//! not in a message: it travels beside it as payload, directly between frames. Commands of the metadata state machine
//! ([`meta::Command`]) have the same bytes on the wire and in the log.

pub mod admin;
pub mod cache;
pub mod call;
pub mod client;
pub mod codec;
pub mod endpoint;
pub mod holders;
pub mod lock;
pub mod measure;
pub mod meta;
pub mod pack;
pub mod reclaim;
pub mod region;
pub mod replica;
pub mod space;
pub mod unit;
pub mod window;

#[cfg(test)]
mod tests;

use crate::errno::Fault;
use crate::homes::HomeMap;
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
    /// To the node's views.
    Client(client::ClientRequest),
    /// To the lock service.
    Lock(lock::LockRequest),
    /// To the packer.
    Pack(pack::PackRequest),
    /// To the coordinator of a region.
    Region(region::RegionRequest),
    /// To a backup of homes.
    Replica(replica::ReplicaRequest),
    /// To the new primary of homes.
    Reclaim(reclaim::Reclaim),
}

impl Request {
    /// Returns true if serving the request twice has the same effect as serving it once. Its reply need not be
    /// remembered.
    pub fn is_read_only(&self) -> bool {
        use cache::CacheRequest as Cache;
        use meta::MetaRequest as Meta;
        use unit::UnitRequest as Unit;
        match self {
            Self::Meta(request) => match request {
                Meta::Lookup { .. }
                | Meta::GetAttr { .. }
                | Meta::DirStat { .. }
                | Meta::ReadDir { .. }
                | Meta::GetContent { .. }
                | Meta::Parent { .. }
                | Meta::ReadLink { .. }
                | Meta::GetXattr { .. }
                | Meta::ListXattr { .. } => true,
                Meta::Open { .. }
                | Meta::Close { .. }
                | Meta::Spill { .. }
                | Meta::Sync { .. }
                | Meta::Execute(_)
                | Meta::Names { .. } => false,
            },
            Self::Unit(request) => match request {
                Unit::Read { .. }
                | Unit::Digest { .. }
                | Unit::DirtyInodes { .. }
                | Unit::Seek { .. }
                | Unit::Usage { .. }
                | Unit::Locations { .. }
                | Unit::Load { .. } => true,
                Unit::Write { .. }
                | Unit::Patch { .. }
                | Unit::FetchAdd { .. }
                | Unit::WaitForSpace { .. }
                | Unit::Space { .. }
                | Unit::Sync { .. }
                | Unit::Truncate { .. }
                | Unit::Flush { .. }
                | Unit::Save { .. }
                | Unit::MarkClean { .. } => false,
            },
            Self::Cache(request) => match request {
                Cache::State { .. } | Cache::Progress | Cache::Locate { .. } => true,
                Cache::Open { .. }
                | Cache::Dirty { .. }
                | Cache::Commit { .. }
                | Cache::Reserve { .. }
                | Cache::Truncate { .. }
                | Cache::SetMtime { .. }
                | Cache::Space { .. }
                | Cache::Renamed { .. }
                | Cache::RenameEnded { .. }
                | Cache::Removing { .. }
                | Cache::Kept { .. }
                | Cache::Removed { .. }
                | Cache::Flush { .. }
                | Cache::Writeback { .. }
                | Cache::Writing { .. } => false,
            },
            Self::Admin(request) => request.is_read_only(),
            Self::Client(request) => request.is_read_only(),
            Self::Pack(request) => request.is_read_only(),
            Self::Region(request) => request.is_read_only(),
            Self::Replica(_) | Self::Reclaim(_) => false,
            Self::Lock(request) => request.is_read_only(),
        }
    }

    /// Returns true if the reply has a payload.
    pub fn expects_payload(&self) -> bool {
        match self {
            Self::Unit(request) => matches!(request, unit::UnitRequest::Read { .. }),
            Self::Client(request) => request.expects_payload(),
            Self::Admin(request) => {
                matches!(request, admin::AdminRequest::Exchange(exchange) if exchange.expects_payload())
            }
            Self::Meta(_)
            | Self::Cache(_)
            | Self::Lock(_)
            | Self::Pack(_)
            | Self::Region(_)
            | Self::Replica(_)
            | Self::Reclaim(_) => false,
        }
    }
}

/// The reply to a request.
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
    /// The request failed and changed nothing, or the fault describes its effect.
    Fault(Fault),
    /// From the node's views.
    Client(client::ClientReply),
    /// From the lock service.
    Lock(lock::LockReply),
    /// From the packer.
    Pack(pack::PackReply),
    /// From the coordinator of a region.
    Region(region::RegionReply),
    /// The home map of the agent, which has refused the request: the request names another epoch.
    OtherMap(HomeMap),
    /// From a backup of homes.
    Replica(replica::ReplicaReply),
    /// From the new primary of homes.
    Reclaimed(reclaim::Reclaimed),
}
