//! Connection of a program to the agent.

use super::Client;
use super::granted::GrantedFrames;
use super::names::PublishedNames;
use super::pace::Pace;
use super::received::Received;
use super::slots::Slots;
use crate::greeting::{WELCOME_SIZE_MAX, Welcome, hello};
use crate::layout::{ARENA_SIZE, NOTICE_SIZE};
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

/// Time limit for the agent's welcome.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Minimum descriptor number of the socket, away from those of the program.
const SOCKET_NUMBER: u64 = 1000;
/// Distance from the descriptor limit, if that is lower.
const BELOW_LIMIT: u64 = 24;

/// Reason why there is no connection; the program continues without the ring.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A system call failed.
    #[error("{doing}: {error}")]
    System {
        /// Operation in progress.
        doing: &'static str,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The exchange of greetings failed.
    #[error("connecting to the agent: {0}")]
    Greeting(Fault),
    /// The maximum number of programs is connected.
    #[error("the agent already serves the maximum number of programs")]
    Full,
    /// The agent does not serve this user, or this is user 0 with fewer capabilities than the superuser of its user namespace.
    #[error("the agent serves another user, or this process of user 0 lacks capabilities")]
    Refused,
    /// The socket belongs to another user.
    #[error("the agent's socket belongs to user {0}, not to this one")]
    OtherUser(u32),
    /// The agent has another version of the ring, or is none.
    #[error("the agent has another version of the ring")]
    Version,
}

fn failed(doing: &'static str) -> impl Fn(std::io::Error) -> ConnectError {
    move |error| ConnectError::System { doing, error }
}

pub(super) fn connect(path: &Path, keeps: fn(RawFd)) -> Result<Client, ConnectError> {
    let socket = UnixStream::connect(path).map_err(failed("connecting to the agent"))?;
    let user = peer_user(&socket).map_err(ConnectError::Greeting)?;
    if user != process::user() {
        return Err(ConnectError::OtherUser(user));
    }
    socket.set_read_timeout(Some(GREETING_TIME)).map_err(failed("setting a time limit"))?;
    let (arena, memory) =
        Arena::create("tameike-ring", ARENA_SIZE).map_err(failed("creating shared memory"))?;
    let own = OwnMark::new().map_err(failed("marking the process"))?;
    let begun = monotonic();
    let sent = send_with_files(&socket, &hello(), &[memory.as_fd()]);
    let mut bytes = vec![0; WELCOME_SIZE_MAX];
    let (size, files) = receive_now(&socket, &mut bytes).map_err(failed("receiving the agent's welcome"))?;
    if size == 0 {
        sent.map_err(ConnectError::Greeting)?;
    } // A full agent replies without waiting for the hello, whose send may fail then.
    let (views, frames) = match Welcome::decode(&bytes[..size]).ok_or(ConnectError::Version)? {
        Welcome::Views { mounts, frames } => (mounts, frames),
        Welcome::Full => return Err(ConnectError::Full),
        Welcome::Refused => return Err(ConnectError::Refused),
    };
    let (notice, granted) = files.split_first().ok_or(ConnectError::Version)?;
    let notice = Sight::map(notice, NOTICE_SIZE).map_err(failed("mapping the agent's notice"))?;
    let granted = match granted {
        // Without the mapping, every read is a request.
        [table, slab] if frames > 0 => GrantedFrames::map(frames, table, slab).ok(),
        _ => None,
    };
    let socket = to_high_number(socket.into()).map_err(failed("moving the socket to another descriptor"))?;
    keeps(socket.as_raw_fd());
    Ok(Client {
        views,
        arena,
        published: PublishedNames::new(&notice, begun),
        notice,
        granted,
        socket,
        own,
        broken: false.into(),
        slots: Slots::default(),
        populated: Default::default(),
        file_pace: Pace::new(),
        fault_pace: Pace::new(),
        wait_pace: Pace::new(),
        received: Received::default(),
        long_calls: Slots::default(),
        has_regions: false.into(),
        keeps,
    })
}

impl Client {
    /// Moves a descriptor that the agent has sent out of the way, for the lifetime of the connection.
    pub(super) fn keep_descriptor(&self, descriptor: OwnedFd) -> Option<OwnedFd> {
        let kept = to_high_number(descriptor).ok()?;
        (self.keeps)(kept.as_raw_fd());
        Some(kept)
    }

    /// Moves a descriptor that the caller keeps out of the way.
    pub(super) fn move_descriptor(descriptor: OwnedFd) -> Option<OwnedFd> {
        to_high_number(descriptor).ok()
    }
}

/// Moves a descriptor to a number that programs rarely use.
fn to_high_number(descriptor: OwnedFd) -> std::io::Result<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let number = SOCKET_NUMBER.min(limit.saturating_sub(BELOW_LIMIT)) as i32;
    match rustix::io::fcntl_dupfd_cloexec(&descriptor, number) {
        Ok(moved) => Ok(moved),
        // All those numbers are in use: the descriptor stays.
        Err(rustix::io::Errno::MFILE | rustix::io::Errno::INVAL) => Ok(descriptor),
        Err(error) => Err(error.into()),
    }
}
