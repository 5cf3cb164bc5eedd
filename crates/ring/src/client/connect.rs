//! From a path to a connection.

use super::lent::LentFrames;
use super::names::Shown;
use super::near::Near;
use super::placed::Devices;
use super::slots::Slots;
use super::{Client, ViewInfo};
use crate::greeting::{WELCOME_SIZE_MAX, Welcome, hello};
use crate::layout::{ARENA_SIZE, NOTICE_SIZE};
use crate::spin::Spin;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use tameike_core::Fault;
use tameike_io::os::arena::{Arena, Sight};
use tameike_io::os::forked::OwnMark;
use tameike_io::os::process::{self, monotonic};
use tameike_io::os::socket::{peer_user, receive_now, send_with_files};

/// How long an agent may take to say welcome.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Where the socket's number lies, or below the limit: out of the way of what programs open.
const SOCKET_NUMBER: u64 = 1000;
/// Distance from the limit, where that is lower.
const BELOW_LIMIT: u64 = 24;
/// How long a program looks for an answer before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Why there is no ring; the program goes on without.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A call of the system failed.
    #[error("{doing}: {error}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        error: std::io::Error,
    },
    /// The agent could not be told who asks.
    #[error("greeting the agent: {0}")]
    Greeting(Fault),
    /// The agent has as many clients as it takes.
    #[error("the agent has as many clients as it takes")]
    Full,
    /// The agent does not serve this user, or user 0 with fewer capabilities than the superuser of its user namespace.
    #[error("the agent serves another user, or needs more capabilities of user 0")]
    Refused,
    /// Another user answers in place of the agent.
    #[error("user {0} answers in place of the agent")]
    Stranger(u32),
    /// The agent is of another version, or not one.
    #[error("the agent speaks another version of the ring")]
    Version,
}

fn failed(doing: &'static str) -> impl Fn(std::io::Error) -> ConnectError {
    move |error| ConnectError::System { doing, error }
}

pub(super) fn connect(path: &Path, keeps: fn(RawFd)) -> Result<Client, ConnectError> {
    let socket = UnixStream::connect(path).map_err(failed("reaching the agent"))?;
    let user = peer_user(&socket).map_err(ConnectError::Greeting)?;
    if user != process::user() {
        return Err(ConnectError::Stranger(user));
    }
    socket.set_read_timeout(Some(GREETING_TIME)).map_err(failed("setting a limit of time"))?;
    let (arena, memory) =
        Arena::create("tameike-ring", ARENA_SIZE).map_err(failed("making memory to be shared"))?;
    let own = OwnMark::new().map_err(failed("marking the process"))?;
    let begun = monotonic();
    let sent = send_with_files(&socket, &hello(), &[memory.as_fd()]);
    let mut bytes = vec![0; WELCOME_SIZE_MAX];
    let (size, files) = receive_now(&socket, &mut bytes).map_err(failed("hearing the agent"))?;
    if size == 0 {
        sent.map_err(ConnectError::Greeting)?;
    } // else one that has no room has said so, and not waited for the hello
    let (mounts, frames) = match Welcome::decode(&bytes[..size]).ok_or(ConnectError::Version)? {
        Welcome::Views { mounts, frames } => (mounts, frames),
        Welcome::Full => return Err(ConnectError::Full),
        Welcome::Refused => return Err(ConnectError::Refused),
    };
    let (notice, lent) = files.split_first().ok_or(ConnectError::Version)?;
    let notice = Sight::map(notice, NOTICE_SIZE).map_err(failed("mapping the agent's notice"))?;
    let lent = match lent {
        // Where they cannot be mapped, all is asked for.
        [table, slab] if frames > 0 => LentFrames::map(frames, table, slab).ok(),
        _ => None,
    };
    let socket = out_of_the_way(socket.into()).map_err(failed("moving a socket out of the way"))?;
    keeps(socket.as_raw_fd());
    Ok(Client {
        views: mounts.into_iter().map(|mount| ViewInfo { mount }).collect(),
        arena,
        shown: Shown::new(&notice, begun),
        notice,
        lent,
        socket,
        own,
        broken: false.into(),
        slots: Slots::default(),
        populated: Default::default(),
        spin: Spin::new(SPIN),
        near: Near::default(),
        devices: Devices::default(),
        keeps,
    })
}

impl Client {
    /// A descriptor that came from the agent, as the connection keeps it.
    pub(super) fn kept_apart(&self, descriptor: OwnedFd) -> Option<OwnedFd> {
        let kept = out_of_the_way(descriptor).ok()?;
        (self.keeps)(kept.as_raw_fd());
        Some(kept)
    }
}

/// The same descriptor under a number that programs seldom meet.
fn out_of_the_way(descriptor: OwnedFd) -> std::io::Result<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let number = SOCKET_NUMBER.min(limit.saturating_sub(BELOW_LIMIT)) as i32;
    match rustix::io::fcntl_dupfd_cloexec(&descriptor, number) {
        Ok(moved) => Ok(moved),
        // All of those are taken: it stays where it is.
        Err(rustix::io::Errno::MFILE | rustix::io::Errno::INVAL) => Ok(descriptor),
        Err(error) => Err(error.into()),
    }
}
