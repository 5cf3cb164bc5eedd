//! The program's side of the ring.
//!
//! After [`Client::connect`] has returned, no call allocates, locks, panics or prints. All calls may be made in signal handlers and by
//! several threads at once.

mod answer;
mod call;
mod connect;
mod extent_location;
pub(crate) mod granted;
pub mod mounts;
mod names;
mod pace;
pub mod path;
mod read;
mod received;
pub(crate) mod region;
mod slots;
mod transfer;
pub(crate) mod window;

pub use crate::message::{FileKey, Start, Status, Time};
pub use answer::{Answer, OpenFile};
pub use connect::ConnectError;
pub use region::Region;
pub use transfer::Transfer;
pub use window::{RemoteRank, Window};

use crate::WINDOW_SIZE;
use crate::layout::{LEFT, left};
use crate::message::{self, Reply, Request};
use call::{NoReply, Populated};
use granted::GrantedFrames;
use names::PublishedNames;
use pace::Pace;
use received::Received;
use rustix::fs::OFlags;
use slots::Slots;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_io::os::arena::{Arena, Sight};
use tameike_io::os::forked::OwnMark;

/// Flags of `open` with which the call may change names or content.
pub const CHANGING_FLAGS: i32 =
    OFlags::WRONLY.union(OFlags::RDWR).union(OFlags::CREATE).union(OFlags::TRUNC).bits() as i32;

pub use crate::WINDOW_SIZE as TRANSFER_SIZE_MAX;
pub use crate::layout::HANDOVER_NAME_SIZE;

/// The connection of one process to the agent of its node.
#[derive(Debug)]
pub struct Client {
    views: Vec<Vec<u8>>,
    pub(crate) arena: Arena,
    notice: Sight,
    /// `None` if the agent grants no frames, or they could not be mapped.
    granted: Option<GrantedFrames>,
    published: PublishedNames,
    pub(crate) socket: OwnedFd,
    own: OwnMark,
    broken: AtomicBool,
    slots: Slots,
    populated: Populated,
    /// Pace of requests on files.
    file_pace: Pace,
    /// Pace of page faults of regions.
    fault_pace: Pace,
    /// Pace of requests that may wait for other processes or nodes. No pinned server is wanted for them.
    wait_pace: Pace,
    received: Received,
    /// Slots of calls on regions that wait for other processes or nodes, of which half may be taken.
    long_calls: Slots,
    /// The program has opened a region.
    has_regions: AtomicBool,
    /// Called for each descriptor that the connection keeps.
    keeps: fn(RawFd),
}

impl Client {
    /// Connects to the agent that listens at `socket`. `keeps` is called for each descriptor that the connection keeps, now or in later
    /// calls. Such descriptors are close-on-exec and have high numbers; only a child of the process may close them.
    pub fn connect(socket: &Path, keeps: fn(RawFd)) -> Result<Self, ConnectError> {
        connect::connect(socket, keeps)
    }

    /// Mount points of the views, by [`Start::view`].
    pub fn views(&self) -> &[Vec<u8>] {
        &self.views
    }

    /// Returns true if no call is answered any more: the agent has failed, or this is a child of the process that has connected.
    pub fn is_broken(&self) -> bool {
        !self.own.is_own() || self.broken.load(Ordering::Relaxed)
    }

    /// The descriptors that the connection keeps.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.socket.as_raw_fd()).chain(self.received.devices.numbers())
    }

    /// Opens a regular file as `openat` does; the umask is already applied to `mode`.
    pub fn open(&self, at: Start, path: &[u8], flags: i32, mode: u32) -> Answer<OpenFile> {
        let opened = self.by_name(at, path, |path| Request::Open { path, flags, mode });
        self.take(opened, |reply| match reply {
            Reply::Opened { handle, key, status } => Some(OpenFile { handle, key, attr: status }),
            _ => None,
        })
    }

    /// Writes as `pwritev` does.
    pub fn write(&self, handle: u64, offset: u64, from: &[&[u8]]) -> Answer<usize> {
        let whole = from.iter().map(|part| part.len()).sum();
        self.pieces(
            whole,
            |_| WINDOW_SIZE,
            |done, size| {
                let Some(offset) = offset.checked_add(done as u64) else { return Answer::Declined };
                let written = self.claim(size as usize).and_then(|claim| {
                    self.put(&claim, parts(from, done, size as usize));
                    self.ask(&claim, &Request::Write { handle, offset, size })
                });
                self.take(written, counted(size))
            },
        )
    }

    /// Appends as `writev` with `O_APPEND`; returns the count, and the offset after the last byte. Declined if it exceeds one window, as it
    /// would not be atomic.
    pub fn append(&self, handle: u64, from: &[&[u8]]) -> Answer<(usize, u64)> {
        let whole: usize = from.iter().map(|part| part.len()).sum();
        if whole > WINDOW_SIZE {
            return Answer::Declined;
        }
        let size = whole as u32;
        let appended = self.claim(whole).and_then(|claim| {
            self.put(&claim, from.iter().copied());
            self.ask(&claim, &Request::Append { handle, size })
        });
        self.take(appended, |reply| match reply {
            Reply::Appended { count, end } if count <= size => Some((count as usize, end)),
            _ => None,
        })
    }

    /// Attributes of an open file.
    pub fn status(&self, handle: u64) -> Answer<Status> {
        self.take(self.by_handle(&Request::Status { handle }), attributes)
    }

    /// Attributes by path; `follow` is false with `AT_SYMLINK_NOFOLLOW`. Needs no request for names that the agent publishes.
    pub fn status_at(&self, at: Start, path: &[u8], follow: bool) -> Answer<Status> {
        if let Some(status) = self.known_status(at, path) {
            return Answer::Done(status);
        }
        self.take(self.by_name(at, path, |path| Request::StatusAt { path, follow }), attributes)
    }

    /// Truncates or extends as `ftruncate`.
    pub fn set_size(&self, handle: u64, size: u64) -> Answer<()> {
        self.take(self.by_handle(&Request::SetSize { handle, size }), done)
    }

    /// `fsync` and `fdatasync`.
    pub fn sync(&self, handle: u64) -> Answer<()> {
        self.take(self.by_handle(&Request::Sync { handle }), done)
    }

    /// Closes a handle; the result is that of `close`. The handle is gone in any case.
    pub fn close(&self, handle: u64) -> Answer<()> {
        self.take(self.by_handle(&Request::Close { handle }), done)
    }

    /// Closes a handle through which nothing was changed, so that the close cannot fail, without waiting for the agent. A failure of the
    /// agent may go undetected for as long as in lookups of names.
    pub fn leave(&self, handle: u64) -> Answer<()> {
        if self.is_broken() || !self.is_agent_there() {
            return Answer::Broken;
        }
        let put = |place: &AtomicU64| {
            place.compare_exchange(0, handle, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        // 0 means "no handle" in the shared places.
        if handle == 0 || !left(&self.arena).any(put) {
            return self.close(handle);
        }
        if !self.hand_over_near(&self.file_pace, LEFT) {
            self.announce(LEFT);
        }
        Answer::Done(())
    }

    /// `lseek` with `SEEK_DATA` (`data`) or `SEEK_HOLE`.
    pub fn seek(&self, handle: u64, data: bool, offset: u64) -> Answer<u64> {
        self.take(self.by_handle(&Request::Seek { handle, data, offset }), |reply| match reply {
            Reply::Offset(offset) => Some(offset),
            _ => None,
        })
    }

    /// Removes a name of a regular file.
    pub fn unlink(&self, at: Start, path: &[u8]) -> Answer<()> {
        self.take(self.by_name(at, path, |path| Request::Unlink { path }), done)
    }

    /// Creates a directory; the umask is already applied to `mode`.
    pub fn make_dir(&self, at: Start, path: &[u8], mode: u32) -> Answer<()> {
        self.take(self.by_name(at, path, |path| Request::MakeDir { path, mode }), done)
    }

    /// `renameat2` of a regular file, within one view.
    pub fn rename(&self, from: (Start, &[u8]), to: (Start, &[u8]), flags: u32) -> Answer<()> {
        let names = [(from.0, from.1), (to.0, to.1)];
        let renamed = self.by_names(names, |[from, to]| Request::Rename { from, to, flags });
        self.take(renamed, done)
    }

    /// Makes a name in the root of the handle's view under which the kernel can open the same file. Returns its length. The name is valid
    /// until the handle is closed at most.
    pub fn hand_over(&self, handle: u64, name: &mut [u8; HANDOVER_NAME_SIZE]) -> Answer<usize> {
        let claim = match self.claim(HANDOVER_NAME_SIZE) {
            Ok(claim) => claim,
            Err(none) => return none.into(),
        };
        let reply = self.ask(&claim, &Request::HandOver { handle });
        let size = self.take(reply, counted(HANDOVER_NAME_SIZE as u32));
        if let Answer::Done(size) = size {
            self.get(&claim, std::iter::once(&mut name[..size]));
        }
        size
    }

    fn by_handle(&self, request: &Request) -> Result<Reply, NoReply> {
        self.ask(&self.claim(0)?, request)
    }

    fn by_name(
        &self,
        at: Start,
        path: &[u8],
        request: impl FnOnce(message::Path) -> Request,
    ) -> Result<Reply, NoReply> {
        self.by_names([(at, path)], |[path]| request(path))
    }

    fn by_names<const COUNT: usize>(
        &self,
        names: [(Start, &[u8]); COUNT],
        request: impl FnOnce([message::Path; COUNT]) -> Request,
    ) -> Result<Reply, NoReply> {
        if names.iter().any(|(_, path)| path.len() > PATH_SIZE_MAX) {
            return Err(NoReply::Declined);
        }
        let claim = self.claim(names.iter().map(|(_, path)| path.len()).sum())?;
        self.put(&claim, names.iter().map(|(_, path)| *path));
        let paths = names.map(|(at, path)| message::Path { at, size: path.len() as u32 });
        self.ask(&claim, &request(paths))
    }

    /// Converts a reply; one that does not fit the request breaks the connection.
    fn take<T>(&self, reply: Result<Reply, NoReply>, take: impl FnOnce(Reply) -> Option<T>) -> Answer<T> {
        match reply {
            Ok(Reply::Failed(errno)) => Answer::Failed(errno),
            Ok(reply) => take(reply).map_or_else(|| self.give_up().into(), Answer::Done),
            Err(none) => none.into(),
        }
    }

    /// Moves `whole` bytes in pieces, until one is short. `most` returns the maximum size of the piece after the bytes done, at most a window.
    /// If a piece fails, the bytes before it are returned. If one is declined, the whole call is: the kernel moves all bytes again, to the same
    /// location.
    fn pieces(
        &self,
        whole: usize,
        most: impl Fn(usize) -> usize,
        mut piece: impl FnMut(usize, u32) -> Answer<usize>,
    ) -> Answer<usize> {
        let mut done = 0;
        while done < whole {
            let size = (whole - done).min(most(done));
            match piece(done, size as u32) {
                Answer::Done(count) => {
                    done += count;
                    if count < size {
                        break;
                    }
                }
                Answer::Declined => return Answer::Declined,
                _ if done > 0 => break,
                failed => return failed,
            }
        }
        Answer::Done(done)
    }
}

impl<T> From<NoReply> for Answer<T> {
    fn from(none: NoReply) -> Self {
        match none {
            NoReply::Declined => Self::Declined,
            NoReply::Broken => Self::Broken,
        }
    }
}

fn done(reply: Reply) -> Option<()> {
    (reply == Reply::Done).then_some(())
}

fn attributes(reply: Reply) -> Option<Status> {
    match reply {
        Reply::Status(status) => Some(status),
        _ => None,
    }
}

/// A count of at most `size`.
fn counted(size: u32) -> impl FnOnce(Reply) -> Option<usize> {
    move |reply| match reply {
        Reply::Count(count) if count <= size => Some(count as usize),
        _ => None,
    }
}

/// The slices of `all` that hold the `size` bytes after the first `skipped`.
fn parts<'a>(all: &'a [&'a [u8]], mut skipped: usize, mut size: usize) -> impl Iterator<Item = &'a [u8]> {
    all.iter().map(move |part| {
        let start = skipped.min(part.len());
        let count = (part.len() - start).min(size);
        (skipped, size) = (skipped - start, size - count);
        &part[start..start + count]
    })
}

fn parts_mut<'a>(
    all: &'a mut [&mut [u8]],
    mut skipped: usize,
    mut size: usize,
) -> impl Iterator<Item = &'a mut [u8]> {
    all.iter_mut().map(move |part| {
        let start = skipped.min(part.len());
        let count = (part.len() - start).min(size);
        (skipped, size) = (skipped - start, size - count);
        &mut part[start..start + count]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_each_byte_once() {
        let bytes: Vec<u8> = (0..20).collect();
        let all = [&bytes[..3], &bytes[3..3], &bytes[3..11], &bytes[11..]];
        let (mut first, mut second) = ([0; 3], [0; 17]);
        for start in 0..=20 {
            for size in 0..=20 - start {
                let found: Vec<u8> = parts(&all, start, size).flatten().copied().collect();
                assert_eq!(found, bytes[start..start + size]);
                let mut into = [&mut first[..], &mut second[..]];
                let found: usize = parts_mut(&mut into, start, size).map(|part| part.len()).sum();
                assert_eq!(found, size);
            }
        }
    }
}
