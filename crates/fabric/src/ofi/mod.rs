//! Messages and one-sided reads over libfabric, which is loaded at run time.
//!
//! libfabric serves agents that have authenticated each other on a socket (`fabric::socket`). The socket stays open, reports a
//! failure of the peer at once, and carries everything if libfabric fails. So this module knows no peers, only routes to
//! endpoints, packets, and reads. The first bytes of a packet are a token that the receiver issued on a socket; it identifies the
//! connection.
//!
//! An agent has one endpoint of reliable datagrams (`FI_EP_RDM`) for all peers. It registers the whole slab once, for remote
//! reads; remote writes are never permitted. So the sender *exports* a payload, and the receiver reads it directly into its
//! frame, as agents of one host do.
//!
//! - `library` loads libfabric; `bindings` has its types; `offer` selects a provider.
//! - `endpoint` calls the objects of the library (`object`); `buffers` has the memory of messages.
//! - `operations` tracks operations in flight; `events` delivers their results; `transport` drives them.
//! - `leftovers` removes files of killed agents.
//!
//! Without the feature `libfabric`, `absent` stands in for all of them but the last.

#[cfg(not(feature = "libfabric"))]
mod absent;
#[cfg(feature = "libfabric")]
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    dead_code,
    clippy::all,
    reason = "as the headers of libfabric have it"
)]
mod bindings;
#[cfg(feature = "libfabric")]
mod buffers;
#[cfg(feature = "libfabric")]
mod endpoint;
#[cfg(feature = "libfabric")]
mod events;
pub mod leftovers;
#[cfg(feature = "libfabric")]
mod library;
#[cfg(feature = "libfabric")]
mod object;
#[cfg(feature = "libfabric")]
mod offer;
#[cfg(feature = "libfabric")]
mod operations;
#[cfg(feature = "libfabric")]
mod transport;

#[cfg(not(feature = "libfabric"))]
pub(crate) use absent::Transport;
#[cfg(not(feature = "libfabric"))]
pub use absent::offers;
pub(crate) use leftovers::endpoint_name;
#[cfg(feature = "libfabric")]
pub use offer::offers;
#[cfg(feature = "libfabric")]
pub(crate) use transport::Transport;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tameike_io::slab::{Pool, Slab};

/// Providers of libfabric, in order of preference: those of hardware first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// HPE Slingshot.
    Cxi,
    /// InfiniBand and RoCE.
    Verbs,
    /// Cornelis Omni-Path.
    Opx,
    /// Intel's and Cornelis' performance-scaled messaging, over Omni-Path and RoCE.
    Psm3,
    /// Elastic fabric adapter of AWS.
    Efa,
    /// Any TCP network.
    Tcp,
    /// Shared memory between agents of one host.
    Shm,
}

impl Provider {
    /// All providers, those of hardware first.
    pub const ALL: [Self; 7] =
        [Self::Cxi, Self::Verbs, Self::Opx, Self::Psm3, Self::Efa, Self::Tcp, Self::Shm];

    /// The name in libfabric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cxi => "cxi",
            Self::Verbs => "verbs",
            Self::Opx => "opx",
            Self::Psm3 => "psm3",
            Self::Efa => "efa",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    /// True for a provider of hardware.
    pub fn has_device(self) -> bool {
        !matches!(self, Self::Tcp | Self::Shm)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|provider| provider.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unsupported provider {text:?} of libfabric; supported: {names}")
        })
    }
}

/// The configuration of libfabric.
#[derive(Clone)]
pub struct OfiConfig {
    /// The provider; `None` selects the first one available.
    pub provider: Option<Provider>,
    /// All frames of the agent, which peers may read.
    pub slab: Arc<Slab>,
    /// The pool of the [`FRAMES`] frames for messages.
    pub frames: Pool,
}

/// The providers of libfabric on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers {
    /// The version of libfabric.
    pub version: String,
    /// All providers, the fastest first, with the reason for each that is not usable.
    pub providers: Vec<(Provider, Result<(), String>)>,
}

/// Largest message, in bytes.
pub(crate) const PACKET_MAX: usize = 8 << 10;
/// Frames for messages: one for receives, one for sends.
pub const FRAMES: u32 = 2;

/// A location in a peer's slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) key: u64,
    /// The address of the first byte, as its provider defines it.
    pub(crate) address: u64,
}

/// The number of another endpoint's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(u64);

/// Receives packets and events. Called without locks, on any thread that drives the endpoint; must not block.
pub(crate) trait Arrivals: Send + Sync {
    /// Handles a packet of any sender.
    fn packet(&self, packet: Vec<u8>);
    /// Called after an operation on the route was posted or is still in flight: the peer may need a doorbell to make progress.
    fn posted(&self, route: RouteId);
    /// Handles the failure of a route.
    fn broken(&self, route: RouteId, why: &str);
    /// Handles the close of the endpoint with all its routes.
    fn closed(&self, why: &str);
}
