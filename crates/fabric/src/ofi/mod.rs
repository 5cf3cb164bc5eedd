//! The fabric of the site: libfabric, loaded at run time, for messages and for one-sided reads of the memory of other agents.
//!
//! It carries what goes between agents that have proven themselves to each other on a socket (`fabric::socket`), which stays
//! open, tells of a peer's death at once, and carries everything where this does not work (any more). So nothing here knows
//! peers: there are routes to endpoints, packets, and reads. A packet that arrives says in its first bytes, which only who was told
//! them on a socket can know, to whom it belongs.
//!
//! One endpoint of reliable datagrams (`FI_EP_RDM`) for the whole agent, however many peers it has. All of the slab is registered once,
//! for others to read: nobody is ever given the right to write there. So a payload is *lent*, and whoever wants it reads it
//! straight to the frame where it belongs, as agents of one host do.
//!
//! The room: `library` loads it, `bindings` has its types, `offer` finds a provider, `endpoint` (of `object`s) calls it, `buffers` has the memory of messages,
//! `operations` knows what is under way, `events` what has become of it, `leftovers` sweeps what killed agents leave, `transport` drives all of it.

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
mod buffers;
mod endpoint;
mod events;
pub mod leftovers;
mod library;
mod object;
mod offer;
mod operations;
mod transport;

pub use buffers::FRAMES;
pub(crate) use buffers::PACKET_MAX;
pub(crate) use events::Arrivals;
pub(crate) use leftovers::endpoint_name;
pub use offer::{Offers, offers};
pub(crate) use transport::{Remote, RouteId, Transport};

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tameike_io::slab::{Pool, Slab};

/// What libfabric speaks with devices through. The list is in the order of preference: networks with hardware of their own first.
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
    /// AWS.
    Efa,
    /// Any network that speaks TCP.
    Tcp,
    /// Agents of one host.
    Shm,
}

impl Provider {
    /// All of them, those with hardware of their own first.
    pub const ALL: [Self; 7] =
        [Self::Cxi, Self::Verbs, Self::Opx, Self::Psm3, Self::Efa, Self::Tcp, Self::Shm];

    /// As libfabric calls it.
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

    /// Whether libfabric means this one: layers above the device's own are named behind it, as in `verbs;ofi_rxm`.
    fn is_called(self, name: &str) -> bool {
        name.split(';').next() == Some(self.name())
    }

    /// Whether it has hardware of its own.
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
            format!("libfabric's provider {text:?} is not spoken with; these are: {names}")
        })
    }
}

/// What libfabric is to be used with.
#[derive(Clone)]
pub struct OfiConfig {
    /// Which provider; `None` is the first that the machine has.
    pub provider: Option<Provider>,
    /// All frames of the agent, which others may read.
    pub slab: Arc<Slab>,
    /// Where [`FRAMES`] frames for messages come from.
    pub frames: Pool,
}
