//! What a program is told.

use crate::message::{FileKey, Status};

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// Done.
    Done(T),
    /// It fails with this errno, as it would on the mount.
    Failed(i32),
    /// The kernel is to be asked, as if nothing had been asked here: nothing has happened.
    Declined,
    /// The agent is gone, or has gone on without this process. Whether the call has happened is not known; no later one
    /// will be answered.
    Broken,
}

impl<T> Answer<T> {
    /// The same outcome with something else as what was done.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Done(done) => Answer::Done(convert(done)),
            Self::Failed(errno) => Answer::Failed(errno),
            Self::Declined => Answer::Declined,
            Self::Broken => Answer::Broken,
        }
    }
}

/// A view that the agent serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewInfo {
    /// Where it is mounted.
    pub mount: Vec<u8>,
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Stands for it in later calls of this process.
    pub handle: u64,
    /// Stands for it where the agent lends what it has of it; none when it does not.
    pub key: Option<FileKey>,
    /// Its attributes when it was opened.
    pub attr: Status,
}
