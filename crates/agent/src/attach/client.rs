//! The asking side: finds an agent of a volume on this host, and hands it a mount.

use super::{ANSWER_TIME, Answer, MESSAGE_SIZE_MAX, NodeAddress, Request, VERSION, VolumeName, line};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::{process, socket};

/// The sockets of this network namespace.
const SOCKET_TABLE: &str = "/proc/net/unix";

/// A connection to an agent of a volume.
#[derive(Debug)]
pub struct Connection(UnixStream);

/// Has an agent of the volume on this host serve an open `/dev/fuse`, which must be mounted and not served yet. `preferred` chooses among
/// several agents.
///
/// # Errors
/// See [`Connection::open`] and [`Connection::attach`].
pub fn attach(volume: &VolumeName, preferred: usize, fuse: OwnedFd) -> Result<()> {
    Connection::open(volume, preferred)?.attach(fuse)
}

/// The nodes of a volume whose agents run on this host, in ascending order.
///
/// # Errors
/// `/proc` is not mounted.
pub fn nodes_here(volume: &VolumeName) -> Result<Vec<u32>> {
    let table = std::fs::read(SOCKET_TABLE)
        .map_err(|error| Fault::from_os(format_args!("reading {SOCKET_TABLE}"), &error))?;
    Ok(nodes_in(&table, volume))
}

/// The nodes of a volume in a table of sockets, whose lines end with the names.
fn nodes_in(table: &[u8], volume: &VolumeName) -> Vec<u32> {
    let prefix = format!("@{}", volume.socket_prefix());
    let node = |line: &[u8]| {
        let name = line.rsplit(|&byte| byte == b' ').next()?;
        let digits = std::str::from_utf8(name.strip_prefix(prefix.as_bytes())?).ok()?;
        // A longer name with the same start is of another volume, and no number starts with a sign.
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    // Connections have the name of the socket that accepted them.
    let nodes: BTreeSet<u32> = table.split(|&byte| byte == b'\n').filter_map(node).collect();
    nodes.into_iter().collect()
}

fn no_agent(volume: &VolumeName) -> Fault {
    let name = &volume.name;
    let remedy = if volume.owner == process::user() {
        format!(
            "start it with `tameike volume start {name}`, or add this host with `tameike volume grow {name}`"
        )
    } else {
        format!(
            "ask its owner, user {}, to start it (`tameike volume start {name}`), or to add this host \
             (`tameike volume grow {name}`)",
            volume.owner
        )
    };
    Fault::new(Errno::ENOENT, format!("no agent of the volume {name} runs on this host: {remedy}"))
}

impl Connection {
    /// Connects to an agent of the volume on this host. Call it before the process enters a user namespace, in which the owner of the volume
    /// has no number.
    ///
    /// # Errors
    /// `ENOENT` if no agent of the volume runs on this host. `EPERM` if only sockets of other users have the names of its agents.
    pub fn open(volume: &VolumeName, preferred: usize) -> Result<Self> {
        let nodes = nodes_here(volume)?;
        let mut refused = None;
        for turn in 0..nodes.len() {
            let node = nodes[(preferred % nodes.len() + turn) % nodes.len()];
            match Self::open_node(&NodeAddress { volume: volume.clone(), node }) {
                Ok(connection) => return Ok(connection),
                // A later failure says less than an impostor.
                Err(fault) => drop(refused.get_or_insert(fault)),
            }
        }
        Err(refused.unwrap_or_else(|| no_agent(volume)))
    }

    fn open_node(address: &NodeAddress) -> Result<Self> {
        let doing =
            || format!("connecting to the agent of node {} of volume {}", address.node, address.volume.name);
        let failed = |error: std::io::Error| Fault::from_os(doing(), &error);
        let socket = UnixStream::connect_addr(&address.socket_address()?).map_err(failed)?;
        let user = socket::peer_user(&socket)?;
        if user != address.volume.owner || process::may_be_any_user(user) {
            let message =
                format!("{}: its socket belongs to user {user}, not to the owner of the volume", doing());
            return Err(Fault::new(Errno::EPERM, message));
        }
        socket
            .set_read_timeout(Some(ANSWER_TIME))
            .and_then(|()| socket.set_write_timeout(Some(ANSWER_TIME)))
            .map_err(failed)?;
        Ok(Self(socket))
    }

    /// Has the agent serve an open `/dev/fuse`, and closes it here.
    ///
    /// # Errors
    /// The agent refuses, with its reason, or does not answer. The mount is then of no use, and the caller unmounts it.
    pub fn attach(self, fuse: OwnedFd) -> Result<()> {
        let sent = socket::send_with_files(&self.0, &line(&Request { version: VERSION }), &[fuse.as_fd()]);
        drop(fuse);
        // An agent that refuses at once may have closed its end before the request was sent.
        match self.answer() {
            Ok(Answer::Attached) => Ok(()),
            Ok(Answer::Refused(fault)) => Err(fault.context("the agent of the volume refuses the mount")),
            Err(fault) => Err(sent.err().unwrap_or(fault)),
        }
    }

    fn answer(&self) -> Result<Answer> {
        let mut bytes = vec![0; MESSAGE_SIZE_MAX];
        let (size, _) = socket::receive_now(&self.0, &mut bytes)
            .map_err(|error| Fault::from_os("receiving the answer of the agent of a volume", &error))?;
        if size == 0 {
            return Err(Fault::new(
                Errno::EPIPE,
                "the agent of the volume has ended the connection without an answer",
            ));
        }
        serde_json::from_slice(&bytes[..size])
            .map_err(|error| Fault::io(format!("the agent of the volume sent no valid answer: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str) -> VolumeName {
        VolumeName { owner: 7, name: name.to_owned() }
    }

    #[test]
    fn nodes_are_found_by_the_names_of_their_sockets() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 @tameike-volume-7-a-12\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 2 @tameike-volume-7-a-12\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 3 @tameike-volume-7-a-3\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4 @tameike-volume-7-a-b-4\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 5 @tameike-volume-7-a-5-6\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 6 @tameike-volume-77-a-8\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 7 @tameike-volume-7-a-+9\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 8 /run/tameike-volume-7-a-9\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 9\n";
        assert_eq!(nodes_in(table, &volume("a")), [3, 12]);
        assert_eq!(nodes_in(table, &volume("a-b")), [4]);
        assert_eq!(nodes_in(table, &volume("a-5")), [6]);
        assert!(nodes_in(table, &volume("none")).is_empty());
    }

    #[test]
    fn an_error_says_what_to_do() {
        let own = VolumeName { owner: process::user(), name: "scratch-none".to_owned() };
        let fault = Connection::open(&own, 3).expect_err("no such volume");
        assert!(fault.to_string().contains("`tameike volume start scratch-none`"), "{fault}");
        let other = VolumeName { owner: process::user() + 1, ..own };
        let fault = Connection::open(&other, 0).expect_err("no such volume");
        assert!(fault.to_string().contains("ask its owner"), "{fault}");
    }
}
