//! Values of the metadata shard's records.

use crate::table::Table;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tameike_core::attr::Times;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::codec;
use tameike_core::wire::meta::{DirStat, EntryName, Step};
use tameike_core::{
    Attr, Errno, Fault, FileKind, Generation, InodeId, Layout, NodeId, OperationId, Result, Timestamp,
};

/// Which inodes a node is the home of (`core::placement`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The node.
    pub node: NodeId,
    /// Its place among the burst-buffer nodes.
    pub place: u16,
    /// Number of burst-buffer nodes.
    pub count: u16,
}

impl Share {
    /// Whether the inode's record is on this node, if the inode exists.
    pub fn keeps(self, inode: InodeId) -> bool {
        inode.pinned_node().map_or(inode.slot().0 % self.count.max(1) == self.place, |node| node == self.node)
    }
}

/// State of the shard itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// How often the service has started; the high bits of all numbers it gives out.
    pub incarnation: u16,
    /// Which inodes it is the home of; `None` without a device: of none.
    pub share: Option<Share>,
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
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes; of a symbolic link the length of its target, of a directory 0.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content (of a directory: as a program set it, else of its birth).
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Version of the content.
    pub generation: Generation,
    /// Where the data lies; of a directory, where that of its children does.
    pub layout: Layout,
    /// Whether the content is in [`crate::table::prefix::CONTENT`]; such a file has no units.
    pub inline: bool,
    /// Whether the file may have holes, or space set aside: then only the homes of its units know what it takes.
    pub sparse: bool,
    /// The directory that a directory is in; of anything else the directory of its birth.
    pub parent: InodeId,
}

impl InodeRecord {
    /// Size that a directory shows, in bytes.
    const DIRECTORY_SIZE: u64 = 4096;

    /// Whether a read counts is told by these.
    pub fn times(&self) -> Times {
        Times { access: self.atime, change: self.mtime.max(self.ctime) }
    }

    /// The attributes. Links of a directory count the two it has without subdirectories.
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

/// What a node knows of a directory's children. A directory without a record has none and is narrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryRecord {
    /// Number of entries on this node.
    pub entries: u64,
    /// How many of them are directories.
    pub subdirs: u64,
    /// Last change of an entry.
    pub changed: Timestamp,
    /// Whether the entries are spread over all burst-buffer nodes.
    pub wide: bool,
    /// The operation that removes the directory, or has removed it: no new entries ever. At the home of the
    /// directory's inode the record goes with the inode, whose absence says the same. On other nodes it stays,
    /// since a node that has not heard of the removal may still ask.
    pub sealed: Option<OperationId>,
}

impl DirectoryRecord {
    /// What the node says of the directory.
    pub fn stat(&self) -> DirStat {
        DirStat { entries: self.entries, subdirs: self.subdirs, changed: self.changed, wide: self.wide }
    }
}

/// Units to be cut at `size` on all homes of the file: logged with what made it necessary, removed when all
/// homes have done it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    /// Where the units lie.
    pub layout: Layout,
    /// Size of the file, in bytes.
    pub size: u64,
}

/// A step with the node that applies it and its number in the operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStep {
    /// Where.
    pub node: NodeId,
    /// Its number.
    pub number: u32,
    /// What.
    pub step: Step,
}

/// An operation over several nodes, as its coordinator remembers it until it is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// Not decided: `prepared` steps may have been applied. After a crash: if `commit` names a step and that
    /// step was applied, the operation is decided by `decision`; else everything is undone.
    Open {
        /// Steps that the operation needs beforehand and that can be undone.
        prepared: Vec<(NodeId, u32)>,
        /// The step whose success decides the operation.
        commit: Option<(NodeId, u32)>,
        /// What follows from it.
        decision: Decision,
        /// A name on this node that nobody may touch meanwhile.
        busy: Option<EntryName>,
    },
    /// Decided: these steps remain; they cannot fail.
    Decided {
        /// In this order.
        redo: Vec<PlacedStep>,
    },
    /// A directory goes wide: its entries are copied to their new homes, then it is decided.
    Widen {
        /// The directory.
        dir: InodeId,
    },
}

/// What is done once an operation is decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Steps on the coordinator, all at once.
    pub local: Vec<Step>,
    /// Steps elsewhere afterwards, in this order.
    pub redo: Vec<PlacedStep>,
}

/// An applied step of another node's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepRecord {
    /// Applied for good.
    Applied,
    /// Applied; taken back by dropping a link of this inode.
    LinkAdded(InodeId),
    /// Applied; taken back by opening this directory.
    Sealed(InodeId),
    /// Applied; taken back by giving back the lock on the tree.
    TreeLocked,
    /// Taken back, or never to be applied.
    Undone,
}

/// Reads the record at `key`.
pub(super) fn get<T: DeserializeOwned>(table: &dyn Table, key: &[u8]) -> Result<Option<T>> {
    table.get(key)?.map(|value| decode(key, &value)).transpose()
}

/// Decodes the record that stood at `key`.
pub(super) fn decode<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T> {
    codec::decode(value).map_err(|fault| {
        let kind = key.first().map_or('?', |&byte| char::from(byte));
        Fault::new(Errno::EIO, format!("a metadata record of kind {kind:?} is damaged: {fault}"))
    })
}

/// Writes the record at `key`.
pub(super) fn put<T: Serialize>(table: &mut dyn Table, key: Vec<u8>, record: &T) -> Result<()> {
    table.put(key, codec::encode(record)?);
    Ok(())
}
