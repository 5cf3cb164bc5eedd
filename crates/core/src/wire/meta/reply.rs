//! What the metadata service answers.

use super::Target;
use crate::attr::{Attr, Timestamp};
use crate::ids::{DirOffset, InodeId};
use crate::wire::holders::Holder;
use serde::{Deserialize, Serialize};

/// Times and counts of a directory as one node knows them; those of several nodes add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirStat {
    /// Number of entries.
    pub entries: u64,
    /// Number of entries that are directories.
    pub subdirs: u64,
    /// Last change of an entry.
    pub changed: Timestamp,
    /// Whether the directory is wide.
    pub wide: bool,
}

impl DirStat {
    /// Adds what another node knows.
    pub fn gather(&mut self, other: Self) {
        self.entries += other.entries;
        self.subdirs += other.subdirs;
        self.changed = self.changed.max(other.changed);
        self.wide |= other.wide;
    }
}

/// One entry of a directory read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its place.
    pub offset: DirOffset,
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// What it says.
    pub target: Target,
}

/// An inode with what its node knows at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Attributes.
    pub attr: Attr,
    /// The inline content of an inline file when the request opened it, else `None`.
    pub content: Option<serde_bytes::ByteBuf>,
    /// Other nodes that may have bytes of its content in memory, when the request opened it.
    pub holders: Vec<Holder>,
}

impl Node {
    /// One of which no more is told than its attributes.
    pub fn of(attr: Attr) -> Self {
        Self { attr, content: None, holders: Vec::new() }
    }
}

/// The answer to a [`MetaRequest`](super::MetaRequest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply {
    /// Done.
    Done,
    /// What the name says, and the attributes when the inode lives on the same node.
    Entry {
        /// Inode and kind.
        target: Target,
        /// Attributes, when at hand.
        node: Option<Node>,
        /// Whether the request made it.
        created: bool,
        /// What the node knows of the directory's children after a change.
        dir: Option<DirStat>,
        /// The view that asked may answer for the name and its inode by itself for
        /// [`NAME_LEASE`](crate::limits::NAME_LEASE), or until it is told otherwise.
        lease: bool,
    },
    /// Attributes (and inline content).
    Node(Node),
    /// What the node knows of a directory's children.
    DirStat(DirStat),
    /// Entries, ascending.
    Entries {
        /// At most the limit asked for; entries of one offset are never parted.
        entries: Vec<DirEntry>,
        /// Whether these are the last.
        end: bool,
    },
    /// Target of a symbolic link, or value of an extended attribute.
    Bytes(serde_bytes::ByteBuf),
    /// Names of extended attributes.
    Names(Vec<serde_bytes::ByteBuf>),
    /// Where the reserved bytes begin, and the new attributes.
    Reserved {
        /// Offset in bytes.
        offset: u64,
        /// Attributes after.
        attr: Attr,
    },
    /// The directory that a directory is in.
    Parent(InodeId),
    /// Answer to [`Step::Undo`](super::Step::Undo).
    Settled {
        /// Whether the step was applied and stands for good.
        applied: bool,
    },
    /// The directory is wide (or narrow) against the sender's belief: ask again, at the right node.
    Width {
        /// What it is.
        wide: bool,
    },
    /// An operation on names is done; what the node knows of the children of its coordinating name's directory.
    DirChanged(DirStat),
}
