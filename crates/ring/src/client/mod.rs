//! The end of a program.
//!
//! Once [`Client::connect`] has returned, no call here allocates, locks, panics or prints, and all may be made in signal
//! handlers and by any number of threads at once.

mod answer;

pub use answer::{Answer, OpenFile, Start, Status, Time, ViewInfo};

use std::os::fd::RawFd;
use std::path::Path;

/// Longest name that [`Client::hand_over`] gives, in bytes.
pub const HANDOVER_NAME_SIZE: usize = 64;

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
    /// The agent has as many clients as it takes.
    #[error("the agent has as many clients as it takes")]
    Full,
    /// The agent does not serve this user.
    #[error("the agent serves another user")]
    Refused,
    /// The agent is of another version, or not one.
    #[error("the agent speaks another version of the ring")]
    Version,
}

/// The connection of one process to the agent of its node.
#[derive(Debug)]
pub struct Client {
    views: Vec<ViewInfo>,
}

impl Client {
    /// Connects to the agent that listens at `socket`.
    ///
    /// # Errors
    /// Why there is no ring.
    pub fn connect(_socket: &Path) -> Result<Self, ConnectError> {
        Err(ConnectError::Version)
    }

    /// The views, by [`Start::view`].
    pub fn views(&self) -> &[ViewInfo] {
        &self.views
    }

    /// Whether no call is answered any more: the agent is gone, or this is a child of the process that has connected.
    pub fn is_broken(&self) -> bool {
        true
    }

    /// The one descriptor that the connection keeps: close-on-exec, with a high number; it must not be closed.
    pub fn socket(&self) -> RawFd {
        -1
    }

    /// Opens a regular file as `openat` does; `mode` is what is left of the mode after the umask.
    pub fn open(&self, _at: Start, _path: &[u8], _flags: i32, _mode: u32) -> Answer<OpenFile> {
        Answer::Broken
    }

    /// Reads as `preadv` does.
    pub fn read(&self, _handle: u64, _offset: u64, _into: &mut [&mut [u8]]) -> Answer<usize> {
        Answer::Broken
    }

    /// Writes as `pwritev` does.
    pub fn write(&self, _handle: u64, _offset: u64, _from: &[&[u8]]) -> Answer<usize> {
        Answer::Broken
    }

    /// Writes to the end of the file, as `writev` with `O_APPEND`; the count, and the offset behind the last byte.
    pub fn append(&self, _handle: u64, _from: &[&[u8]]) -> Answer<(usize, u64)> {
        Answer::Broken
    }

    /// Attributes of an open file.
    pub fn status(&self, _handle: u64) -> Answer<Status> {
        Answer::Broken
    }

    /// Attributes by path; `follow` as without `AT_SYMLINK_NOFOLLOW`.
    pub fn status_at(&self, _at: Start, _path: &[u8], _follow: bool) -> Answer<Status> {
        Answer::Broken
    }

    /// Cuts or extends as `ftruncate`.
    pub fn set_size(&self, _handle: u64, _size: u64) -> Answer<()> {
        Answer::Broken
    }

    /// `fsync` and `fdatasync`.
    pub fn sync(&self, _handle: u64) -> Answer<()> {
        Answer::Broken
    }

    /// Ends a handle; what is told is what `close` tells. The handle is gone whatever the answer.
    pub fn close(&self, _handle: u64) -> Answer<()> {
        Answer::Broken
    }

    /// `lseek` with `SEEK_DATA` (`data`) or `SEEK_HOLE`.
    pub fn seek(&self, _handle: u64, _data: bool, _offset: u64) -> Answer<u64> {
        Answer::Broken
    }

    /// Removes a name of a regular file.
    pub fn unlink(&self, _at: Start, _path: &[u8]) -> Answer<()> {
        Answer::Broken
    }

    /// Makes a directory; `mode` is what is left after the umask.
    pub fn make_dir(&self, _at: Start, _path: &[u8], _mode: u32) -> Answer<()> {
        Answer::Broken
    }

    /// `renameat2` of a regular file, within one view.
    pub fn rename(&self, _from: (Start, &[u8]), _to: (Start, &[u8]), _flags: u32) -> Answer<()> {
        Answer::Broken
    }

    /// A name in the root of the handle's view under which the kernel can open the same file; its length. The handle
    /// stays until it is closed, the name until then at most.
    pub fn hand_over(&self, _handle: u64, _name: &mut [u8; HANDOVER_NAME_SIZE]) -> Answer<usize> {
        Answer::Broken
    }
}
