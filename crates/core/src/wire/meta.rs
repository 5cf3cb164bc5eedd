//! Messages of the metadata service: names and inodes.
//!
//! A [`Command`] changes the names and inodes of one home. It is deterministic: it contains times, owners and
//! everything else that could differ between two runs. The same bytes are sent and logged.

mod operation;
mod reply;

pub use operation::{NameOperation, RenameMode, Step};
pub use reply::{DirEntry, DirStat, MetaReply, Node};

use crate::attr::{AttrChange, FileKind, Timestamp};
use crate::ids::{DirOffset, HomeId, InodeId, NodeId, OperationId};
pub use crate::ids::{OpenId, Opener};
use crate::placement::Layout;
use crate::wire::holders::HolderOutcome;
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
    /// The entry's offset in the directory.
    pub fn offset(&self) -> DirOffset {
        DirOffset::of(self.dir, &self.name)
    }
}

/// Content of a directory entry.
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
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Layout of the file, or of the children of the directory.
    pub layout: Layout,
    /// Target of a symbolic link, else empty.
    #[serde(with = "serde_bytes")]
    pub symlink: Vec<u8>,
}

/// A change to the names and inodes of one home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Creates an inode and its name together.
    Create {
        /// The name.
        entry: EntryName,
        /// The inode.
        new: NewInode,
        /// Whether an existing name is an error (`EEXIST`); else the command looks it up.
        exclusive: bool,
        /// The open of the inode in the same step, if any.
        opener: Option<Opener>,
        /// Whether the sender assumes that the directory is sharded.
        sharded: bool,
        /// Time of the request.
        now: Timestamp,
    },
    /// Changes attributes.
    SetAttr {
        /// The inode.
        inode: InodeId,
        /// The changes.
        change: AttrChange,
        /// Time of the request.
        now: Timestamp,
    },
    /// Data was written to units up to byte `end`: raises size and generation.
    Commit {
        /// The inode.
        inode: InodeId,
        /// Largest end of the written data, in bytes.
        end: u64,
        /// Whether the file may have holes or reserved space now.
        sparse: bool,
        /// Time of the last write.
        now: Timestamp,
    },
    /// Writes into the inline content. `EFBIG` if it does not fit: the client then sends [`MetaRequest::Spill`] and
    /// writes units.
    WriteInline {
        /// The inode.
        inode: InodeId,
        /// Offset in bytes.
        offset: u32,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        /// Time of the write.
        now: Timestamp,
    },
    /// Reserves the next `length` bytes at the end of the file for an append.
    Reserve {
        /// The inode.
        inode: InodeId,
        /// Number of bytes.
        length: u64,
        /// Time of the write.
        now: Timestamp,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The inode.
        inode: InodeId,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// Whether to fail if it exists.
        create: bool,
        /// Whether to fail if it does not exist.
        replace: bool,
        /// Time of the request.
        now: Timestamp,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        inode: InodeId,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Time of the request.
        now: Timestamp,
    },
    /// A step of another home's operation.
    Step {
        /// The operation; the step is applied once.
        operation: OperationId,
        /// Number of the step in its operation.
        number: u32,
        /// The step.
        step: Step,
        /// The node of the requesting program, which knows the effect; `None` if the step is completed later.
        by: Option<NodeId>,
        /// The coordinator has ended all its operations before this sequence number: their results can be dropped.
        finished: u64,
        /// Time of the request.
        now: Timestamp,
    },
    /// Sets the time of the last change of a directory's entries, after a program set the directory's times. The home
    /// of the directory's inode sends it to the homes with entries.
    SetDirTime {
        /// The directory.
        dir: InodeId,
        /// Whether the sender assumes that the directory is sharded.
        sharded: bool,
        /// The time.
        changed: Timestamp,
    },
}

impl Command {
    /// The inode whose attributes the command changes, if it changes one inode and no name.
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

    /// Returns true if the command changes permissions or ownership.
    pub fn changes_access(&self) -> bool {
        match self {
            Self::SetAttr { change, .. } => {
                change.mode.is_some() || change.uid.is_some() || change.gid.is_some()
            }
            _ => false,
        }
    }
}

/// Closes at one home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closes {
    /// The home.
    pub home: HomeId,
    /// The opens.
    pub opens: Vec<Closed>,
    /// Opens for which the node got no reply; they must not happen later either.
    pub undone: Vec<OpenId>,
}

/// A closed open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The open.
    pub open: OpenId,
    /// Time of the node's last read of the file, if it may update the access time and was not reported yet.
    pub read: Option<Timestamp>,
}

/// A request to the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// Looks up a name.
    Lookup {
        /// The name.
        entry: EntryName,
        /// Whether the sender assumes that the directory is sharded.
        sharded: bool,
        /// Whether a view sends the request: it uses the lease of a file's name, and caches a directory.
        view: bool,
    },
    /// Attributes of an inode, without those parts of a directory's that other homes have.
    GetAttr {
        /// The inode.
        inode: InodeId,
    },
    /// Times and counts of a directory, from a home with entries of it, or from all homes of a node together.
    DirStat {
        /// The directory.
        dir: InodeId,
    },
    /// Entries after a cursor, in the order of [`DirOffset`], from a home, or from all homes of a node together.
    ReadDir {
        /// The directory.
        dir: InodeId,
        /// Offset of the last entry that was read.
        after: DirOffset,
        /// Largest number of entries in the reply.
        limit: u32,
        /// Whether the sender assumes that the directory is sharded.
        sharded: bool,
    },
    /// Attributes of a file, with its inline content if it has any.
    GetContent {
        /// The inode.
        inode: InodeId,
    },
    /// Parent of a directory; of a root: itself.
    Parent {
        /// The directory.
        inode: InodeId,
    },
    /// Target of a symbolic link.
    ReadLink {
        /// The inode.
        inode: InodeId,
    },
    /// Opens the inode on a node; a removed inode stays until all opens on all nodes are closed.
    Open {
        /// The inode.
        inode: InodeId,
        /// The open.
        opener: Opener,
    },
    /// Closes opens of a node. Sent again until the node that serves the homes replies.
    Close {
        /// The node.
        node: NodeId,
        /// The closes, by home.
        homes: Vec<Closes>,
        /// Results of requests to holders of files of these homes.
        holder_outcomes: Vec<HolderOutcome>,
    },
    /// Moves inline content to units, so that the file can grow.
    Spill {
        /// The inode.
        inode: InodeId,
    },
    /// Makes all acknowledged commands persisted or durable, as [`super::unit::UnitRequest::Sync`].
    Sync {
        /// Whether to sync to the device.
        durable: bool,
    },
    /// Value of an extended attribute.
    GetXattr {
        /// The inode.
        inode: InodeId,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Names of all extended attributes.
    ListXattr {
        /// The inode.
        inode: InodeId,
    },
    /// A change of names and inodes of one home.
    Execute(Command),
    /// A change that may concern several homes.
    Names {
        /// The operation.
        operation: NameOperation,
        /// Whether the sender assumes that the directory of the coordinating name is sharded.
        sharded: bool,
        /// Time of the request.
        now: Timestamp,
    },
}
