//! The boundary error: an errno for the program, a message for the person.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Result of everything that can end in a [`Fault`].
pub type Result<T, E = Fault> = std::result::Result<T, E>;

/// A Linux error number (x86-64 and arm64 share them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// The error's name and meaning.
            pub fn describe(self) -> Cow<'static, str> {
                match self.0 {
                    $($number => Cow::Borrowed(concat!(stringify!($name), ": ", $text)),)*
                    other => Cow::Owned(format!("error number {other}")),
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such address";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "link across file systems";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the system";
    EMFILE = 24, "too many open files";
    ETXTBSY = 26, "file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "deadlock";
    ENAMETOOLONG = 36, "name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    EPROTO = 71, "protocol error";
    EBADMSG = 74, "bad message";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "quota exceeded";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "timed out";
    ECONNRESET = 104, "connection reset";
    EHOSTDOWN = 112, "host is down";
}

/// What went wrong, at the boundary between rooms and between agents.
///
/// The errno goes to the program. The message says what was being done, to what, and what went wrong; it goes
/// to logs and to the person. Results that programs expect in normal work (`ENOENT`, `EEXIST`, ...) carry no
/// message of their own, so that they cost no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// For the program.
    pub errno: Errno,
    /// For the person; empty when the errno says it all.
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

    /// Takes the errno of an operating system error and says what was being done.
    pub fn from_os(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno);
        Self::new(errno, format!("{doing}: {error}"))
    }

    /// Puts what was being done before the message.
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
