//! Entries: the attributes of a file, and where its content is.

use super::geometry::LaneId;
use crate::display::shown;
use serde::{Deserialize, Serialize};
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use tameike_io::shared::split;

/// Longest path, in bytes.
const PATH_SIZE_MAX: usize = 4096;
/// Encoded size of most nodes, in bytes.
const NODE_SIZE: usize = 96;
/// Maximum size of a file, in bytes.
const SIZE_MAX: u64 = i64::MAX as u64;

/// A change of a path. Among several of one path, the highest version is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path from the root of the container, names joined by `/`; empty for the root.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Nanoseconds since 1970 of the change, or one more than the version it replaces.
    pub version: u64,
    /// The file at the path; `None` if it was removed.
    pub node: Option<Node>,
}

impl Entry {
    /// Encodes the entry for a record.
    pub fn encode(&self) -> Vec<u8> {
        let buffer = Vec::with_capacity(self.path.len() + NODE_SIZE);
        // Encoding into memory cannot fail.
        postcard::to_extend(self, buffer).unwrap_or_default()
    }

    /// Decodes the bytes of [`Self::encode`]; `None` for invalid bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (entry, rest): (Self, _) = postcard::take_from_bytes(bytes).ok()?;
        (rest.is_empty() && entry.is_possible()).then_some(entry)
    }

    /// Returns true if content lies in other records than that of the entry.
    pub(crate) fn names_content(&self) -> bool {
        let content = self.node.as_ref().map(|node| &node.content);
        content.is_some_and(|content| matches!(content, Content::Extents(extents) if !extents.is_empty()))
    }

    fn is_possible(&self) -> bool {
        let extents_fit = |node: &Node| match &node.content {
            Content::Here => true,
            Content::Extents(extents) => {
                let mut end = 0;
                extents.iter().all(|extent| {
                    let follows = extent.length > 0 && extent.start >= end;
                    end = extent.start.saturating_add(extent.length.into());
                    follows && extent.skip.checked_add(extent.length).is_some()
                }) && end <= node.size
            }
        };
        check_path(&self.path).is_ok()
            && self.node.as_ref().is_none_or(|node| node.size <= SIZE_MAX && extents_fit(node))
    }
}

/// A file of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// File type.
    pub kind: FileKind,
    /// Permission bits: `0o7777`.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Target of a symbolic link.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: Vec<Xattr>,
    /// Size of the content, in bytes.
    pub size: u64,
    /// Location of the content.
    pub content: Content,
}

impl Node {
    /// An empty file of any kind with these permissions, owner, group and times.
    pub const fn new(kind: FileKind, mode: u16, (uid, gid): (u32, u32), time: Timestamp) -> Self {
        Self {
            kind,
            mode,
            uid,
            gid,
            rdev: 0,
            atime: time,
            mtime: time,
            target: Vec::new(),
            xattrs: Vec::new(),
            size: 0,
            content: Content::Here,
        }
    }
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattr {
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its value.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// Location of the content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// All content is the data of the entry's record.
    Here,
    /// In data records, ascending and without overlaps; zeros elsewhere.
    Extents(Vec<Extent>),
}

/// Bytes of a file in a data record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the file.
    pub start: u64,
    /// Length in bytes.
    pub length: u32,
    /// Lane of the record.
    pub lane: LaneId,
    /// Address of the record in the lane.
    pub address: u64,
    /// Offset of the first byte in the record's data.
    pub skip: u32,
}

impl Extent {
    /// Offset of the end in the file.
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// Checks that a container can hold a path: names of 1 to 255 bytes, none of them `.` or `..`.
///
/// # Errors
/// `EINVAL` or `ENAMETOOLONG`, with the path.
pub fn check_path(path: &[u8]) -> Result<()> {
    let fault = |errno: Errno, why: &str| Err(Fault::new(errno, format!("{}: {why}", shown(path))));
    if path.len() > PATH_SIZE_MAX {
        return fault(Errno::ENAMETOOLONG, "a path in a container has 4,096 bytes at most");
    }
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." | b".." => {
                return fault(Errno::EINVAL, "invalid path: it has an empty name, `.` or `..`");
            }
            name if name.len() > 255 => return fault(Errno::ENAMETOOLONG, "a name in it exceeds 255 bytes"),
            name if name.contains(&0) => return fault(Errno::EINVAL, "a name in it contains a NUL byte"),
            _ => {}
        }
    }
    Ok(())
}

/// Splits a path into its directory and its name.
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    split(path).unwrap_or_default()
}
