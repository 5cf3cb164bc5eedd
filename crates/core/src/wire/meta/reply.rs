//! Replies of the metadata service.

use super::Target;
use crate::attr::{Attr, Timestamp};
use crate::ids::{DirOffset, InodeId};
use crate::wire::holders::Holder;
use serde::{Deserialize, Serialize};

/// Times and counts of a directory at one home; those of several homes add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirStat {
    /// Number of entries.
    pub entries: u64,
    /// Number of entries that are directories.
    pub subdirs: u64,
    /// Last change of an entry.
    pub changed: Timestamp,
    /// Whether the directory is sharded.
    pub sharded: bool,
}

impl DirStat {
    /// Adds those of another home.
    pub fn gather(&mut self, other: Self) {
        self.entries += other.entries;
        self.subdirs += other.subdirs;
        self.changed = self.changed.max(other.changed);
        self.sharded |= other.sharded;
    }
}

/// One entry of a directory read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its offset.
    pub offset: DirOffset,
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its target.
    pub target: Target,
}

/// An inode, with further data that its home has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Attributes of the inode.
    pub attr: Attr,
    /// The inline content of an inline file if the request opened it, else `None`.
    pub content: Option<serde_bytes::ByteBuf>,
    /// Other nodes that may have bytes of its content in memory, if the request opened it.
    pub holders: Vec<Holder>,
}

impl Node {
    /// A node with attributes only.
    pub fn of(attr: Attr) -> Self {
        Self { attr, content: None, holders: Vec::new() }
    }
}

/// The reply to a [`MetaRequest`](super::MetaRequest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply {
    /// The request was carried out.
    Done,
    /// The target of the name, with the attributes if the inode is at the same home.
    Entry {
        /// Inode and kind.
        target: Target,
        /// Attributes, if the home has them.
        node: Option<Node>,
        /// Whether the request created it.
        created: bool,
        /// State of the directory at this home after a change.
        dir: Option<DirStat>,
        /// Whether the requesting view may answer lookups of the name for [`NAME_LEASE`](crate::limits::NAME_LEASE), or
        /// until the lease is revoked.
        lease: bool,
    },
    /// Attributes (and inline content).
    Node(Node),
    /// State of a directory at this home, or at all homes of this node.
    DirStat(DirStat),
    /// Entries, ascending.
    Entries {
        /// About the requested number; entries of one offset stay together.
        entries: Vec<DirEntry>,
        /// Whether these are the last.
        end: bool,
    },
    /// Target of a symbolic link, or value of an extended attribute.
    Bytes(serde_bytes::ByteBuf),
    /// Names of extended attributes.
    Names(Vec<serde_bytes::ByteBuf>),
    /// Offset of the reserved bytes, and the new attributes.
    Reserved {
        /// Offset in bytes.
        offset: u64,
        /// Attributes after.
        attr: Attr,
    },
    /// The parent of a directory.
    Parent(InodeId),
    /// Reply to [`Step::Undo`](super::Step::Undo).
    UndoOutcome {
        /// Whether the step was applied and is final.
        applied: bool,
    },
    /// The directory is sharded and the sender assumes that it is not, or vice versa: it must resend to the right home.
    Sharding {
        /// Whether it is sharded.
        sharded: bool,
    },
    /// A metadata operation is done; state of the directory of its coordinating name at this home.
    DirChanged(DirStat),
}
