//! Agents of one host: they meet at a local socket, and read each other's payloads where they lie.
//!
//! The socket has an abstract name that is derived from the job's secret. Both ends require that the kernel names their own
//! user as the other end's ([`check_owner`]), and the handshake's proofs hold for this socket alone. An agent whose local
//! peer fails one of these checks speaks with it over TCP, which has its own protection.
//!
//! After the handshake each gives the other the memory of its slab, and of its device if it has one there ([`exchange`]). From then on a payload of some size is
//! *lent*: its place travels instead of its bytes, its frame is kept until the peer says that it has copied it to a frame
//! of its own, and the checksum in the header tells whether it was left alone meanwhile. What is lent when a connection
//! breaks is free again: whoever is still copying finds the connection, or the checksum, broken. The memory is read as a
//! file is, not mapped: so frames count as memory of their own agent only.
//!
//! A host is where the socket can be found: an abstract name is known in one network name space of one kernel. Nodes
//! that are kept apart by network name spaces, as containers may be, speak TCP.

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

/// Smaller payloads are cheaper to send than to lend.
pub(super) const LENT_MIN: usize = 32 << 10;
/// Size of an encoded place, in bytes.
pub(super) const PLACE_SIZE: usize = 16;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A local stream socket, and the name at which the agent of `node` with this TCP port listens for agents of its host. Nobody can
/// guess the name without the job's secret, and it says nothing about the job.
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

/// Connects to the agent of `node`, if it is on this host; none when nothing listens there.
///
/// # Errors
/// The socket cannot be used, or belongs to another user.
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

/// Checks that the process at the other end of a local socket runs as this user, by the kernel's record of the moment when it
/// listened or connected.
pub(super) fn check_owner(socket: &OwnedFd) -> std::io::Result<()> {
    let (theirs, ours) = (peer_of(socket.as_fd())?.user, rustix::process::geteuid().as_raw());
    // A user that this user namespace does not map has the overflow number, so that number names nobody.
    if theirs == ours && !process::may_be_any_user(ours) {
        return Ok(());
    }
    let why = format!("the process at the local socket runs as user {theirs}, this agent as user {ours}");
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why))
}

/// What an agent has others of its host read.
pub(super) struct Memory {
    slab: File,
    /// When it has one, in memory.
    device: Option<Arc<HostDevice>>,
}

impl Memory {
    /// The slab alone.
    pub(super) fn without_device(self) -> Self {
        Self { device: None, ..self }
    }
}

/// Gives a proven peer the memory of this agent's slab and device, and takes those of its own.
pub(super) async fn exchange(
    socket: &Watched<OwnedFd>,
    slab: &Slab,
    device: Option<&HostDevice>,
) -> std::io::Result<Memory> {
    let mut files = vec![slab.memory()];
    files.extend(device.iter().flat_map(|device| device.descriptors()));
    send_files(socket.get(), &files)?;
    let mut files = socket.read_with(|socket| receive_files(socket)).await?.into_iter();
    let slab = files.next().ok_or_else(|| std::io::Error::other("a slab was expected on a local socket"))?;
    let device = files.next().zip(files.next());
    let device = device.map(|(bytes, clock)| Arc::new(HostDevice::new(DiskMemory { bytes, clock })));
    Ok(Memory { slab: slab.into(), device })
}

/// Where a lent payload lies: its loan's number, its frame, and its first byte there. Little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub number: u64,
    pub index: u32,
    pub start: u32,
}

impl Place {
    /// Its first byte's, in the slab.
    pub(super) fn offset(self) -> u64 {
        u64::from(self.index) * UNIT_SIZE as u64 + u64::from(self.start)
    }

    pub(super) fn encode(self) -> [u8; PLACE_SIZE] {
        let all = u128::from(self.number) | u128::from(self.index) << 64 | u128::from(self.start) << 96;
        all.to_le_bytes()
    }

    pub(super) fn decode(bytes: [u8; PLACE_SIZE]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self { number: all as u64, index: (all >> 64) as u32, start: (all >> 96) as u32 }
    }
}

struct Loan {
    to: NodeId,
    /// Keeps the frame.
    payload: Payload,
    done: Option<Resolver<Result<()>>>,
}

/// What peers of this host have been lent.
pub(super) struct Loans {
    /// Starts at random, so that a word about a loan of an earlier life of this agent ends none of this life.
    next: AtomicU64,
    loans: Mutex<BTreeMap<u64, Loan>>,
}

impl Loans {
    pub(super) fn new(first: u64) -> Self {
        Self { next: AtomicU64::new(first), loans: Mutex::default() }
    }

    fn begin(&self, to: NodeId, payload: Payload, done: Option<Resolver<Result<()>>>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.loans.lock().insert(number, Loan { to, payload, done });
        number
    }

    /// The peer has copied what it was lent.
    pub(super) fn copied(&self, number: u64, by: NodeId) {
        let ended = {
            let mut loans = self.loans.lock();
            if loans.get(&number).is_some_and(|loan| loan.to == by) { loans.remove(&number) } else { None }
        };
        if let Some(done) = ended.and_then(|loan| loan.done) {
            done.resolve(Ok(()));
        }
    }

    /// The message with the loan was not sent: what it was made of.
    pub(super) fn take_back(&self, number: u64) -> Option<(Payload, Option<Resolver<Result<()>>>)> {
        let ended = self.loans.lock().remove(&number);
        ended.map(|loan| (loan.payload, loan.done))
    }

    /// Whether a peer has been lent anything.
    pub(super) fn any(&self, to: NodeId) -> bool {
        self.loans.lock().values().any(|loan| loan.to == to)
    }

    /// Ends all loans to a peer that lost a connection; `None` stands for all peers.
    pub(super) fn fail(&self, to: Option<NodeId>, fault: &Fault) {
        let ended: Vec<_> = {
            let mut loans = self.loans.lock();
            let hit = |loan: &Loan| to.is_none_or(|to| to == loan.to);
            let numbers: Vec<_> =
                loans.iter().filter(|(_, loan)| hit(loan)).map(|(number, _)| *number).collect();
            numbers.iter().filter_map(|number| loans.remove(number)).collect()
        };
        for loan in ended {
            if let Some(done) = loan.done {
                done.resolve(Err(fault.clone()));
            }
        }
    }
}

/// Lends payloads of this agent's slab.
#[derive(Clone)]
pub(super) struct Lender {
    /// This agent's frames.
    pub slab: Arc<Slab>,
    /// What all peers have been lent.
    pub loans: Arc<Loans>,
}

impl Lender {
    /// Lends a payload that is large enough, and lies in the slab; `done` is told when it was copied.
    pub(super) fn lend(
        &self,
        to: NodeId,
        (payload, least): (&Payload, usize),
        done: &mut Option<Resolver<Result<()>>>,
    ) -> Option<Place> {
        if payload.len() < least {
            return None;
        }
        let (index, start) = payload.place_in(&self.slab)?;
        Some(Place { number: self.loans.begin(to, payload.clone(), done.take()), index, start })
    }
}

/// What agents of one host have of each other.
pub(super) struct Neighbour {
    pub lender: Lender,
    /// What the peer has.
    pub theirs: Memory,
}

impl Neighbour {
    /// Copies what the peer lends.
    pub(super) fn copy(&self, place: Place, target: &mut [u8]) -> std::io::Result<()> {
        self.theirs.slab.read_exact_at(target, place.offset())
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
        fn places_come_back(number: u64, index: u32, start: u32) {
            let place = Place { number, index, start };
            prop_assert_eq!(Place::decode(place.encode()), place);
        }
    }

    #[test]
    fn a_name_differs_by_secret_node_and_port() {
        let name = meeting_name(&[7; 32], NodeId(1), 40000);
        assert!(name.starts_with("tameike-") && name.len() == 40, "{name}");
        assert_ne!(name, meeting_name(&[8; 32], NodeId(1), 40000));
        assert_ne!(name, meeting_name(&[7; 32], NodeId(2), 40000));
        assert_ne!(name, meeting_name(&[7; 32], NodeId(1), 40001));
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let place = Place { number: 0x0102_0304_0506_0708, index: 9, start: 0x0a0b };
        assert_eq!(place.encode(), *b"\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\x0b\x0a\0\0");
    }
}
