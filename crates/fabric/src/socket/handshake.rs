//! The handshake: two agents prove to each other that they know the job's secret, before they exchange messages.
//!
//! ```text
//!  opener                                    acceptor
//!    | hello (112 bytes) ----------------------> |
//!    | <-- hello, proof as "acceptor" (112 + 32) |
//!    | proof as "opener" (32) -----------------> |      then messages, both ways
//!
//!  hello:
//!    0       8     10    12     16     20           28      60        92    112
//!    +-------+-----+-----+------+------+------------+-------+---------+-----+
//!    |TAMEIKE|vers.|  0  | from | to   | incarnation| nonce | job tag | 0   |
//!    |  \0   |     |     | node | node |            |       |         |     |
//!    +-------+-----+-----+------+------+------------+-------+---------+-----+
//! ```
//!
//! All hashes are BLAKE3, keyed by the job's secret. The job tag hashes the job's name and bytes 12 to 60 of the hello: agents of
//! other jobs get a clear error, and a foreign process learns no name. A proof hashes the channel, the role, the opener's hello
//! and the acceptor's hello. The nonces prevent replay, and the role prevents reflection. The channel ([`Channel`]) prevents a
//! relay between TCP and a local socket, or between local sockets of two ports. A relay between two TCP connections gains
//! nothing: keys derived from the handshake authenticate every later message ([`super::seal`]).
//!
//! All numbers are little-endian. The size of the hello is the same in all versions, so that both ends can report a version
//! mismatch.

use super::SocketConfig;
use super::seal::Keys;
use rustix::io::Errno as OsErrno;
use std::os::fd::OwnedFd;
use tameike_core::NodeId;
use tameike_core::wire::PROTOCOL_VERSION;
use tameike_io::os::reactor::Watched;

const MAGIC: [u8; 8] = *b"TAMEIKE\0";
const HELLO_SIZE: usize = 112;
const PROOF_SIZE: usize = 32;
type Hello = [u8; HELLO_SIZE];

/// The reason that a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The other end is refused.
    #[error("{0}")]
    Denied(String),
    /// The connection broke.
    #[error("the connection broke during the handshake: {0}")]
    Broken(#[from] std::io::Error),
}

/// The transport of a handshake. A proof is valid on its own channel only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Tcp,
    /// A local socket of the agent with this TCP port.
    Local {
        port: u16,
    },
}

impl Channel {
    fn label(self) -> [u8; 8] {
        let mut label = *b"tcp\0\0\0\0\0";
        if let Self::Local { port } = self {
            label = *b"local\0\0\0";
            label[6..].copy_from_slice(&port.to_le_bytes());
        }
        label
    }
}

/// The proven identity of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proven {
    pub node: NodeId,
    /// Differs between incarnations of an agent.
    pub incarnation: u64,
    /// Keys that authenticate all later messages.
    pub keys: Keys,
}

/// The identity that a valid hello claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    node: NodeId,
    incarnation: u64,
}

pub(super) struct Identity<'a> {
    pub config: &'a SocketConfig,
    pub channel: Channel,
    pub incarnation: u64,
    pub nonce: [u8; 32],
}

impl Identity<'_> {
    fn hello(&self, to: NodeId) -> Hello {
        let mut hello = [0; HELLO_SIZE];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        hello[12..16].copy_from_slice(&self.config.node.0.to_le_bytes());
        hello[16..20].copy_from_slice(&to.0.to_le_bytes());
        hello[20..28].copy_from_slice(&self.incarnation.to_le_bytes());
        hello[28..60].copy_from_slice(&self.nonce);
        let tag = self.job_tag(&hello);
        hello[60..92].copy_from_slice(tag.as_bytes());
        hello
    }

    /// A tag by which agents of this job recognize a hello. It reveals nothing to others.
    fn job_tag(&self, hello: &Hello) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.config.secret);
        let job = self.config.job.as_str().as_bytes();
        hasher.update(b"job\0").update(&hello[12..60]).update(job).finalize()
    }

    /// Decodes the claim in a hello; nothing is proven yet.
    fn check(&self, hello: &Hello) -> Result<Claim, HandshakeError> {
        let u32_at = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
        let denied = |why: String| Err(HandshakeError::Denied(why));
        if hello[..8] != MAGIC {
            return denied("the other end is not an agent of Tameike".into());
        }
        let version = u16::from_le_bytes([hello[8], hello[9]]);
        if version != PROTOCOL_VERSION {
            return denied(format!(
                "the other agent uses version {version} of the protocol and this one version {PROTOCOL_VERSION}: use one version of tameike on all nodes"
            ));
        }
        if self.job_tag(hello) != hello[60..92] || hello[92..] != [0; HELLO_SIZE - 92] {
            return denied(format!(
                "the other agent belongs to another job, or does not know the secret of job {}",
                self.config.job
            ));
        }
        let (node, meant) = (NodeId(u32_at(12)), NodeId(u32_at(16)));
        if meant != self.config.node || node == self.config.node {
            return denied(format!("{node} connected to {meant} but reached {}", self.config.node));
        }
        let incarnation = u64::from(u32_at(20)) | u64::from(u32_at(24)) << 32;
        Ok(Claim { node, incarnation })
    }

    fn hash(&self, role: &str, opener: &Hello, acceptor: &Hello) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.config.secret);
        let channel = self.channel.label();
        hasher.update(&channel).update(role.as_bytes()).update(opener).update(acceptor).finalize()
    }

    /// The keys of each role for messages after the handshake.
    fn keys(&self, (own, other): (&str, &str), opener: &Hello, acceptor: &Hello) -> Keys {
        let key = |role: &str| *self.hash(&format!("messages of the {role}"), opener, acceptor).as_bytes();
        Keys { outgoing: key(own), incoming: key(other) }
    }

    /// Runs the opener's side; `to` is the expected node.
    pub(super) async fn open(&self, socket: &Watched<OwnedFd>, to: NodeId) -> Result<Proven, HandshakeError> {
        let hello = self.hello(to);
        write_all(socket, &hello)?;
        let mut answer = [0; HELLO_SIZE];
        read_all(socket, &mut answer).await?;
        let Claim { node, incarnation } = self.check(&answer)?;
        if node != to {
            return Err(HandshakeError::Denied(format!("{node} answered at the address of {to}")));
        }
        let mut proof = [0; PROOF_SIZE];
        read_all(socket, &mut proof).await?;
        if self.hash("acceptor", &hello, &answer) != proof {
            return Err(not_proven(to));
        }
        write_all(socket, self.hash("opener", &hello, &answer).as_bytes())?;
        Ok(Proven { node, incarnation, keys: self.keys(("opener", "acceptor"), &hello, &answer) })
    }

    pub(super) async fn accept(&self, socket: &Watched<OwnedFd>) -> Result<Proven, HandshakeError> {
        let mut hello = [0; HELLO_SIZE];
        read_all(socket, &mut hello).await?;
        let checked = self.check(&hello);
        // A refused opener still gets a hello, so that it can report the version of this agent.
        let claimed = u32::from_le_bytes([hello[12], hello[13], hello[14], hello[15]]);
        let answer = self.hello(NodeId(claimed));
        write_all(socket, &answer)?;
        let Claim { node, incarnation } = checked?;
        write_all(socket, self.hash("acceptor", &hello, &answer).as_bytes())?;
        let mut proof = [0; PROOF_SIZE];
        read_all(socket, &mut proof).await?;
        if self.hash("opener", &hello, &answer) != proof {
            return Err(not_proven(node));
        }
        Ok(Proven { node, incarnation, keys: self.keys(("acceptor", "opener"), &hello, &answer) })
    }
}

fn not_proven(node: NodeId) -> HandshakeError {
    HandshakeError::Denied(format!(
        "the process that claims to be {node} has not proven that it knows the job's secret"
    ))
}

/// Writes to a new connection, whose socket buffer has space for a whole handshake.
fn write_all(socket: &Watched<OwnedFd>, bytes: &[u8]) -> std::io::Result<()> {
    let written = rustix::net::send(socket.get(), bytes, rustix::net::SendFlags::NOSIGNAL)?;
    if written == bytes.len() { Ok(()) } else { Err(OsErrno::AGAIN.into()) }
}

async fn read_all(socket: &Watched<OwnedFd>, mut target: &mut [u8]) -> std::io::Result<()> {
    while !target.is_empty() {
        match socket.read(target, &mut []).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => target = &mut target[count..],
        }
    }
    Ok(())
}

/// The configuration of a node for the fuzz target.
#[cfg(feature = "fuzz")]
fn fuzz_config(node: NodeId) -> SocketConfig {
    static SLAB: std::sync::OnceLock<std::sync::Arc<tameike_io::Slab>> = std::sync::OnceLock::new();
    let slab = SLAB.get_or_init(|| tameike_io::Slab::new(1).expect("memory for a frame"));
    SocketConfig {
        job: tameike_core::JobId::new("test").expect("a valid name"),
        node,
        secret: [7; 32],
        listen: String::new(),
        inline_max: 1 << 20,
        peer_limit: crate::peer_limit(false),
        request_frames: slab.pool(1),
        reply_frames: slab.pool(1),
        slab: None,
        ofi: None,
        device: None,
        connections: 1,
    }
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_seed() -> Vec<u8> {
    let config = fuzz_config(NodeId(0));
    let identity = Identity { config: &config, channel: Channel::Tcp, incarnation: 5, nonce: [0xaa; 32] };
    identity.hello(NodeId(1)).to_vec()
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some(hello) = bytes.first_chunk::<HELLO_SIZE>() else { return };
    let config = fuzz_config(NodeId(1));
    let identity = Identity { config: &config, channel: Channel::Tcp, incarnation: 1, nonce: [0; 32] };
    // Random bytes never contain a valid job tag: check the same bytes with the right one too.
    let mut tagged = *hello;
    tagged[60..92].copy_from_slice(identity.job_tag(hello).as_bytes());
    for hello in [hello, &tagged] {
        fuzz_check(&identity, hello);
    }
}

#[cfg(feature = "fuzz")]
fn fuzz_check(identity: &Identity<'_>, hello: &Hello) {
    let config = identity.config;
    match identity.check(hello) {
        Ok(claim) => {
            assert!(claim.node != config.node && hello[16..20] == config.node.0.to_le_bytes());
            let theirs = fuzz_config(claim.node);
            let nonce = std::array::from_fn(|place| hello[28 + place]);
            let (channel, incarnation) = (Channel::Tcp, claim.incarnation);
            let theirs = Identity { config: &theirs, channel, incarnation, nonce };
            let mut again = theirs.hello(config.node);
            // The two bytes between version and node have no meaning yet.
            again[10..12].copy_from_slice(&hello[10..12]);
            assert_eq!(again, *hello);
        }
        Err(error) => assert!(matches!(error, HandshakeError::Denied(why) if !why.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::tests::SocketNetwork;

    fn identity(config: &SocketConfig) -> Identity<'_> {
        let incarnation = 0x0102_0304_0506_0708;
        Identity { config, channel: Channel::Tcp, incarnation, nonce: [0xaa; 32] }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let config = SocketNetwork::new(1, 1).config(NodeId(1));
        let mut golden = b"TAMEIKE\0\x01\0\0\0\x01\0\0\0\x05\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
        golden.extend([0xaa; 32]);
        let tagged = [b"job\0", &golden[12..60], b"test"].concat();
        golden.extend(blake3::keyed_hash(&config.secret, &tagged).as_bytes());
        golden.resize(HELLO_SIZE, 0);
        let hello = identity(&config).hello(NodeId(5));
        assert_eq!(hello.to_vec(), golden);
        let proof = |channel: &[u8; 8], identity: &Identity<'_>| {
            let text = [channel, &b"opener"[..], &golden, &golden].concat();
            assert_eq!(identity.hash("opener", &hello, &hello), blake3::keyed_hash(&config.secret, &text));
        };
        proof(b"tcp\0\0\0\0\0", &identity(&config));
        let local = Identity { channel: Channel::Local { port: 0x1234 }, ..identity(&config) };
        proof(b"local\0\x34\x12", &local);
    }

    #[test]
    fn a_hello_does_not_contain_the_job_name() {
        let config = SocketNetwork::new(1, 1).config(NodeId(1));
        let hello = identity(&config).hello(NodeId(5));
        let name = config.job.as_str().as_bytes();
        assert!(!hello.windows(name.len()).any(|bytes| bytes == name));
    }

    #[test]
    fn each_end_derives_the_keys_of_the_other() {
        let config = SocketNetwork::new(1, 1).config(NodeId(1));
        let identity = identity(&config);
        let (opener, acceptor) = (identity.hello(NodeId(5)), identity.hello(NodeId(6)));
        let ours = identity.keys(("opener", "acceptor"), &opener, &acceptor);
        let theirs = identity.keys(("acceptor", "opener"), &opener, &acceptor);
        assert!(ours.outgoing == theirs.incoming && ours.incoming == theirs.outgoing);
        assert_ne!(ours.outgoing, ours.incoming);
        assert_ne!(ours, identity.keys(("opener", "acceptor"), &opener, &opener));
    }

    #[test]
    fn every_mismatch_has_a_clear_message() {
        let network = SocketNetwork::new(1, 1);
        let (ours, theirs) = (network.config(NodeId(1)), network.config(NodeId(0)));
        let good = identity(&theirs).hello(NodeId(1));
        let checked = |at: usize, value: u8| {
            let mut hello = good;
            hello[at] = value;
            let tag = identity(&ours).job_tag(&hello);
            hello[60..92].copy_from_slice(tag.as_bytes());
            identity(&ours).check(&hello).map_err(|error| error.to_string())
        };
        assert!(checked(0, b'T').is_ok_and(|claim| claim.node == NodeId(0)));
        assert!(checked(0, b'S').is_err_and(|why| why.contains("not an agent")));
        assert!(
            checked(8, 2).is_err_and(|why| why.contains("version 2 of the protocol and this one version 1"))
        );
        assert!(checked(16, 3).is_err_and(|why| why.contains("connected to node 3 but reached node 1")));
        assert!(checked(12, 1).is_err_and(|why| why.contains("node 1 connected to node 1")));
        for at in 12..HELLO_SIZE {
            let mut hello = good;
            hello[at] ^= 1;
            let refused = identity(&ours).check(&hello).expect_err("the tag does not match");
            assert!(refused.to_string().contains("another job"), "byte {at}: {refused}");
        }
    }
}
