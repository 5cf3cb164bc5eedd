//! Messages of the metadata service: names and inodes.
//!
//! A [`Command`] changes the state of one node's metadata shard. It is deterministic: times, owners and
//! everything else that could differ between two runs stand in it. The same bytes are sent and logged.

mod operation;
mod reply;

pub use operation::{NameOperation, RenameMode, Step};
pub use reply::{DirEntry, DirStat, MetaReply, Node};

use crate::attr::{AttrChange, FileKind, Timestamp};
use crate::ids::{DirOffset, InodeId, NodeId, OperationId};
pub use crate::ids::{OpenId, Opener};
use crate::placement::Layout;
use crate::wire::holders::Asked;
use serde::{Deserialize, Serialize};

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryName {
    /// The directory.
    pub dir: InodeId,
    /// 1 to 255 bytes.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
}

impl EntryName {
    /// Its place in the directory.
    pub fn offset(&self) -> DirOffset {
        DirOffset::of(self.dir, &self.name)
    }
}

/// What a directory entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The inode.
    pub inode: InodeId,
    /// Its kind.
    pub kind: FileKind,
}

/// A new inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInode {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits, after umask.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Layout of the file, or of the children of the directory.
    pub layout: Layout,
    /// Target of a symbolic link, else empty.
    #[serde(with = "serde_bytes")]
    pub symlink: Vec<u8>,
}

/// A change to one node's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Makes an inode and its name together.
    Create {
        /// The name.
        entry: EntryName,
        /// The inode.
        new: NewInode,
        /// Whether an existing name is an error (`EEXIST`); else it is looked up.
        exclusive: bool,
        /// Opens the inode in the same step.
        opener: Option<Opener>,
        /// Whether the sender believes the directory is wide.
        wide: bool,
        /// Time of the request.
        now: Timestamp,
    },
    /// Changes attributes.
    SetAttr {
        /// Which inode.
        inode: InodeId,
        /// The changes.
        change: AttrChange,
        /// Time of the request.
        now: Timestamp,
    },
    /// Data was written to units up to byte `end`: the size grows to it, the generation rises.
    Commit {
        /// Which inode.
        inode: InodeId,
        /// Largest end of what was written, in bytes.
        end: u64,
        /// Whether the file may have holes now, or space set aside.
        sparse: bool,
        /// Time of the last write.
        now: Timestamp,
    },
    /// Writes into the inline content. `EFBIG` when it does not fit: then [`MetaRequest::Spill`], and units.
    WriteInline {
        /// Which inode.
        inode: InodeId,
        /// Offset in bytes.
        offset: u32,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        /// Time of the write.
        now: Timestamp,
    },
    /// Sets aside the next `length` bytes at the end of the file for an append.
    Reserve {
        /// Which inode.
        inode: InodeId,
        /// Number of bytes.
        length: u64,
        /// Time of the write.
        now: Timestamp,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Which inode.
        inode: InodeId,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// Fail when it exists.
        create: bool,
        /// Fail when it does not exist.
        replace: bool,
        /// Time of the request.
        now: Timestamp,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Which inode.
        inode: InodeId,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Time of the request.
        now: Timestamp,
    },
    /// A step of another node's operation.
    Step {
        /// Which operation; the step is applied once.
        operation: OperationId,
        /// Number of the step in its operation.
        number: u32,
        /// What to do.
        step: Step,
        /// The node whose program asked for the operation and knows what it does; none when it is completed later.
        by: Option<NodeId>,
        /// The coordinator has ended all its operations before this sequence number: their results can go.
        finished: u64,
        /// Time of the request.
        now: Timestamp,
    },
    /// Sets the time of the last change of a directory's entries, after a program set the directory's times.
    /// Sent by the home of the directory's inode to the nodes that keep children.
    SetDirTime {
        /// The directory.
        dir: InodeId,
        /// Whether the sender believes the directory is wide.
        wide: bool,
        /// The time.
        changed: Timestamp,
    },
}

impl Command {
    /// The inode whose attributes it changes, when it is on one inode and no name.
    pub fn changes(&self) -> Option<InodeId> {
        match self {
            Self::SetAttr { inode, .. }
            | Self::Commit { inode, .. }
            | Self::Reserve { inode, .. }
            | Self::WriteInline { inode, .. }
            | Self::SetXattr { inode, .. }
            | Self::RemoveXattr { inode, .. } => Some(*inode),
            Self::Create { .. } | Self::Step { .. } | Self::SetDirTime { .. } => None,
        }
    }

    /// Whether it changes who may do what with an inode.
    pub fn changes_access(&self) -> bool {
        match self {
            Self::SetAttr { change, .. } => {
                change.mode.is_some() || change.uid.is_some() || change.gid.is_some()
            }
            _ => false,
        }
    }
}

/// An open that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Which open.
    pub open: OpenId,
    /// When the node last read the file, if that may count as its last access and was not told yet.
    pub read: Option<Timestamp>,
}

/// A request to the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// What a name says.
    Lookup {
        /// The name.
        entry: EntryName,
        /// Whether the sender believes the directory is wide.
        wide: bool,
        /// Whether it is a view that asks: it takes the lease of a file's name if it gets it, and shows a directory.
        view: bool,
    },
    /// Attributes of an inode, without the gathered part of a directory's.
    GetAttr {
        /// Which inode.
        inode: InodeId,
    },
    /// Times and counts of a directory, from a node that keeps children of it.
    DirStat {
        /// The directory.
        dir: InodeId,
    },
    /// Entries after a cursor, in the order of [`DirOffset`].
    ReadDir {
        /// The directory.
        dir: InodeId,
        /// The last entry already read.
        after: DirOffset,
        /// Most entries in the answer.
        limit: u32,
        /// Whether the sender believes the directory is wide.
        wide: bool,
    },
    /// Attributes of a file with its inline content, if it has such.
    GetContent {
        /// Which inode.
        inode: InodeId,
    },
    /// The directory that a directory is in; of a root: itself.
    Parent {
        /// The directory.
        inode: InodeId,
    },
    /// Target of a symbolic link.
    ReadLink {
        /// Which inode.
        inode: InodeId,
    },
    /// One more open of the inode on a node; a removed inode lives until every open of every node is closed.
    Open {
        /// Which inode.
        inode: InodeId,
        /// Who opens it.
        opener: Opener,
    },
    /// Opens of a node are over. Sent again until it is answered.
    Close {
        /// The node.
        node: NodeId,
        /// Which opens.
        opens: Vec<Closed>,
        /// Opens of which the node was not told whether they were done; they shall not be done later either.
        undone: Vec<OpenId>,
        /// What became of requests to holders of files of this home.
        asked: Vec<Asked>,
    },
    /// Moves inline content to units, so that the file can grow.
    Spill {
        /// Which inode.
        inode: InodeId,
    },
    /// Makes all acknowledged commands safe, as [`super::unit::UnitRequest::Sync`].
    Sync {
        /// On the device?
        durable: bool,
    },
    /// Value of an extended attribute.
    GetXattr {
        /// Which inode.
        inode: InodeId,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Names of all extended attributes.
    ListXattr {
        /// Which inode.
        inode: InodeId,
    },
    /// A change on this node.
    Execute(Command),
    /// A change that may touch several nodes.
    Names {
        /// The operation.
        operation: NameOperation,
        /// Whether the sender believes the directory of the coordinating name is wide.
        wide: bool,
        /// Time of the request.
        now: Timestamp,
    },
}
