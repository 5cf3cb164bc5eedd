//! Where an agent's endpoint of libfabric is: what two agents tell each other on a connection that has proven both.

use serde::{Deserialize, Serialize};

/// Size of a [`Endpoint::token`], in bytes.
pub const TOKEN_SIZE: usize = 16;

/// An endpoint, and what is needed to speak with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// libfabric's name of the provider: both ends need the same.
    pub provider: String,
    /// The endpoint's address, as its provider writes it.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
    /// Whoever puts this before a packet is believed to be the peer of this connection: nobody else was told.
    pub token: [u8; TOKEN_SIZE],
    /// The key by which the agent's slab is read.
    pub memory_key: u64,
    /// The address of the slab's first byte, as its provider counts.
    pub memory_address: u64,
}
