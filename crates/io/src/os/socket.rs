//! Local sockets: credentials of the peer, and passing of open files.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::Pid;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tameike_core::{Fault, Result};

/// Number of the option in `asm-generic/socket.h`.
const SO_PEERPIDFD: libc::c_int = 77;
/// Number of the option in `asm-generic/socket.h`.
const SO_PEERGROUPS: libc::c_int = 59;
/// Supplementary groups for which a first call has space.
const GROUPS_EXPECTED: usize = 64;
/// Bound on files per message.
const FILES_MAX: usize = 8;
/// Bound on bytes per receive.
const PIECE_SIZE: usize = 64 << 10;

/// The peer's credentials, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that connected; `None` if it is not visible in this PID namespace.
    pub process: Option<Pid>,
    /// Its user at that time.
    pub user: u32,
    /// Its group at that time.
    pub group: u32,
}

impl Peer {
    /// True if the process is known to have the same numbers of processes as this one.
    pub fn shares_process_numbers(&self) -> bool {
        let depth = |process: &str| {
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            Some(numbers.split_ascii_whitespace().count())
        };
        // A process of a nested namespace has a number in each of them.
        self.process.is_some_and(|process| {
            let theirs = depth(&process.as_raw_nonzero().to_string());
            theirs.is_some() && theirs == depth("self")
        })
    }
}

/// The credentials of the peer.
///
/// # Errors
/// The socket is not a connected local one.
pub fn peer(socket: &UnixStream) -> Result<Peer> {
    peer_of(socket.as_fd()).map_err(|error| Fault::from_os("getting the peer of a socket", &error))
}

/// As [`peer`], for any local stream socket.
pub fn peer_of(socket: BorrowedFd<'_>) -> std::io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the socket is open; the kernel writes at most `size` bytes to `found`, all values of which are valid. (The `rustix`
    // call cannot represent the PID 0 of an invisible process.)
    let failed = unsafe {
        let (found, size) = ((&raw mut found).cast(), &raw mut size);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, found, size)
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Peer { process: Pid::from_raw(found.pid), user: found.uid, group: found.gid })
}

/// A PID descriptor of the process that connected, which never refers to a reused number.
///
/// # Errors
/// The kernel is older than Linux 6.5, or the socket is not a connected local one.
pub(crate) fn peer_process(socket: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the socket is open; the kernel writes at most `size` bytes to `found`, all values of which are valid.
    let failed = unsafe {
        let (found, size) = ((&raw mut found).cast(), &raw mut size);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, found, size)
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

/// The supplementary groups of the peer when it connected.
///
/// # Errors
/// The socket is not a connected local one.
pub fn peer_groups(socket: &UnixStream) -> Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_EXPECTED];
    loop {
        let mut size = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the socket is open; the kernel writes at most `size` bytes to the groups, all values of which are valid.
        let failed = unsafe {
            let (found, size) = (groups.as_mut_ptr().cast(), &raw mut size);
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, found, size)
        };
        let count = size as usize / size_of::<libc::gid_t>();
        if failed == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(Fault::from_os("getting the groups of the peer of a socket", &error));
        }
        groups.resize(count, 0);
    }
}

/// Ends the calls that wait for connections of a socket, with an error.
pub fn stop_listening(socket: impl AsFd) {
    // Fails only for a socket that does not listen.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// The user of the peer, as reported by the kernel.
///
/// # Errors
/// The socket is not a connected local one.
pub fn peer_user(socket: &UnixStream) -> Result<u32> {
    peer(socket).map(|peer| peer.user)
}

/// Sends `bytes`, with open `files` attached to the first of them.
///
/// # Errors
/// The other end is closed.
pub fn send_with_files(mut socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
    assert!(files.len() <= FILES_MAX && !bytes.is_empty(), "at most {FILES_MAX} files, with some bytes");
    let failed = |error| Fault::from_os("sending on a local socket", &error);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(files));
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
        .map_err(|error| failed(error.into()))?;
    socket.write_all(&bytes[sent..]).map_err(failed)
}

/// Receives bytes (none if the other end is closed) and attached files.
pub fn receive_with_files(socket: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PIECE_SIZE];
    let (received, files) = receive(socket.as_fd(), &mut bytes)
        .map_err(|error| Fault::from_os("receiving from a local socket", &error))?;
    bytes.truncate(received);
    Ok((bytes, files))
}

/// As [`receive_with_files`], for a nonblocking socket: `WouldBlock` if there is no data.
pub fn receive_now(socket: &UnixStream, bytes: &mut [u8]) -> std::io::Result<(usize, Vec<OwnedFd>)> {
    receive(socket.as_fd(), bytes)
}

/// Sends open files, attached to one byte.
///
/// # Errors
/// The errors of the system: the other end is closed, or does not read.
pub fn send_files(socket: impl AsFd, files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(files));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the files that [`send_files`] sent.
pub fn receive_files(socket: impl AsFd) -> std::io::Result<Vec<OwnedFd>> {
    receive(socket.as_fd(), &mut [0]).map(|(_, files)| files)
}

/// Receives bytes (none if the other end is closed) and up to `COUNT` attached files; `None` if there is no data. Allocates
/// nothing.
pub fn receive_files_now<const COUNT: usize>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> std::io::Result<Option<(usize, [Option<OwnedFd>; COUNT])>> {
    let mut files = [const { None }; COUNT];
    let mut places = files.iter_mut();
    let take = |found| {
        if let Some(place) = places.next() {
            *place = Some(found);
        }
    };
    match receive_each(socket, bytes, RecvFlags::DONTWAIT, take) {
        Ok(received) => Ok(Some((received, files))),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// True if the other end of a stream is closed. Earlier data remains readable.
pub fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    // An interrupted call has seen nothing.
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(ends)
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> std::io::Result<(usize, Vec<OwnedFd>)> {
    let mut files = Vec::new();
    let received = receive_each(socket, bytes, RecvFlags::empty(), |file| files.push(file))?;
    Ok((received, files))
}

fn receive_each(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: RecvFlags,
    mut take: impl FnMut(OwnedFd),
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(&mut take);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use std::io::Read;

    #[test]
    fn files_travel_with_bytes() {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        send_with_files(&here, b"line\n", &[writer.as_fd()]).expect("the other end is open");
        drop(writer);
        let (bytes, files) = receive_with_files(&there).expect("something was sent");
        assert_eq!((bytes.as_slice(), files.len()), (&b"line\n"[..], 1));
        for file in files {
            std::fs::File::from(file).write_all(b"through").expect("the pipe is open");
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("ends when the last writer is closed");
        assert_eq!(text, "through");
        let peer = peer(&there).expect("connected");
        assert_eq!((peer.user, peer.process), (rustix::process::geteuid().as_raw(), Some(getpid())));
        assert!(peer.shares_process_numbers() && !Peer { process: None, ..peer }.shares_process_numbers());
        let own = rustix::process::getgroups().expect("this process has groups");
        let own: Vec<u32> = own.into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(peer_groups(&there).expect("connected"), own);
    }
}
