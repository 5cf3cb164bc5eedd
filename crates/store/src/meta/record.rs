//! Values of the metadata shard's records.

use super::Outcome;
use crate::table::{ReadTable, Table};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tameike_core::attr::Times;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::codec;
use tameike_core::wire::meta::{DirStat, EntryName, Step};
use tameike_core::{
    Attr, Errno, Fault, FileKind, Generation, HomeId, InodeId, Layout, NodeId, OperationId, Result, Slot,
    Timestamp,
};

/// The part of the names and inodes that a home has (`core::placement`). It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The home.
    pub home: HomeId,
    /// Number of all homes.
    pub count: u32,
    /// Nodes with which the job began and whose pinned inodes this home has, ascending.
    pub pinned: Vec<NodeId>,
    /// Number of nodes with which the job began. Those of a node that was added to it are at the home with its number, modulo `count`.
    pub founders: u32,
}

impl Share {
    /// Returns true if the home has the inode's record.
    pub fn keeps(&self, inode: InodeId) -> bool {
        match inode.pinned_node() {
            Some(node) if node.0 < self.founders => self.pinned.binary_search(&node).is_ok(),
            Some(node) => node.0 % self.count.max(1) == u32::from(self.home.0),
            None => self.keeps_slot(inode.slot()),
        }
    }

    /// Returns true if this is the home of a slot.
    pub fn keeps_slot(&self, slot: Slot) -> bool {
        u32::from(slot.0) % self.count.max(1) == u32::from(self.home.0)
    }
}

/// State of the shard itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// Number of starts of the service: the high bits of all inode counters that it allocates.
    pub incarnation: u16,
    /// The part of the names and inodes that the home has.
    pub share: Share,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeRecord {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits: `0o7777`.
    pub mode: u16,
    /// Names of the inode; of a directory 1 while it has a name.
    pub links: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes; of a symbolic link the length of its target, of a directory 0.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content (of a directory: as set by a program, else its creation).
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Version of the content.
    pub generation: Generation,
    /// Layout of the data; of a directory, that of its new children.
    pub layout: Layout,
    /// Whether the content is in [`crate::table::prefix::CONTENT`]; such a file has no units.
    pub inline: bool,
    /// Whether the file may have holes or reserved space, so that only the homes of its units know its use.
    pub sparse: bool,
    /// Parent of a directory; of other inodes the directory in which they were created.
    pub parent: InodeId,
}

impl InodeRecord {
    /// Size that a directory shows, in bytes.
    const DIRECTORY_SIZE: u64 = 4096;

    /// The times that decide whether a read updates the access time.
    pub fn times(&self) -> Times {
        Times { access: self.atime, change: self.mtime.max(self.ctime) }
    }

    /// The attributes. The link count of a directory is 2: it lacks the subdirectories.
    pub fn attr(&self, inode: InodeId) -> Attr {
        let (nlink, size) = match self.kind {
            FileKind::Directory => (if self.links == 0 { 0 } else { 2 }, Self::DIRECTORY_SIZE),
            _ => (self.links, self.size),
        };
        let blocks = match self.kind {
            FileKind::File if self.inline && size > 0 => 8,
            FileKind::File | FileKind::Directory => {
                size.div_ceil(BLOCK_SIZE as u64) * (BLOCK_SIZE as u64 / 512)
            }
            _ => 0,
        };
        Attr {
            inode,
            kind: self.kind,
            mode: self.mode,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            generation: self.generation,
            layout: self.layout,
            inline: self.inline,
            sparse: self.sparse,
        }
    }
}

/// A home's record of a directory's children. A directory without one has no entries and is not sharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryRecord {
    /// Number of entries at this home.
    pub entries: u64,
    /// Number of directories among them.
    pub subdirs: u64,
    /// Last change of an entry.
    pub changed: Timestamp,
    /// Whether the directory is sharded over all homes.
    pub sharded: bool,
    /// The operation that removes or has removed the directory: it gets no new entries. At the home of the directory's
    /// inode the record goes with the inode, whose absence means the same. Other homes keep it, since a node that does
    /// not know of the removal may still send requests.
    pub sealed: Option<OperationId>,
}

impl DirectoryRecord {
    /// The directory's state in messages.
    pub fn stat(&self) -> DirStat {
        DirStat { entries: self.entries, subdirs: self.subdirs, changed: self.changed, sharded: self.sharded }
    }
}

/// A truncation of units at `size` on all homes of the file: logged with its cause, removed when all homes have done
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    /// Layout of the units.
    pub layout: Layout,
    /// Size of the file, in bytes.
    pub size: u64,
}

/// A step with its home and its number in the operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStep {
    /// The home that applies it.
    pub home: HomeId,
    /// Its number.
    pub number: u32,
    /// The step.
    pub step: Step,
}

/// The coordinator's record of an operation across homes, until it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// Undecided: `prepared` steps may have been applied. After a crash, the coordinator completes the operation by
    /// `decision` if the step `commit` was applied, else it undoes everything.
    Open {
        /// Preparing steps, which can be undone.
        prepared: Vec<(HomeId, u32)>,
        /// The step whose success decides the operation.
        commit: Option<(HomeId, u32)>,
        /// Steps after the decision.
        decision: Decision,
        /// A name at this home that no other operation may change meanwhile.
        busy: Option<EntryName>,
        /// The call that began it, if it may be repeated.
        call: Option<NumberedCall>,
    },
    /// Decided: these steps remain; they cannot fail.
    Decided {
        /// In order.
        redo: Vec<PlacedStep>,
    },
    /// A directory is being sharded: its entries are copied to their new homes before the decision.
    Shard {
        /// The directory.
        dir: InodeId,
    },
}

/// The result of a call that may be repeated at another primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallRecord {
    /// The command of the call had this outcome.
    Outcome(Outcome),
    /// The operation of the call has begun. If its intent is gone, it was undone.
    Begun {
        /// Sequence number of the operation.
        sequence: u64,
    },
    /// The operation of the call is decided.
    Decided {
        /// Sequence number of the operation.
        sequence: u64,
    },
}

/// The steps after an operation is decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Steps on the coordinator, in one change.
    pub local: Vec<Step>,
    /// Steps at other homes afterwards, in order.
    pub redo: Vec<PlacedStep>,
}

/// An applied step of another home's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepRecord {
    /// Applied and final.
    Applied,
    /// Applied; undo drops a link of this inode.
    LinkAdded(InodeId),
    /// Applied; undo unseals this directory.
    Sealed(InodeId),
    /// Applied; undo releases the lock of the tree.
    TreeLocked,
    /// Undone, or never to be applied.
    Undone,
}

pub(super) fn get<T: DeserializeOwned>(table: &dyn ReadTable, key: &[u8]) -> Result<Option<T>> {
    table.get(key)?.map(|value| decode(key, &value)).transpose()
}

/// Decodes the record of `key`.
pub(super) fn decode<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T> {
    codec::decode(value).map_err(|fault| {
        let kind = key.first().map_or('?', |&byte| char::from(byte));
        Fault::new(Errno::EIO, format!("a metadata record of kind {kind:?} is damaged: {fault}"))
    })
}

pub(super) fn put<T: Serialize>(table: &mut dyn Table, key: Vec<u8>, record: &T) -> Result<()> {
    table.put(key, codec::encode(record)?);
    Ok(())
}
