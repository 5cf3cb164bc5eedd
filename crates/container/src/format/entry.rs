//! What a container tells of a file.

use super::geometry::LaneId;
use crate::display::shown;
use serde::{Deserialize, Serialize};
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};

/// Longest path, in bytes.
const PATH_SIZE_MAX: usize = 4096;
/// Most of what entries tell beside their paths, in bytes, is no more.
const NODE_SIZE: usize = 96;
/// No file is larger.
const SIZE_MAX: u64 = i64::MAX as u64;

/// A change of a path. Of several of one path the one with the highest version is so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Names from the root of the container, joined by `/`; the root itself has none.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Nanoseconds since 1970 when it was made, or one more than what it replaces.
    pub version: u64,
    /// What is there now; nothing when it was removed.
    pub node: Option<Node>,
}

impl Entry {
    /// As records have it.
    pub fn encode(&self) -> Vec<u8> {
        let room = Vec::with_capacity(self.path.len() + NODE_SIZE);
        // Into memory nothing can fail.
        postcard::to_extend(self, room).unwrap_or_default()
    }

    /// What [`Self::encode`] told.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (entry, rest): (Self, _) = postcard::take_from_bytes(bytes).ok()?;
        (rest.is_empty() && entry.is_possible()).then_some(entry)
    }

    /// Whether content is elsewhere than in its own record.
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
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits: `0o7777`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device file.
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
    /// Bytes of content.
    pub size: u64,
    /// Where these are.
    pub content: Content,
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

/// Where the content of a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// All of it is the data of the record that has the entry.
    Here,
    /// In records of data, ascending, without overlaps; zeros elsewhere.
    Extents(Vec<Extent>),
}

/// Bytes of a file in a record of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The first one's place in the file.
    pub start: u64,
    /// How many.
    pub length: u32,
    /// Whose record.
    pub lane: LaneId,
    /// Its address.
    pub address: u64,
    /// Bytes of its data before the first one.
    pub skip: u32,
}

impl Extent {
    /// Where it ends in the file.
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// Whether a path is one that a container can have: names of 1 to 255 bytes, none of them `.` or `..`.
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
            b"" | b"." | b".." => return fault(Errno::EINVAL, "no path of a file in a container"),
            name if name.len() > 255 => return fault(Errno::ENAMETOOLONG, "a name in it is too long"),
            name if name.contains(&0) => return fault(Errno::EINVAL, "a name in it has a NUL"),
            _ => {}
        }
    }
    Ok(())
}

/// The directory of a path, and its name there.
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
