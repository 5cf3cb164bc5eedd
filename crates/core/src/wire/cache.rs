//! Messages to the coordinator of a cached file: the home of its inode number.
//!
//! Names and attributes of the cache view pass through to the shared file system. The coordinator only has what the
//! shared file system lacks: sizes and times of files with dirty data.

use crate::attr::Timestamp;
use crate::ids::{Generation, InodeId};
use crate::wire::holders::{Holder, HolderOutcome};
use crate::wire::space::SpaceChange;
use serde::{Deserialize, Serialize};

/// State of a file on the shared file system, for change detection.
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
    /// A hash that identifies this state of the file.
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
    /// Requests what the job knows of the file beyond the shared file system. The sender just saw the shared file in
    /// this state; a flush may have ended since.
    State {
        /// The file.
        inode: InodeId,
        /// Size of the shared file that the sender saw.
        size: u64,
        /// Modification time of the shared file that the sender saw.
        mtime: Timestamp,
    },
    /// Opens the file: compares the stamp with that of the clean data.
    Open {
        /// The file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Current stamp of the shared file.
        stamp: Stamp,
        /// Results of requests to holders of files of this coordinator.
        holder_outcomes: Vec<HolderOutcome>,
        /// Whether the node will have bytes of the file in memory.
        holds: bool,
        /// Whether the node has just created the file: older data of this inode number belongs to another file.
        made: bool,
    },
    /// The file will get dirty data: records path and inode in the journal before the first write.
    Dirty {
        /// The file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Current stamp of the shared file.
        stamp: Stamp,
        /// Whether a program writes until this node's next `Commit`: dirty data that the node has not reported by then
        /// is lost if it fails.
        writes: bool,
        /// Number of units, from the first on, that it may write until it announces more.
        reach: u64,
    },
    /// Dirty data was written up to byte `end`.
    Commit {
        /// The file.
        inode: InodeId,
        /// Largest end of the written data, in bytes.
        end: u64,
        /// Whether the file may have holes now.
        sparse: bool,
        /// Time of the last write.
        now: Timestamp,
    },
    /// Reserves the next `length` bytes at the end of the file for an append.
    Reserve {
        /// The file.
        inode: InodeId,
        /// Number of bytes.
        length: u64,
        /// Time of the write.
        now: Timestamp,
    },
    /// Sets a new size: drops dirty data beyond it, and truncates the shared file.
    Truncate {
        /// The file.
        inode: InodeId,
        /// New size in bytes.
        size: u64,
        /// Time of the request.
        now: Timestamp,
    },
    /// A program has set the modification time of a file; the shared file has it already.
    SetMtime {
        /// The file.
        inode: InodeId,
        /// The time.
        mtime: Timestamp,
    },
    /// A file or directory is about to be renamed, or a file gets another name. A path is a hint that is verified by the inode
    /// number: the old one stays valid until the new one exists.
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
    /// The file has lost its last name and its last open: drops its dirty data.
    Removed {
        /// The file.
        inode: InodeId,
    },
    /// Makes the file's dirty data durable on the devices of the job (`fsync` of a program).
    Flush {
        /// The file.
        inode: InodeId,
    },
    /// Writes the file's dirty data to the shared file system now. `ESTALE` if it was removed.
    Writeback {
        /// The file.
        inode: InodeId,
    },
    /// Requests what this node has left to flush.
    Progress,
    /// The file is about to lose its last name: if it is later missing, the job removed it, not another program. The
    /// coordinator informs other nodes that have it open.
    Removing {
        /// The file.
        inode: InodeId,
    },
    /// Reserves or frees space of the shared file, and drops the job's data of these bytes (`fallocate`).
    Space {
        /// The file.
        inode: InodeId,
        /// The change.
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
        /// The file.
        inode: InodeId,
    },
    /// The sender did not find the file at its path: another node has renamed it, perhaps just now.
    Locate {
        /// The file.
        inode: InodeId,
    },
    /// State of the sender's writes to the file, if no other message reports it.
    Writing {
        /// The file.
        inode: InodeId,
        /// The state.
        what: Writing,
    },
    /// The rename that [`CacheRequest::Renamed`] reported has ended. Not sent for files with one name that were renamed, nor for directories that
    /// were exchanged.
    RenameEnded {
        /// The file, or `None` for a directory.
        inode: Option<InodeId>,
        /// Old path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// New path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
        /// Whether it has happened.
        is_renamed: bool,
    },
}

/// State of a node's writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Writing {
    /// A program writes again after a `Commit`, or beyond the announced units.
    Begins {
        /// Number of units, from the first on, that it may write.
        reach: u64,
    },
    /// The last program has closed the file, with nothing to commit.
    Ends,
    /// The programs that write to it were ended, because the job's driver failed.
    Interrupted,
}

/// State of a file in the job. Generation 0 means unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// Version of the content.
    pub generation: Generation,
    /// Size and modification time, if newer than the shared file system's (or than those that the sender saw).
    pub newer: Option<(u64, Timestamp)>,
    /// Whether the file may have holes: then only the homes of its units know the space of its dirty data.
    pub sparse: bool,
    /// Whether a node is about to remove its last name.
    pub removing: bool,
}

/// The reply to a [`CacheRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheReply {
    /// The request was carried out.
    Done,
    /// The file's state after the request.
    State(CacheState),
    /// Offset of the reserved bytes, and the file's state after the request.
    Reserved {
        /// Offset in bytes.
        offset: u64,
        /// The state.
        state: CacheState,
    },
    /// What this node has left to flush.
    Progress {
        /// Number of files with dirty data that it coordinates.
        files: u64,
        /// Dirty bytes on this node.
        bytes: u64,
        /// Bytes flushed by this node since it started.
        flushed: u64,
    },
    /// Path of the file on the shared file system.
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
