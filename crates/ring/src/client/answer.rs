//! Results of calls.

use crate::message::{FileKey, Status};

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// Success.
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
}

/// A view of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewInfo {
    /// Mount point.
    pub mount: Vec<u8>,
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
