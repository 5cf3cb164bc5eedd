//! Identifiers: one number type per meaning, so that the compiler distinguishes them.

use crate::limits::{NODES_MAX, SLOT_COUNT, UNIT_SIZE};
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A node of the job, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A home: one of a fixed number of parts into which the names and data of a job are divided, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HomeId(pub u16);

impl fmt::Display for HomeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "home {}", self.0)
    }
}

/// A job's name: lower-case letters, digits and `-`, at most 32 bytes, so that paths can contain it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    /// Largest length, in bytes.
    pub const SIZE_MAX: usize = 32;

    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, String> {
        let fits = (1..=Self::SIZE_MAX).contains(&name.len());
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits && plain && !name.starts_with('-') {
            return Ok(Self(name.to_owned()));
        }
        Err(format!("job name {name:?} must be 1 to 32 of a-z, 0-9 and '-', and not begin with '-'"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobId {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        Self::new(&name)
    }
}

impl From<JobId> for String {
    fn from(job: JobId) -> Self {
        job.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The views of a job's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum View {
    /// Private to a node.
    NodeLocal,
    /// One name space for all nodes of the job; it ends with the job.
    JobShared,
    /// The tree of the shared file system, cached.
    Cache,
}

impl View {
    /// All views, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::NodeLocal, Self::JobShared, Self::Cache];

    /// The name of the view's mount point and of its key in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeLocal => "node-local",
            Self::JobShared => "shared",
            Self::Cache => "cache",
        }
    }

    /// The environment variable that names the view's mount point to programs.
    pub fn variable(self) -> &'static str {
        match self {
            Self::NodeLocal => "TAMEIKE_NODE_LOCAL",
            Self::JobShared => "TAMEIKE_SHARED",
            Self::Cache => "TAMEIKE_CACHE",
        }
    }

    /// Index into tables with one entry per view.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// One of [`SLOT_COUNT`] parts of the name space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

/// An inode.
///
/// ```text
///  63     62      61..60  59 ..... 48  47 ............ 0
/// +------+-------+-------+------------+-----------------+
/// |   0  |   0   |   0   |    slot    |     counter     |   job-shared
/// +------+-------+-------+------------+-----------------+
/// |   0  |   1   |        node        |     counter     |   node-local (pinned)
/// +------+-------+--------------------+-----------------+
/// |   1  |   hash of (device, inode), slot in bits 59..48 |   cache view
/// +------+-----------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeId(pub u64);

impl InodeId {
    /// Root of the job-shared view; also FUSE's number of a root.
    pub const ROOT: Self = Self(1);
    const SLOT_SHIFT: u32 = 48;
    const CACHE_BIT: u64 = 1 << 63;
    const PINNED_BIT: u64 = 1 << 62;
    /// Largest counter within a slot.
    pub const COUNTER_MAX: u64 = (1 << Self::SLOT_SHIFT) - 1;

    /// The inode with this counter, created in this slot. `counter` is at most [`Self::COUNTER_MAX`].
    pub fn in_slot(slot: Slot, counter: u64) -> Self {
        Self((u64::from(slot.0 & (SLOT_COUNT - 1)) << Self::SLOT_SHIFT) | (counter & Self::COUNTER_MAX))
    }

    /// An inode whose names and data are all on one node (node-local views that another node serves).
    pub fn pinned(node: NodeId, counter: u64) -> Self {
        let node = u64::from(node.0 & (NODES_MAX - 1)) << Self::SLOT_SHIFT;
        Self(node | (counter & Self::COUNTER_MAX) | Self::PINNED_BIT)
    }

    /// The root of the node-local view of `owner`, kept on node `home`.
    pub fn local_root(owner: NodeId, home: NodeId) -> Self {
        Self::pinned(home, 1 + u64::from(owner.0))
    }

    /// The inode of a file of the shared file system, from its device and inode numbers.
    pub fn cached(device: u64, inode: u64) -> Self {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&device.to_le_bytes());
        key[8..].copy_from_slice(&inode.to_le_bytes());
        Self(xxh3_64(&key) | Self::CACHE_BIT)
    }

    /// The ranges of numbers of cached files in a slot: the first and the last of each.
    pub fn cached_in(slot: Slot) -> impl Iterator<Item = (Self, Self)> {
        let first = Self::CACHE_BIT | u64::from(slot.0 & (SLOT_COUNT - 1)) << Self::SLOT_SHIFT;
        let above = Self::SLOT_SHIFT + SLOT_COUNT.trailing_zeros();
        let ranges = (0..Self::CACHE_BIT >> above).map(move |high| first | high << above);
        ranges.map(|first| (Self(first), Self(first | Self::COUNTER_MAX)))
    }

    /// An identifier for a name in a directory of the shared file system, for tables of inodes that also contain names.
    pub fn of_name(dir: Self, name: &[u8]) -> Self {
        Self(xxh3_64_with_seed(name, dir.0) | Self::CACHE_BIT)
    }

    /// An alternative identifier for the same name, in the next slot.
    #[must_use]
    pub fn in_next_slot(self) -> Self {
        let others = self.0 & !(u64::from(SLOT_COUNT - 1) << Self::SLOT_SHIFT);
        Self(others | u64::from((self.slot().0 + 1) % SLOT_COUNT) << Self::SLOT_SHIFT)
    }

    /// Returns true if the inode is a file of the shared file system.
    pub fn is_cached(self) -> bool {
        self.0 & Self::CACHE_BIT != 0
    }

    /// The node to which the inode is pinned, if it is.
    pub fn pinned_node(self) -> Option<NodeId> {
        (self.0 & (Self::CACHE_BIT | Self::PINNED_BIT) == Self::PINNED_BIT)
            .then_some(NodeId((self.0 >> Self::SLOT_SHIFT) as u32 & (NODES_MAX - 1)))
    }

    /// The view to whose capacity the inode's data counts.
    pub fn view(self) -> View {
        if self.is_cached() {
            View::Cache
        } else if self.pinned_node().is_some() {
            View::NodeLocal
        } else {
            View::JobShared
        }
    }

    /// The slot in which the inode was created.
    pub fn slot(self) -> Slot {
        Slot((self.0 >> Self::SLOT_SHIFT) as u16 & (SLOT_COUNT - 1))
    }

    /// The slot of the directory's entries if it is not sharded.
    pub fn children_slot(self) -> Slot {
        Slot(xxh3_64(&self.0.to_le_bytes()) as u16 & (SLOT_COUNT - 1))
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {:x}", self.0)
    }
}

/// Position of an entry in its directory: a hash of (directory, name), never 0.
///
/// It orders the entries and is the cursor of `readdir`. In a sharded directory its highest bits choose the entry's
/// slot, so a cursor stays valid while the directory is being sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DirOffset(pub u64);

impl DirOffset {
    /// Before the first entry.
    pub const START: Self = Self(0);
    const BITS: u32 = 62;

    /// The offset of `name` in directory `dir`. Values 1 to 15 are reserved for `.`, `..` and the frontends.
    pub fn of(dir: InodeId, name: &[u8]) -> Self {
        Self((xxh3_64_with_seed(name, dir.0) >> (64 - Self::BITS)).max(16))
    }

    /// The slot of the entry in a sharded directory.
    pub fn slot(self) -> Slot {
        Slot((self.0 >> (Self::BITS - SLOT_COUNT.trailing_zeros())) as u16 & (SLOT_COUNT - 1))
    }
}

/// Version of a file's content: rises with every change that is visible to other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl Generation {
    /// The next generation.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One unit of a file: bytes `index * UNIT_SIZE ..` of the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnitId {
    /// The file.
    pub inode: InodeId,
    /// Index in the file, from 0.
    pub index: u64,
}

impl UnitId {
    /// Offset of the unit's first byte in the file.
    pub fn start(self) -> u64 {
        self.index * UNIT_SIZE as u64
    }
}

/// A logged operation across homes; unique in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId {
    /// The home that coordinates the operation.
    pub home: HomeId,
    /// Counter of that home, never reused.
    pub sequence: u64,
}

/// One open of a file. Each view of each incarnation of an agent counts from a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpenId(pub u64);

/// The open of a file, with its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Opener {
    /// The node.
    pub node: NodeId,
    /// Its number there.
    pub open: OpenId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_inode_are_distinct() {
        let shared = InodeId::in_slot(Slot(4095), 7);
        assert_eq!((shared.view(), shared.slot(), shared.pinned_node()), (View::JobShared, Slot(4095), None));
        let local = InodeId::local_root(NodeId(3), NodeId(2));
        assert_eq!((local.view(), local.pinned_node()), (View::NodeLocal, Some(NodeId(2))));
        let last = InodeId::pinned(NodeId(NODES_MAX - 1), 7);
        assert_eq!((last.view(), last.pinned_node()), (View::NodeLocal, Some(NodeId(NODES_MAX - 1))));
        let cached = InodeId::cached(1, 2);
        assert_eq!((cached.view(), cached.pinned_node()), (View::Cache, None));
        assert_eq!(InodeId::ROOT.slot(), Slot(0));
    }

    #[test]
    fn cursor_order_follows_slot_order() {
        let mut offsets: Vec<_> =
            (0..1000).map(|i| DirOffset::of(InodeId::ROOT, format!("file{i}").as_bytes())).collect();
        offsets.sort();
        assert!(offsets.windows(2).all(|pair| pair[0].slot() <= pair[1].slot()));
        assert!(offsets.last().is_some_and(|last| last.slot().0 > 4000));
    }

    #[test]
    fn job_names_that_could_leave_their_directory_are_refused() {
        for bad in ["", "..", "a/b", "-x", "A", "a b", &"x".repeat(33)] {
            assert!(JobId::new(bad).is_err(), "{bad:?}");
        }
        assert!(JobId::new("job-17").is_ok());
    }

    #[test]
    fn the_cached_files_of_a_slot_are_in_its_ranges() {
        for number in 0..1000 {
            let inode = InodeId::cached(7, number);
            let ranges: Vec<_> = InodeId::cached_in(inode.slot()).collect();
            assert_eq!(ranges.iter().filter(|(first, last)| (*first..=*last).contains(&inode)).count(), 1);
            assert!(
                ranges
                    .iter()
                    .all(|(first, last)| first.slot() == inode.slot() && last.slot() == inode.slot())
            );
            assert!(ranges.iter().all(|(first, last)| first.is_cached() && last.is_cached()));
        }
    }
}
