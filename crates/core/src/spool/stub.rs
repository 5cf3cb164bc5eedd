//! Stub of a packed file in the tree: a dangling symbolic link whose target encodes the attributes.

use crate::Timestamp;
use std::fmt::Write;

/// Prefix of the targets: a directory that does not exist.
const PREFIX: &str = ".tameike-packed/";

/// Attributes of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
}

impl Stub {
    /// The target of the link.
    pub fn target(&self) -> String {
        let Self { size, mode, uid, gid, mtime: Timestamp { seconds, nanoseconds } } = *self;
        let mut target = String::from(PREFIX);
        // Writing to memory does not fail.
        let _ = write!(target, "{size},{mode:o},{uid},{gid},{seconds},{nanoseconds}");
        target
    }

    /// Decodes the attributes of a target; `None` for other links.
    pub fn parse(target: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(target).ok()?.strip_prefix(PREFIX)?;
        let mut words = text.split(',');
        let stub = Self {
            size: words.next()?.parse().ok()?,
            mode: u16::from_str_radix(words.next()?, 8).ok()?,
            uid: words.next()?.parse().ok()?,
            gid: words.next()?.parse().ok()?,
            mtime: Timestamp {
                seconds: words.next()?.parse().ok()?,
                nanoseconds: words.next()?.parse().ok()?,
            },
        };
        words.next().is_none().then_some(stub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_targets_of_stubs_decode() {
        let mtime = Timestamp { seconds: -7, nanoseconds: 999_999_999 };
        let stub = Stub { size: u64::MAX, mode: 0o4755, uid: 0, gid: u32::MAX, mtime };
        assert_eq!(Stub::parse(stub.target().as_bytes()), Some(stub));
        for other in
            ["", ".tameike-packed/", "a", ".tameike-packed/1,644,0,0,1,2,3", ".tameike-packed/1,8,0,0,1,2"]
        {
            assert_eq!(Stub::parse(other.as_bytes()), None, "{other}");
        }
    }
}
