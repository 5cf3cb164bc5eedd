//! The error of all crates: an errno for programs, a message for people, and the error that caused it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The result of an operation that can fail with a [`Fault`].
pub type Result<T, E = Fault> = std::result::Result<T, E>;

/// A Linux error number (x86-64 and arm64 share them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self(libc::$name);)*

            /// The error's name and meaning.
            pub fn describe(self) -> Cow<'static, str> {
                match self.0 {
                    $(libc::$name => Cow::Borrowed(concat!(stringify!($name), ": ", $text)),)*
                    other => Cow::Owned(format!("error number {other}")),
                }
            }
        }
    };
}

errnos! {
    EPERM, "operation not permitted";
    ENOENT, "no such file or directory";
    EINTR, "interrupted";
    EIO, "input/output error";
    ENXIO, "no such address";
    EBADF, "bad file descriptor";
    EAGAIN, "try again";
    ENOMEM, "out of memory";
    EACCES, "permission denied";
    EBUSY, "resource busy";
    EEXIST, "file exists";
    EXDEV, "link across file systems";
    ENODEV, "no such device";
    ENOTDIR, "not a directory";
    EISDIR, "is a directory";
    EINVAL, "invalid argument";
    ENFILE, "too many open files in the system";
    EMFILE, "too many open files";
    ETXTBSY, "file busy";
    EFBIG, "file too large";
    ENOSPC, "no space left";
    EROFS, "read-only file system";
    EMLINK, "too many links";
    ERANGE, "result too large";
    EDEADLK, "deadlock";
    ENAMETOOLONG, "name too long";
    ENOLCK, "no locks available";
    ENOSYS, "not implemented";
    ENOTEMPTY, "directory not empty";
    ELOOP, "too many symbolic links";
    ENODATA, "no such attribute";
    EPROTO, "protocol error";
    EBADMSG, "bad message";
    ESRCH, "no such process";
    EMSGSIZE, "message too long";
    ESTALE, "stale file handle";
    EDQUOT, "quota exceeded";
    EOPNOTSUPP, "operation not supported";
    ETIMEDOUT, "timed out";
    EPIPE, "broken pipe";
    EOWNERDEAD, "owner failed";
    ECONNRESET, "connection reset";
    EREMCHG, "remote address changed";
    EHOSTDOWN, "host is down";
}

/// Classes of errors that callers handle alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// No such file, or not under this path any more: `ENOENT`, `ENOTDIR`, `ELOOP`, `ESTALE`.
    Missing,
    /// Permission denied: `EACCES`, `EPERM`.
    Denied,
    /// No space left, or a quota reached: `ENOSPC`, `EDQUOT`.
    Full,
    /// A node did not answer, so that the outcome of the request is unknown: `EHOSTDOWN`, `ETIMEDOUT`, `ECONNRESET`.
    Unreachable,
    /// Any other error.
    Other,
}

impl Errno {
    /// The class of the error.
    pub fn kind(self) -> FaultKind {
        match self {
            Self::ENOENT | Self::ENOTDIR | Self::ELOOP | Self::ESTALE => FaultKind::Missing,
            Self::EACCES | Self::EPERM => FaultKind::Denied,
            Self::ENOSPC | Self::EDQUOT => FaultKind::Full,
            Self::EHOSTDOWN | Self::ETIMEDOUT | Self::ECONNRESET => FaultKind::Unreachable,
            _ => FaultKind::Other,
        }
    }
}

/// The error of an operation, within an agent and between agents.
///
/// Programs get the errno. People and logs get the message: what was being done, to what, and what went wrong. Errors of normal operation
/// (`ENOENT`, `EEXIST`, ...) have no message, so that they cost no allocation. A message between agents carries the errno and the text of
/// the whole chain of causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error number for programs.
    pub errno: Errno,
    /// Empty when the errno says it all.
    message: Cow<'static, str>,
    /// The error of the operation that this one needed.
    source: Option<Arc<Fault>>,
}

impl Fault {
    /// An error with a message.
    pub fn new(errno: Errno, message: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, message: message.into(), source: None }
    }

    /// An input/output error with a message.
    pub fn io(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::EIO, message)
    }

    /// An error of the operating system during an operation.
    pub fn from_os(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno);
        Self::new(errno, format!("{doing}: {error}"))
    }

    /// Adds the operation that failed because of this error. The errno stays.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        Self { errno: self.errno, message: doing.to_string().into(), source: Some(Arc::new(self)) }
    }

    /// The class of the error.
    pub fn kind(&self) -> FaultKind {
        self.errno.kind()
    }

    /// Whether there is more to say than the errno.
    pub fn has_message(&self) -> bool {
        !self.message.is_empty()
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::new(errno, "")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.message),
            None if self.message.is_empty() => f.write_str(&self.errno.describe()),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// A fault as messages and files carry it.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Fault")]
struct Flat<'a> {
    errno: Errno,
    message: Cow<'a, str>,
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let message = match self.has_message() {
            true => Cow::Owned(self.to_string()),
            false => Cow::Borrowed(""),
        };
        Flat { errno: self.errno, message }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let Flat { errno, message } = Flat::deserialize(deserializer)?;
        Ok(Self::new(errno, message.into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec;
    use std::error::Error;

    #[test]
    fn a_fault_shows_and_sends_its_chain_of_causes() {
        let cause = Fault::new(Errno::ENOSPC, "write of 4096 bytes: no space left");
        let fault = cause.clone().context("flushing dir/file").context("draining node 3");
        let text = "draining node 3: flushing dir/file: write of 4096 bytes: no space left";
        assert_eq!(
            (fault.to_string(), fault.errno, fault.kind()),
            (text.to_owned(), Errno::ENOSPC, FaultKind::Full)
        );
        let mut last: &dyn Error = &fault;
        while let Some(source) = last.source() {
            last = source;
        }
        assert_eq!(last.to_string(), cause.to_string());
        let received: Fault = codec::decode(&codec::encode(&fault).expect("small")).expect("whole");
        assert_eq!(received, Fault::new(Errno::ENOSPC, text));
    }

    #[test]
    fn a_fault_without_a_message_stays_without() {
        let plain = Fault::from(Errno::ENOENT);
        assert_eq!(plain.to_string(), "ENOENT: no such file or directory");
        let bytes = codec::encode(&plain).expect("small");
        assert_eq!(bytes.len(), 2, "an errno and an empty text");
        assert!(!codec::decode::<Fault>(&bytes).expect("whole").has_message());
        assert_eq!(plain.context("opening f").to_string(), "opening f: ENOENT: no such file or directory");
    }
}
