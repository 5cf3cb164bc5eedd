//! Agents of one host: they connect by a local socket, and read each other's payloads directly from memory.
//!
//! The socket has an abstract name derived from the job's secret. Both ends require that the kernel reports their own user at the
//! other end ([`check_owner`]), and the handshake's proofs are valid for this socket only. If a check fails, the agents use TCP,
//! which has its own protection.
//!
//! After the handshake each agent gives the other access to its slab, and to its device if that is in memory ([`exchange`]). From
//! then on large payloads are *exported*: the message carries the location instead of the bytes. The sender keeps the frame until
//! the peer reports that it has copied it. The digest in the header detects a change meanwhile. When a connection breaks, its
//! exports end: a peer that is still copying finds the connection broken, or the digest wrong. Agents read the memory as a file,
//! without a mapping, so frames count as memory of their owner only.
//!
//! A host is one network namespace of one kernel, because abstract names are local to it. Nodes in different network namespaces,
//! as containers may be, use TCP.

use super::SocketConfig;
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Fault, NodeId, Result};
use tameike_io::disk::DiskMemory;
use tameike_io::disk::HostDevice;
use tameike_io::os::process;
use tameike_io::os::reactor::{Reactor, Watched};
use tameike_io::os::runtime::Resolver;
use tameike_io::os::socket::{peer_of, receive_files, send_files};
use tameike_io::slab::{Payload, Slab};

/// Smallest exported payload, in bytes; smaller ones are cheaper to send.
pub(super) const EXPORT_MIN: usize = 32 << 10;
/// Size of an encoded location, in bytes.
pub(super) const LOCATION_SIZE: usize = 16;
/// Connections that may wait for an accept.
const BACKLOG: i32 = 128;

/// A local stream socket, and the name on which the agent of `node` with this TCP port listens. The name cannot be guessed
/// without the job's secret, and reveals nothing about the job.
fn socket(config: &SocketConfig, node: NodeId, port: u16) -> rustix::io::Result<(OwnedFd, SocketAddrUnix)> {
    let name = meeting_name(&config.secret, node, port);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok((socket, SocketAddrUnix::new_abstract_name(name.as_bytes())?))
}

pub(super) fn meeting_name(secret: &[u8; 32], node: NodeId, port: u16) -> String {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"local socket\0").update(&node.0.to_le_bytes()).update(&port.to_le_bytes());
    format!("tameike-{}", &hasher.finalize().to_hex()[..32])
}

/// Listens for agents of this host.
pub(super) fn listen_at(
    config: &SocketConfig,
    reactor: &Arc<Reactor>,
    port: u16,
) -> std::io::Result<Watched<OwnedFd>> {
    let (socket, name) = socket(config, config.node, port)?;
    bind(&socket, &name)?;
    listen(&socket, BACKLOG)?;
    Watched::new(reactor, socket)
}

/// Connects to the agent of `node` if it is on this host; `None` if nothing listens there. Fails if the socket
/// belongs to another user.
pub(super) fn connect_to(
    config: &SocketConfig,
    reactor: &Arc<Reactor>,
    (node, port): (NodeId, u16),
) -> std::io::Result<Option<Watched<OwnedFd>>> {
    let (socket, name) = socket(config, node, port)?;
    if connect(&socket, &name).is_err() {
        return Ok(None);
    }
    check_owner(&socket)?;
    Watched::new(reactor, socket).map(Some)
}

/// Checks that the process at the other end of a local socket ran as this user when it listened or connected, as the kernel
/// recorded.
pub(super) fn check_owner(socket: &OwnedFd) -> std::io::Result<()> {
    let (theirs, ours) = (peer_of(socket.as_fd())?.user, rustix::process::geteuid().as_raw());
    // Users that this user namespace does not map have the overflow number, so it identifies no user.
    if theirs == ours && !process::may_be_any_user(ours) {
        return Ok(());
    }
    let why = format!("the process at the local socket runs as user {theirs}, this agent as user {ours}");
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why))
}

/// The memory that an agent exposes to the agents of its host.
pub(super) struct Memory {
    slab: File,
    /// Set if the agent has a device in memory.
    device: Option<Arc<HostDevice>>,
}

impl Memory {
    pub(super) fn without_device(self) -> Self {
        Self { device: None, ..self }
    }
}

/// Exchanges the descriptors of slab and device with an authenticated peer.
pub(super) async fn exchange(
    socket: &Watched<OwnedFd>,
    slab: &Slab,
    device: Option<&HostDevice>,
) -> std::io::Result<Memory> {
    let mut files = vec![slab.memory()];
    files.extend(device.iter().flat_map(|device| device.descriptors()));
    send_files(socket.get(), &files)?;
    let mut files = socket.read_with(|socket| receive_files(socket)).await?.into_iter();
    let slab =
        files.next().ok_or_else(|| std::io::Error::other("the peer sent no slab on the local socket"))?;
    let device = files.next().zip(files.next());
    let device = device.map(|(bytes, clock)| Arc::new(HostDevice::new(DiskMemory { bytes, clock })));
    Ok(Memory { slab: slab.into(), device })
}

/// The location of an exported payload: export number, frame, and offset in the frame. Little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub number: u64,
    pub index: u32,
    pub start: u32,
}

impl Location {
    /// The offset in the slab.
    pub(super) fn offset(self) -> u64 {
        u64::from(self.index) * UNIT_SIZE as u64 + u64::from(self.start)
    }

    pub(super) fn encode(self) -> [u8; LOCATION_SIZE] {
        let all = u128::from(self.number) | u128::from(self.index) << 64 | u128::from(self.start) << 96;
        all.to_le_bytes()
    }

    pub(super) fn decode(bytes: [u8; LOCATION_SIZE]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self { number: all as u64, index: (all >> 64) as u32, start: (all >> 96) as u32 }
    }
}

struct Export {
    to: NodeId,
    /// Keeps the frame allocated.
    payload: Payload,
    done: Option<Resolver<Result<()>>>,
}

pub(super) struct Exports {
    /// Starts at random, so that a message about an export of an earlier incarnation of this agent ends none of this one.
    next: AtomicU64,
    exports: Mutex<BTreeMap<u64, Export>>,
}

impl Exports {
    pub(super) fn new(first: u64) -> Self {
        Self { next: AtomicU64::new(first), exports: Mutex::default() }
    }

    fn begin(&self, to: NodeId, payload: Payload, done: Option<Resolver<Result<()>>>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.exports.lock().insert(number, Export { to, payload, done });
        number
    }

    /// Ends an export that the peer has copied.
    pub(super) fn copied(&self, number: u64, by: NodeId) {
        let ended = {
            let mut exports = self.exports.lock();
            if exports.get(&number).is_some_and(|export| export.to == by) {
                exports.remove(&number)
            } else {
                None
            }
        };
        if let Some(done) = ended.and_then(|export| export.done) {
            done.resolve(Ok(()));
        }
    }

    /// Cancels an export whose message was not sent, and returns its parts.
    pub(super) fn cancel_export(&self, number: u64) -> Option<(Payload, Option<Resolver<Result<()>>>)> {
        let ended = self.exports.lock().remove(&number);
        ended.map(|export| (export.payload, export.done))
    }

    /// True if a payload is exported to the peer.
    pub(super) fn any(&self, to: NodeId) -> bool {
        self.exports.lock().values().any(|export| export.to == to)
    }

    /// Fails all exports to a peer that lost a connection; `None` means all peers.
    pub(super) fn fail(&self, to: Option<NodeId>, fault: &Fault) {
        let ended: BTreeMap<_, _> = {
            let mut exports = self.exports.lock();
            let is_to = |export: &Export| to.is_none_or(|to| to == export.to);
            let (ended, kept) = std::mem::take(&mut *exports).into_iter().partition(|(_, one)| is_to(one));
            *exports = kept;
            ended
        };
        let waiting = ended.into_values().filter_map(|export| export.done);
        waiting.for_each(|done| done.resolve(Err(fault.clone())));
    }
}

/// Exports payloads of this agent's slab.
#[derive(Clone)]
pub(super) struct Exporter {
    /// The frames of this agent.
    pub slab: Arc<Slab>,
    pub exports: Arc<Exports>,
}

impl Exporter {
    /// Exports a payload of at least `least` bytes that is in the slab. `done` resolves when the peer has copied it.
    pub(super) fn export(
        &self,
        to: NodeId,
        (payload, least): (&Payload, usize),
        done: &mut Option<Resolver<Result<()>>>,
    ) -> Option<Location> {
        if payload.len() < least {
            return None;
        }
        let (index, start) = payload.place_in(&self.slab)?;
        Some(Location { number: self.exports.begin(to, payload.clone(), done.take()), index, start })
    }
}

/// The access of two agents of one host to each other's memory.
pub(super) struct Neighbour {
    pub exporter: Exporter,
    /// The memory of the peer.
    pub theirs: Memory,
}

impl Neighbour {
    /// Copies a payload that the peer exports.
    pub(super) fn copy(&self, location: Location, target: &mut [u8]) -> std::io::Result<()> {
        self.theirs.slab.read_exact_at(target, location.offset())
    }

    pub(super) fn device(&self) -> Option<Arc<HostDevice>> {
        self.theirs.device.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn locations_are_decoded_as_encoded(number: u64, index: u32, start: u32) {
            let location = Location { number, index, start };
            prop_assert_eq!(Location::decode(location.encode()), location);
        }
    }

    #[test]
    fn a_socket_name_depends_on_secret_node_and_port() {
        let name = meeting_name(&[7; 32], NodeId(1), 40000);
        assert!(name.starts_with("tameike-") && name.len() == 40, "{name}");
        assert_ne!(name, meeting_name(&[8; 32], NodeId(1), 40000));
        assert_ne!(name, meeting_name(&[7; 32], NodeId(2), 40000));
        assert_ne!(name, meeting_name(&[7; 32], NodeId(1), 40001));
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let location = Location { number: 0x0102_0304_0506_0708, index: 9, start: 0x0a0b };
        assert_eq!(location.encode(), *b"\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\x0b\x0a\0\0");
    }
}
