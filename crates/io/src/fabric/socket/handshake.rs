//! How two agents prove to each other that they belong to the same job, before anything else is believed.
//!
//! ```text
//!  opener                                    acceptor
//!    | hello (112 bytes) ----------------------> |
//!    | <-- hello, proof as "acceptor" (112 + 32) |
//!    | proof as "opener" (32) -----------------> |      then messages, both ways
//!
//!  hello:
//!    0       8     10    12     16     20           28      60         61          93    112
//!    +-------+-----+-----+------+------+------------+-------+----------+-----------+-----+
//!    |TAMEIKE|vers.|  0  | from | to   | incarnation| nonce | length of| job's name| 0   |
//!    |  \0   |     |     | node | node |            |       | the name |           |     |
//!    +-------+-----+-----+------+------+------------+-------+----------+-----------+-----+
//! ```
//!
//! A proof is the BLAKE3 hash, keyed by the job's secret, of role, opener's hello and acceptor's hello; the
//! nonces in them make an overheard proof worthless, and the role keeps one from being sent back. All numbers
//! are little-endian. The size of the hello stays the same in all versions, so that a difference of versions
//! is told in words.

use super::SocketConfig;
use crate::os::reactor::Watched;
use rustix::io::Errno as OsErrno;
use std::os::fd::OwnedFd;
use tameike_core::NodeId;
use tameike_core::wire::PROTOCOL_VERSION;

const MAGIC: [u8; 8] = *b"TAMEIKE\0";
const HELLO_SIZE: usize = 112;
const PROOF_SIZE: usize = 32;
type Hello = [u8; HELLO_SIZE];

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The other end must not, or cannot, be spoken with.
    #[error("{0}")]
    Denied(String),
    /// The connection broke.
    #[error("the connection broke during the handshake: {0}")]
    Broken(#[from] std::io::Error),
}

/// Who the other end has proven to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proven {
    pub node: NodeId,
    /// Differs between two lives of one agent.
    pub incarnation: u64,
}

/// What this agent says of itself.
pub(super) struct Identity<'a> {
    pub config: &'a SocketConfig,
    pub incarnation: u64,
    pub nonce: [u8; 32],
}

impl Identity<'_> {
    fn hello(&self, to: NodeId) -> Hello {
        let mut hello = [0; HELLO_SIZE];
        let job = self.config.job.as_str().as_bytes();
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        hello[12..16].copy_from_slice(&self.config.node.0.to_le_bytes());
        hello[16..20].copy_from_slice(&to.0.to_le_bytes());
        hello[20..28].copy_from_slice(&self.incarnation.to_le_bytes());
        hello[28..60].copy_from_slice(&self.nonce);
        hello[60] = job.len() as u8;
        hello[61..61 + job.len()].copy_from_slice(job);
        hello
    }

    /// Reads what the other end says of itself; nothing of it is proven yet.
    fn check(&self, hello: &Hello) -> Result<Proven, HandshakeError> {
        let u32_at = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
        let denied = |why: String| Err(HandshakeError::Denied(why));
        if hello[..8] != MAGIC {
            return denied("the other end is not an agent of Tameike".into());
        }
        let version = u16::from_le_bytes([hello[8], hello[9]]);
        if version != PROTOCOL_VERSION {
            return denied(format!(
                "the other agent speaks version {version} of the protocol and this one version {PROTOCOL_VERSION}: use one version of tameike on all nodes"
            ));
        }
        let ours = self.hello(NodeId(0));
        if hello[60..] != ours[60..] {
            let name = &hello[61..61 + usize::from(hello[60]).min(32)];
            return denied(format!(
                "the other agent belongs to job {:?}, this one to {}",
                String::from_utf8_lossy(name),
                self.config.job
            ));
        }
        let (node, meant) = (NodeId(u32_at(12)), NodeId(u32_at(16)));
        if meant != self.config.node || node == self.config.node {
            return denied(format!("{node} looks for {meant} and found {}", self.config.node));
        }
        let incarnation = u64::from(u32_at(20)) | u64::from(u32_at(24)) << 32;
        Ok(Proven { node, incarnation })
    }

    fn proof(&self, role: &str, opener: &Hello, acceptor: &Hello) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.config.secret);
        hasher.update(role.as_bytes()).update(opener).update(acceptor).finalize()
    }

    /// The opener's side, towards the node it wants.
    pub(super) async fn open(&self, socket: &Watched<OwnedFd>, to: NodeId) -> Result<Proven, HandshakeError> {
        let hello = self.hello(to);
        write_all(socket, &hello)?;
        let mut answer = [0; HELLO_SIZE];
        read_all(socket, &mut answer).await?;
        let proven = self.check(&answer)?;
        if proven.node != to {
            return Err(HandshakeError::Denied(format!("{to} was wanted, and {} answered", proven.node)));
        }
        let mut proof = [0; PROOF_SIZE];
        read_all(socket, &mut proof).await?;
        if self.proof("acceptor", &hello, &answer) != proof {
            return Err(secret_unknown(to));
        }
        write_all(socket, self.proof("opener", &hello, &answer).as_bytes())?;
        Ok(proven)
    }

    /// The acceptor's side.
    pub(super) async fn accept(&self, socket: &Watched<OwnedFd>) -> Result<Proven, HandshakeError> {
        let mut hello = [0; HELLO_SIZE];
        read_all(socket, &mut hello).await?;
        let checked = self.check(&hello);
        // An opener that is refused is still told the version and the job it has met.
        let claimed = u32::from_le_bytes([hello[12], hello[13], hello[14], hello[15]]);
        let answer = self.hello(NodeId(claimed));
        write_all(socket, &answer)?;
        let proven = checked?;
        write_all(socket, self.proof("acceptor", &hello, &answer).as_bytes())?;
        let mut proof = [0; PROOF_SIZE];
        read_all(socket, &mut proof).await?;
        if self.proof("opener", &hello, &answer) == proof {
            Ok(proven)
        } else {
            Err(secret_unknown(proven.node))
        }
    }
}

fn secret_unknown(node: NodeId) -> HandshakeError {
    HandshakeError::Denied(format!("what calls itself {node} does not know this job's secret"))
}

/// Writes to a fresh connection, whose buffer has room for a whole handshake.
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

/// What a node of a job says of itself.
#[cfg(feature = "fuzz")]
fn fuzz_config(node: NodeId) -> SocketConfig {
    static SLAB: std::sync::OnceLock<std::sync::Arc<crate::Slab>> = std::sync::OnceLock::new();
    let slab = SLAB.get_or_init(|| crate::Slab::new(1).expect("room for a frame"));
    SocketConfig {
        job: tameike_core::JobId::new("test").expect("a valid name"),
        node,
        secret: [7; 32],
        listen: String::new(),
        inline_max: 1 << 20,
        peer_limit: super::PEER_LIMIT_DEFAULT,
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
    Identity { config: &fuzz_config(NodeId(0)), incarnation: 5, nonce: [0xaa; 32] }.hello(NodeId(1)).to_vec()
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some(hello) = bytes.first_chunk::<HELLO_SIZE>() else { return };
    let config = fuzz_config(NodeId(1));
    let identity = Identity { config: &config, incarnation: 1, nonce: [0; 32] };
    match identity.check(hello) {
        Ok(proven) => {
            assert!(proven.node != config.node && hello[16..20] == config.node.0.to_le_bytes());
            let theirs = fuzz_config(proven.node);
            let nonce = std::array::from_fn(|place| hello[28 + place]);
            let theirs = Identity { config: &theirs, incarnation: proven.incarnation, nonce };
            let mut again = theirs.hello(config.node);
            // Two bytes between version and node are of no meaning yet.
            again[10..12].copy_from_slice(&hello[10..12]);
            assert_eq!(again, *hello);
        }
        Err(error) => assert!(matches!(error, HandshakeError::Denied(why) if !why.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::socket::tests::SocketNetwork;

    fn identity(config: &SocketConfig) -> Identity<'_> {
        Identity { config, incarnation: 0x0102_0304_0506_0708, nonce: [0xaa; 32] }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let config = SocketNetwork::new(1, 1).config(NodeId(1));
        let mut golden = b"TAMEIKE\0\x01\0\0\0\x01\0\0\0\x05\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
        golden.extend([0xaa; 32]);
        golden.extend(b"\x04test");
        golden.resize(HELLO_SIZE, 0);
        let hello = identity(&config).hello(NodeId(5));
        assert_eq!(hello.to_vec(), golden);
        let text = [b"opener", &golden[..], &golden[..]].concat();
        assert_eq!(
            identity(&config).proof("opener", &hello, &hello),
            blake3::keyed_hash(&config.secret, &text)
        );
    }

    #[test]
    fn what_does_not_fit_is_told_in_words() {
        let network = SocketNetwork::new(1, 1);
        let (ours, theirs) = (network.config(NodeId(1)), network.config(NodeId(0)));
        let good = identity(&theirs).hello(NodeId(1));
        let told = |at: usize, value: u8| {
            let mut hello = good;
            hello[at] = value;
            identity(&ours).check(&hello).map_err(|error| error.to_string())
        };
        assert!(told(0, b'T').is_ok_and(|proven| proven.node == NodeId(0)));
        assert!(told(0, b'S').is_err_and(|why| why.contains("not an agent")));
        assert!(
            told(8, 2).is_err_and(|why| why.contains("version 2 of the protocol and this one version 1"))
        );
        assert!(told(16, 3).is_err_and(|why| why.contains("looks for node 3 and found node 1")));
        assert!(told(12, 1).is_err_and(|why| why.contains("node 1 looks for node 1")));
        assert!(told(60, 255).is_err_and(|why| why.contains("belongs to job")));
    }
}
