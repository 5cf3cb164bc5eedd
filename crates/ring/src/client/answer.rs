//! Results of calls.

use crate::message::{FileKey, Status};
use rustix::io::{Errno, Result};

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// Success, with the result.
    Done(T),
    /// Failure with this errno, as on the mount.
    Failed(i32),
    /// Nothing has happened; the caller must use the kernel.
    Declined,
    /// The agent has failed or has closed the connection. The call may have been executed. No later call is answered.
    Broken,
}

impl<T> Answer<T> {
    /// Converts the value of a success.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Done(done) => Answer::Done(convert(done)),
            Self::Failed(errno) => Answer::Failed(errno),
            Self::Declined => Answer::Declined,
            Self::Broken => Answer::Broken,
        }
    }

    /// Returns the result for the program: `EIO` if the connection is broken, or `None` if the kernel must serve the call.
    pub fn served(self) -> Option<Result<T>> {
        match self {
            Self::Done(done) => Some(Ok(done)),
            Self::Failed(errno) => Some(Err(Errno::from_raw_os_error(errno))),
            Self::Declined => None,
            Self::Broken => Some(Err(Errno::IO)),
        }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Handle for later calls of this process.
    pub handle: u64,
    /// Key of granted frames; `None` if the agent grants none.
    pub key: Option<FileKey>,
    /// Attributes at the open.
    pub attr: Status,
}
