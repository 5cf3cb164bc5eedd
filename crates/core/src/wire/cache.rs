//! Messages to the coordinator of a cached file: the home of its inode number.
//!
//! Names and attributes of the cache view pass through to the shared file system; the coordinator keeps only
//! what the shared file system cannot know yet: sizes and times of files with dirty data.

use crate::attr::Timestamp;
use crate::ids::{Generation, InodeId};
use crate::receipt::Receipt;
use crate::wire::holders::{Asked, Holder};
use crate::wire::space::SpaceChange;
use serde::{Deserialize, Serialize};

/// State of a file on the shared file system by which changes made by others are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes. Compared only while the job has no dirty data of the file.
    pub ctime: Timestamp,
}

impl Stamp {
    /// A number that another state of the file does not have.
    pub fn digest(&self) -> u64 {
        let Self { device, inode, size, mtime, ctime } = *self;
        let times = [mtime, ctime].map(|time| [time.seconds as u64, u64::from(time.nanoseconds)]);
        let words = [[device, inode], [size, 0], times[0], times[1]];
        let bytes: Vec<u8> = words.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// A request to a file's coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheRequest {
    /// What the job knows of the file beyond the shared file system, whose file was just seen like this: a flush
    /// may have ended since.
    State {
        /// Which file.
        inode: InodeId,
        /// Size of the shared file as it was seen.
        size: u64,
        /// Last change of the shared file as it was seen.
        mtime: Timestamp,
    },
    /// The file is opened: compares the stamp with the one under which clean data is held.
    Open {
        /// Which file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// The file now.
        stamp: Stamp,
        /// What became of requests to holders of files of this coordinator.
        asked: Vec<Asked>,
        /// Whether the node will have bytes of the file in memory.
        holds: bool,
        /// Whether the node has just made the file: what had its number before was another one.
        made: bool,
    },
    /// The file is about to get dirty data: remembers path and inode in the journal before the first write.
    Dirty {
        /// Which file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// The file now.
        stamp: Stamp,
        /// Whether a program writes from now on, until this node's next `Commit`: what it has not told by then is lost with it.
        writes: bool,
        /// Number of units, from the first on, that it may write to until the node announces more.
        reach: u64,
    },
    /// Dirty data was written up to byte `end`.
    Commit {
        /// Which file.
        inode: InodeId,
        /// Largest end of what was written, in bytes.
        end: u64,
        /// Whether the file may have holes now.
        sparse: bool,
        /// Time of the last write.
        now: Timestamp,
    },
    /// Sets aside the next `length` bytes at the end of the file for an append.
    Reserve {
        /// Which file.
        inode: InodeId,
        /// Number of bytes.
        length: u64,
        /// Time of the write.
        now: Timestamp,
    },
    /// The file gets a new size: dirty data beyond it is dropped, the shared file is cut.
    Truncate {
        /// Which file.
        inode: InodeId,
        /// New size in bytes.
        size: u64,
        /// Time of the request.
        now: Timestamp,
    },
    /// The program has set the time of last change of a file, on the shared file already.
    SetMtime {
        /// Which file.
        inode: InodeId,
        /// The time.
        mtime: Timestamp,
    },
    /// A file or directory is about to be renamed, or has just been; or a file has one more name. A path is a hint that is checked against
    /// the inode number: the old one stays good until the new one is.
    Renamed {
        /// The file (sent to its coordinator), or `None` for a directory and all below it (sent to every node).
        inode: Option<InodeId>,
        /// Old path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// New path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
    },
    /// The file has lost its last name and its last open: its dirty data is dropped.
    Removed {
        /// Which file.
        inode: InodeId,
    },
    /// Makes the file's dirty data safe on the devices of the job (`fsync` of a program).
    Flush {
        /// Which file.
        inode: InodeId,
    },
    /// Writes the file's dirty data to the shared file system now. `ESTALE` when it has been removed.
    Writeback {
        /// Which file.
        inode: InodeId,
    },
    /// Flushes every file that this node coordinates to the shared file system, and makes their receipts.
    Drain {
        /// Reads everything back from the shared file system and compares.
        verify: bool,
        /// `None` first; then what the last answer gave, until it gives nothing.
        after: Option<InodeId>,
    },
    /// How much is left to flush on this node.
    Progress,
    /// The file is about to lose its last name: when nothing of it is found later, it was the job that removed
    /// it, and not another program. Other nodes that have it open are told.
    Removing {
        /// Which file.
        inode: InodeId,
    },
    /// Space of the shared file is set aside or given back, and what the job holds of these bytes goes (`fallocate`).
    Space {
        /// Which file.
        inode: InodeId,
        /// What is asked for.
        change: SpaceChange,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Whether the file grows to `end`.
        grows: bool,
        /// Time of the request.
        now: Timestamp,
    },
    /// The removal that [`CacheRequest::Removing`] announced did not happen.
    Kept {
        /// Which file.
        inode: InodeId,
    },
    /// The file was not found at the path by which a node knew it: another one has renamed it, perhaps just now.
    Locate {
        /// Which file.
        inode: InodeId,
    },
    /// What becomes of the sender's writes to the file, where no other message tells.
    Writing {
        /// Which file.
        inode: InodeId,
        /// What.
        what: Writing,
    },
}

/// What becomes of a node's writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Writing {
    /// A program writes again after a `Commit`, or further on in the file than was told.
    Begins {
        /// Units that it may write to, from the first on.
        reach: u64,
    },
    /// The last program has closed the file, and there was nothing to commit.
    Ends,
    /// The programs that write to it are ended, because the job is over without its driver.
    CutOff,
}

/// What the job knows of a file. Generation 0 says that it knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// Version of the content.
    pub generation: Generation,
    /// Size and time of last change, when they are newer than the shared file system's (or than what the
    /// sender saw of it).
    pub newer: Option<(u64, Timestamp)>,
    /// Whether the file may have holes: then the homes of its units know what space its dirty data takes.
    pub sparse: bool,
    /// Whether a node is about to take its last name away.
    pub removing: bool,
}

/// The answer to a [`CacheRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheReply {
    /// Done.
    Done,
    /// The file's state after the request.
    State(CacheState),
    /// Where the reserved bytes begin, and the file's state after.
    Reserved {
        /// Offset in bytes.
        offset: u64,
        /// The state.
        state: CacheState,
    },
    /// Receipts of files that this node coordinates.
    Receipt {
        /// The receipts.
        receipt: Receipt,
        /// Where to go on, when there are more.
        next: Option<InodeId>,
    },
    /// What is left.
    Progress {
        /// Files with dirty data, by coordinator.
        files: u64,
        /// Dirty bytes on this node.
        bytes: u64,
        /// Bytes flushed by this node since it started.
        flushed: u64,
    },
    /// Where the file is on the shared file system.
    Located {
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// The file is open.
    Opened {
        /// Its state.
        state: CacheState,
        /// Other nodes that may have bytes of it in memory.
        holders: Vec<Holder>,
    },
}
