//! Attachments: mounts of the job-shared view that other processes of the host have made, of any user.
//!
//! A process mounts FUSE itself, and passes the open `/dev/fuse` over a Unix socket to an agent of the volume on its host. The agent serves
//! the mount as one more FUSE frontend of its view, until the unmount. If the agent fails, calls on the mount fail with ENOTCONN.
//!
//! The socket has an abstract name, `tameike-volume-UID-NAME-NODE`, which processes in the same network namespace find in `/proc/net/unix`. Any
//! user can create a socket of that name, so the client checks the user of the agent before it sends anything.
//!
//! The agent trusts neither the options of the mount nor the process that made it. That process may keep a copy of `/dev/fuse`, and answer
//! requests itself: with numbers of files and handles that the agent never gave it. It may also mount in a user namespace in which the user
//! numbers of others denote its own user. Both deceive its own kernel only. So the agent checks what each request of another user may do
//! ([`view`]), and the kernel's checks only add to that.

mod client;
mod listen;
mod numbers;
mod peer;
mod view;

pub use client::{Connection, attach, nodes_here};
pub use listen::Attachments;

use serde::{Deserialize, Serialize};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::time::Duration;
use tameike_core::{Fault, Result};

/// Version of the messages below, which both sides must share.
const VERSION: u32 = 1;
/// Largest message, in bytes.
const MESSAGE_SIZE_MAX: usize = 4096;
/// Time in which a process that has connected must send its request, and its kernel the first one.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Time in which the agent must answer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A volume of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName {
    /// The user who runs its agents.
    pub owner: u32,
    /// Its name among the volumes of the owner.
    pub name: String,
}

/// An agent of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The volume.
    pub volume: VolumeName,
    /// Number of the node.
    pub node: u32,
}

/// The request of a client, a line of JSON with the descriptor of `/dev/fuse`.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
}

/// The reply of the agent, a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Attached,
    Refused(Fault),
}

impl VolumeName {
    /// Start of the socket names of its agents, which the node's number follows.
    fn socket_prefix(&self) -> String {
        format!("tameike-volume-{}-{}-", self.owner, self.name)
    }
}

impl NodeAddress {
    fn socket_name(&self) -> String {
        format!("{}{}", self.volume.socket_prefix(), self.node)
    }

    fn socket_address(&self) -> Result<SocketAddr> {
        let name = self.socket_name();
        SocketAddr::from_abstract_name(&name)
            .map_err(|error| Fault::from_os(format_args!("naming the socket {name}"), &error))
    }
}

/// Encodes a message.
fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have no maps with other keys than strings");
    line.push(b'\n');
    line
}
