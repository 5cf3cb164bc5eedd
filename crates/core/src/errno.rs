//! The error type at boundaries: an errno for the program, a message for people.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Result that may be a [`Fault`].
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
    ESTALE, "stale file handle";
    EDQUOT, "quota exceeded";
    EOPNOTSUPP, "operation not supported";
    ETIMEDOUT, "timed out";
    ECONNRESET, "connection reset";
    EHOSTDOWN, "host is down";
}

/// An error at the boundary between crates and between agents.
///
/// The errno goes to the program. The message goes to logs and people: the operation, its object, and the error.
/// Expected results (`ENOENT`, `EEXIST`, ...) have no message, to avoid an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The errno for the program.
    pub errno: Errno,
    /// The message for people; empty if the errno suffices.
    pub message: Cow<'static, str>,
}

impl Fault {
    /// A fault with a message.
    pub fn new(errno: Errno, message: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, message: message.into() }
    }

    /// An input/output error with a message.
    pub fn io(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::EIO, message)
    }

    /// Creates a fault from an operating system error; `doing` names the operation.
    pub fn from_os(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno);
        Self::new(errno, format!("{doing}: {error}"))
    }

    /// Prepends the operation to the message.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        Self { errno: self.errno, message: format!("{doing}: {self}").into() }
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self { errno, message: Cow::Borrowed("") }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() { f.write_str(&self.errno.describe()) } else { f.write_str(&self.message) }
    }
}

impl std::error::Error for Fault {}
