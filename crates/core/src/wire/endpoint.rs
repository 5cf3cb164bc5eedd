//! Address of an agent's libfabric endpoint, exchanged on an authenticated connection.

use serde::{Deserialize, Serialize};

/// Size of a [`Endpoint::token`], in bytes.
pub const TOKEN_SIZE: usize = 16;

/// A libfabric endpoint with its credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name of the libfabric provider: both ends need the same.
    pub provider: String,
    /// Address of the endpoint, as encoded by its provider.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
    /// Secret that authenticates packets of the peer of this connection.
    pub token: [u8; TOKEN_SIZE],
    /// Key for remote reads of the agent's slab.
    pub memory_key: u64,
    /// Remote address of the slab's first byte.
    pub memory_address: u64,
}
