//! Requests and replies, and their encoding in words.
//!
//! Decoders check every number from another process against its limit, and reject everything that is no valid message.

mod status;
mod window;

pub(crate) use status::{STATUS_WORDS, StatusWords};
pub use status::{Status, Time};

use crate::WINDOW_SIZE;
use std::num::NonZeroU64;
use tameike_core::limits::{BLOCK_SIZE, PATH_SIZE_MAX};
use tameike_core::region::{Terms, Tracking};
use tameike_core::wire::window::Access;

/// Number of words of a request.
pub const REQUEST_WORDS: usize = 8;
/// Number of words of a reply.
pub const REPLY_WORDS: usize = 16;
/// An encoded request.
pub type RequestWords = [u64; REQUEST_WORDS];
/// An encoded reply.
pub type ReplyWords = [u64; REPLY_WORDS];

/// Key by which granted frames of an open file are found ([`crate::frames`]); never reused for another file.
pub type FileKey = NonZeroU64;

/// Starting directory of a relative path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The view, as an index into [`Client::views`](crate::client::Client::views).
    pub view: u8,
    /// Inode number of the directory, as `st_ino` on the view's mount; 1 is the root.
    pub dir: u64,
}

/// A path in a request. Its bytes are in the window; several paths are adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Starting directory.
    pub at: Start,
    /// Size in bytes, at most [`PATH_SIZE_MAX`].
    pub size: u32,
}

/// Replies to a read that the program accepts besides bytes in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepts {
    /// Accepts [`Reply::Granted`].
    pub granted: bool,
    /// Accepts [`Reply::Located`].
    pub located: bool,
    /// The last [`Reply::Located`] was stale: the agent must forget that location.
    pub stale: bool,
}

/// A request. Handles are numbers from [`Reply::Opened`] to the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `openat`; the umask is already applied to `mode`.
    Open {
        /// Path of the file.
        path: Path,
        /// Flags of `openat`.
        flags: i32,
        /// Mode of a new file.
        mode: u32,
    },
    /// `pread`. The reply is bytes in the window, or another one that `accepts` names.
    Read {
        /// Handle from [`Reply::Opened`].
        handle: u64,
        /// Offset in the file.
        offset: u64,
        /// Number of bytes, at most [`WINDOW_SIZE`].
        size: u32,
        /// Accepted replies.
        accepts: Accepts,
    },
    /// `pwrite` of bytes in the window.
    Write {
        /// Handle from [`Reply::Opened`].
        handle: u64,
        /// Offset in the file.
        offset: u64,
        /// Number of bytes, at most [`WINDOW_SIZE`].
        size: u32,
    },
    /// `write` with `O_APPEND` of bytes in the window.
    Append {
        /// Handle from [`Reply::Opened`].
        handle: u64,
        /// Number of bytes, at most [`WINDOW_SIZE`].
        size: u32,
    },
    /// `fstat` of a handle.
    Status {
        /// Handle from [`Reply::Opened`].
        handle: u64,
    },
    /// `fstatat` of a path.
    StatusAt {
        /// Path of the file.
        path: Path,
        /// Follow a symbolic link at the end.
        follow: bool,
    },
    /// `ftruncate` of a handle.
    SetSize {
        /// Handle from [`Reply::Opened`].
        handle: u64,
        /// New size in bytes.
        size: u64,
    },
    /// `fsync` of a handle.
    Sync {
        /// Handle from [`Reply::Opened`].
        handle: u64,
    },
    /// `close` of a handle.
    Close {
        /// Handle from [`Reply::Opened`].
        handle: u64,
    },
    /// `lseek` to data or a hole.
    Seek {
        /// Handle from [`Reply::Opened`].
        handle: u64,
        /// `SEEK_DATA` if true, else `SEEK_HOLE`.
        data: bool,
        /// Offset in the file.
        offset: u64,
    },
    /// `unlinkat` of a file.
    Unlink {
        /// Path to remove.
        path: Path,
    },
    /// `mkdirat`; the umask is already applied to `mode`.
    MakeDir {
        /// Path of the directory.
        path: Path,
        /// Mode of the directory.
        mode: u32,
    },
    /// `renameat2` of a file.
    Rename {
        /// Old path.
        from: Path,
        /// New path.
        to: Path,
        /// Flags of `renameat2`.
        flags: u32,
    },
    /// Makes a name under which the kernel can open the file of a handle. The reply has the name in the window.
    HandOver {
        /// Handle from [`Reply::Opened`].
        handle: u64,
    },
    /// Attaches to the shared memory region of a file. Before [`Reply::Region`], the agent sends the region's memory on the socket.
    RegionOpen {
        /// Handle of the file.
        handle: u64,
        /// How the process attaches; with at least one process.
        terms: Terms,
        /// Reserve space for the whole file first.
        reserve: bool,
    },
    /// The process has mapped a region at `address`, and has sent its userfaultfd on the socket; if the kernel records the pages that it
    /// writes to, also its page table.
    RegionMapped {
        /// Number of the region.
        region: u64,
        /// Address in the process, at the start of a page.
        address: u64,
    },
    /// Fetches an absent page, and pages after it that are likely to be used next. The reply is their number.
    RegionFetch {
        /// Number of the region.
        region: u64,
        /// The page.
        page: u32,
        /// The access is a write.
        write: bool,
    },
    /// Sends changed bytes of a region to the homes.
    RegionFlush {
        /// Number of the region.
        region: u64,
    },
    /// Makes flushed changes of other nodes visible.
    RegionUpdate {
        /// Number of the region.
        region: u64,
    },
    /// Waits for all processes of a region.
    RegionBarrier {
        /// Number of the region.
        region: u64,
    },
    /// Takes a lock of a region, and makes visible what its last owner has stored.
    RegionLock {
        /// Number of the region.
        region: u64,
        /// Number of the lock.
        lock: u32,
    },
    /// Sends changed bytes of a region to the homes, and releases a lock.
    RegionUnlock {
        /// Number of the region.
        region: u64,
        /// Number of the lock.
        lock: u32,
    },
    /// Adds to a number in a region at its home. The reply is the number before.
    RegionFetchAdd {
        /// Number of the region.
        region: u64,
        /// Offset of the number, a multiple of 8.
        offset: u64,
        /// The addend; the sum wraps.
        addend: u64,
    },
    /// Allocates a block of a region. The reply is its offset.
    RegionAllocate {
        /// Number of the region.
        region: u64,
        /// Size in bytes.
        bytes: u64,
        /// The offset is a multiple of it.
        alignment: u64,
    },
    /// Frees an allocated block of a region.
    RegionFree {
        /// Number of the region.
        region: u64,
        /// Offset of the block.
        offset: u64,
    },
    /// Detaches from a region.
    RegionClose {
        /// Number of the region.
        region: u64,
    },
    /// Attaches to the remote memory window of an empty file. Before [`Reply::Offset`] with its number, that of a region, the agent sends
    /// its memory on the socket.
    WindowOpen {
        /// Handle of the file.
        handle: u64,
        /// Rank of the process.
        rank: u32,
        /// Number of ranks, at least one.
        ranks: u32,
        /// Size of the memory of each rank in bytes.
        bytes: u64,
    },
    /// Requests the ranks of this node. The reply has a byte for each rank in the slot's window: 1 if it is a process of this node.
    WindowRanks {
        /// Number of the region.
        region: u64,
    },
    /// Accesses the memory of a rank on another node. The reply is a count of bytes for puts and gets, and the value before for atomic
    /// operations.
    WindowAccess {
        /// Number of the region.
        region: u64,
        /// The rank.
        rank: u32,
        /// The access.
        access: Access,
        /// Number of its bytes in the slot's window.
        size: u32,
    },
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing has happened; the program must ask the kernel.
    Declined,
    /// Failed with this errno.
    Failed(i32),
    /// The request was carried out.
    Done,
    /// Number of bytes that were moved, or are in the window.
    Count(u32),
    /// Number of bytes that can be read in a granted frame, unless it is revoked meanwhile.
    Granted(u32),
    /// Number of bytes that the program can read on a device, at the location in the window, unless they have moved.
    Located(u32),
    /// Bytes were appended.
    Appended {
        /// Number of bytes.
        count: u32,
        /// Offset after the last byte.
        end: u64,
    },
    /// An offset.
    Offset(u64),
    /// Attributes of a file.
    Status(Status),
    /// An open file.
    Opened {
        /// Handle, for further requests of the process.
        handle: u64,
        /// Key of its frames; `None` if they are not granted.
        key: Option<FileKey>,
        /// Attributes at the open.
        status: Status,
    },
    /// An attached region.
    Region {
        /// Number of the region, for this process.
        number: u64,
        /// The node's number of this process, by which it claims pages.
        owner: u16,
        /// Number of pages, at least one.
        pages: u32,
    },
}

const OPEN: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;
const APPEND: u64 = 4;
const STATUS: u64 = 5;
const STATUS_AT: u64 = 6;
const SET_SIZE: u64 = 7;
const SYNC: u64 = 8;
const CLOSE: u64 = 9;
const SEEK: u64 = 10;
const UNLINK: u64 = 11;
const MAKE_DIR: u64 = 12;
const RENAME: u64 = 13;
const HAND_OVER: u64 = 14;
const REGION_OPEN: u64 = 15;
const REGION_MAPPED: u64 = 16;
const REGION_FETCH: u64 = 17;
const REGION_FLUSH: u64 = 18;
const REGION_UPDATE: u64 = 19;
const REGION_BARRIER: u64 = 20;
const REGION_CLOSE: u64 = 21;
const REGION_LOCK: u64 = 22;
const REGION_UNLOCK: u64 = 23;
const REGION_FETCH_ADD: u64 = 24;
const REGION_ALLOCATE: u64 = 25;
const REGION_FREE: u64 = 26;
const WINDOW_OPEN: u64 = 27;
const WINDOW_RANKS: u64 = 28;
const WINDOW_ACCESS: u64 = 29;

impl Path {
    fn words(self) -> [u64; 2] {
        [u64::from(self.at.view) << 32 | u64::from(self.size), self.at.dir]
    }

    fn decode(words: [u64; 2]) -> Option<Self> {
        let (view, size) = (u8::try_from(words[0] >> 32).ok()?, words[0] as u32);
        (size as usize <= PATH_SIZE_MAX).then_some(Self { at: Start { view, dir: words[1] }, size })
    }
}

impl Accepts {
    fn word(self) -> u64 {
        u64::from(self.granted) | u64::from(self.located) << 1 | u64::from(self.stale) << 2
    }

    fn decode(word: u64) -> Option<Self> {
        (word < 8).then_some(Self { granted: word & 1 == 1, located: word & 2 == 2, stale: word & 4 == 4 })
    }
}

fn window_size(word: u64) -> Option<u32> {
    u32::try_from(word).ok().filter(|&size| size as usize <= WINDOW_SIZE)
}

fn count(word: u64) -> Option<u32> {
    u32::try_from(word).ok().filter(|&count| count > 0)
}

fn page_address(word: u64) -> Option<u64> {
    (word > 0 && word.is_multiple_of(BLOCK_SIZE as u64)).then_some(word)
}

fn flag(word: u64) -> Option<bool> {
    match word {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl Request {
    /// Encodes the request.
    pub fn encode(&self) -> RequestWords {
        let of_path = |code, path: &Path, a, b| {
            let [size, dir] = path.words();
            [code, size, dir, a, b, 0, 0, 0]
        };
        match self {
            Self::Open { path, flags, mode } => {
                of_path(OPEN, path, u64::from(*flags as u32), u64::from(*mode))
            }
            Self::Read { handle, offset, size, accepts } => {
                [READ, *handle, *offset, u64::from(*size), accepts.word(), 0, 0, 0]
            }
            Self::Write { handle, offset, size } => [WRITE, *handle, *offset, u64::from(*size), 0, 0, 0, 0],
            Self::Append { handle, size } => [APPEND, *handle, 0, u64::from(*size), 0, 0, 0, 0],
            Self::Status { handle } => [STATUS, *handle, 0, 0, 0, 0, 0, 0],
            Self::StatusAt { path, follow } => of_path(STATUS_AT, path, u64::from(*follow), 0),
            Self::SetSize { handle, size } => [SET_SIZE, *handle, *size, 0, 0, 0, 0, 0],
            Self::Sync { handle } => [SYNC, *handle, 0, 0, 0, 0, 0, 0],
            Self::Close { handle } => [CLOSE, *handle, 0, 0, 0, 0, 0, 0],
            Self::Seek { handle, data, offset } => [SEEK, *handle, *offset, u64::from(*data), 0, 0, 0, 0],
            Self::Unlink { path } => of_path(UNLINK, path, 0, 0),
            Self::MakeDir { path, mode } => of_path(MAKE_DIR, path, u64::from(*mode), 0),
            Self::Rename { from, to, flags } => {
                let ([size, dir], [to_size, to_dir]) = (from.words(), to.words());
                [RENAME, size, dir, to_size, to_dir, u64::from(*flags), 0, 0]
            }
            Self::HandOver { handle } => [HAND_OVER, *handle, 0, 0, 0, 0, 0, 0],
            Self::RegionOpen { handle, terms, reserve } => {
                let Terms { processes, one_writer, tracking } = *terms;
                let (processes, one_writer) = (processes.into(), one_writer.into());
                [REGION_OPEN, *handle, processes, one_writer, tracking.encode(), u64::from(*reserve), 0, 0]
            }
            Self::RegionMapped { region, address } => [REGION_MAPPED, *region, *address, 0, 0, 0, 0, 0],
            Self::RegionFetch { region, page, write } => {
                [REGION_FETCH, *region, u64::from(*page), u64::from(*write), 0, 0, 0, 0]
            }
            Self::RegionFlush { region } => [REGION_FLUSH, *region, 0, 0, 0, 0, 0, 0],
            Self::RegionUpdate { region } => [REGION_UPDATE, *region, 0, 0, 0, 0, 0, 0],
            Self::RegionBarrier { region } => [REGION_BARRIER, *region, 0, 0, 0, 0, 0, 0],
            Self::RegionLock { region, lock } => [REGION_LOCK, *region, u64::from(*lock), 0, 0, 0, 0, 0],
            Self::RegionUnlock { region, lock } => [REGION_UNLOCK, *region, u64::from(*lock), 0, 0, 0, 0, 0],
            Self::RegionFetchAdd { region, offset, addend } => {
                [REGION_FETCH_ADD, *region, *offset, *addend, 0, 0, 0, 0]
            }
            Self::RegionAllocate { region, bytes, alignment } => {
                [REGION_ALLOCATE, *region, *bytes, *alignment, 0, 0, 0, 0]
            }
            Self::RegionFree { region, offset } => [REGION_FREE, *region, *offset, 0, 0, 0, 0, 0],
            Self::RegionClose { region } => [REGION_CLOSE, *region, 0, 0, 0, 0, 0, 0],
            Self::WindowOpen { handle, rank, ranks, bytes } => {
                [WINDOW_OPEN, *handle, u64::from(*rank), u64::from(*ranks), *bytes, 0, 0, 0]
            }
            Self::WindowRanks { region } => [WINDOW_RANKS, *region, 0, 0, 0, 0, 0, 0],
            Self::WindowAccess { region, rank, access, size } => {
                let [kind, a, b, c, d, e] = window::encode(access, *size);
                [WINDOW_ACCESS, *region, kind << 32 | u64::from(*rank), a, b, c, d, e]
            }
        }
    }

    /// Decodes a request; `None` for invalid words.
    pub fn decode(words: &RequestWords) -> Option<Self> {
        let [code, a, b, c, d, e, f, g] = *words;
        let path = || Path::decode([a, b]);
        Some(match code {
            OPEN => Self::Open {
                path: path()?,
                flags: u32::try_from(c).ok()? as i32,
                mode: u32::try_from(d).ok()?,
            },
            READ => Self::Read { handle: a, offset: b, size: window_size(c)?, accepts: Accepts::decode(d)? },
            WRITE => Self::Write { handle: a, offset: b, size: window_size(c)? },
            APPEND => Self::Append { handle: a, size: window_size(c)? },
            STATUS => Self::Status { handle: a },
            STATUS_AT => Self::StatusAt { path: path()?, follow: flag(c)? },
            SET_SIZE => Self::SetSize { handle: a, size: b },
            SYNC => Self::Sync { handle: a },
            CLOSE => Self::Close { handle: a },
            SEEK => Self::Seek { handle: a, offset: b, data: flag(c)? },
            UNLINK => Self::Unlink { path: path()? },
            MAKE_DIR => Self::MakeDir { path: path()?, mode: u32::try_from(c).ok()? },
            RENAME => {
                Self::Rename { from: path()?, to: Path::decode([c, d])?, flags: u32::try_from(e).ok()? }
            }
            HAND_OVER => Self::HandOver { handle: a },
            REGION_OPEN => {
                let tracking = Tracking::decode(d)?;
                let terms = Terms { processes: count(b)?, one_writer: flag(c)?, tracking };
                Self::RegionOpen { handle: a, terms, reserve: flag(e)? }
            }
            REGION_MAPPED => Self::RegionMapped { region: a, address: page_address(b)? },
            REGION_FETCH => Self::RegionFetch { region: a, page: u32::try_from(b).ok()?, write: flag(c)? },
            REGION_FLUSH => Self::RegionFlush { region: a },
            REGION_UPDATE => Self::RegionUpdate { region: a },
            REGION_BARRIER => Self::RegionBarrier { region: a },
            REGION_LOCK => Self::RegionLock { region: a, lock: u32::try_from(b).ok()? },
            REGION_UNLOCK => Self::RegionUnlock { region: a, lock: u32::try_from(b).ok()? },
            REGION_FETCH_ADD => Self::RegionFetchAdd { region: a, offset: b, addend: c },
            REGION_ALLOCATE => Self::RegionAllocate { region: a, bytes: b, alignment: c },
            REGION_FREE => Self::RegionFree { region: a, offset: b },
            REGION_CLOSE => Self::RegionClose { region: a },
            WINDOW_OPEN => Self::WindowOpen {
                handle: a,
                rank: u32::try_from(b).ok()?,
                ranks: count(c)?,
                bytes: Some(d).filter(|bytes| *bytes > 0)?,
            },
            WINDOW_RANKS => Self::WindowRanks { region: a },
            WINDOW_ACCESS => {
                let (access, size) = window::decode([b >> 32, c, d, e, f, g])?;
                Self::WindowAccess { region: a, rank: b as u32, access, size }
            }
            _ => return None,
        })
    }

    /// Number of bytes of names in the window.
    pub fn names_size(&self) -> usize {
        match self {
            Self::Open { path, .. }
            | Self::StatusAt { path, .. }
            | Self::Unlink { path }
            | Self::MakeDir { path, .. } => path.size as usize,
            Self::Rename { from, to, .. } => from.size as usize + to.size as usize,
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Append { .. }
            | Self::Status { .. }
            | Self::SetSize { .. }
            | Self::Sync { .. }
            | Self::Close { .. }
            | Self::Seek { .. }
            | Self::HandOver { .. }
            | Self::RegionOpen { .. }
            | Self::RegionMapped { .. }
            | Self::RegionFetch { .. }
            | Self::RegionFlush { .. }
            | Self::RegionUpdate { .. }
            | Self::RegionBarrier { .. }
            | Self::RegionLock { .. }
            | Self::RegionUnlock { .. }
            | Self::RegionFetchAdd { .. }
            | Self::RegionAllocate { .. }
            | Self::RegionFree { .. }
            | Self::RegionClose { .. }
            | Self::WindowOpen { .. }
            | Self::WindowRanks { .. }
            | Self::WindowAccess { .. } => 0,
        }
    }
}

/// Word of a file's key, after the attributes.
const KEY: usize = status::END;

const DECLINED: u64 = 1;
const FAILED: u64 = 2;
const DONE: u64 = 3;
const COUNT: u64 = 4;
const APPENDED: u64 = 5;
const OFFSET: u64 = 6;
const ATTRIBUTES: u64 = 7;
const OPENED: u64 = 8;
const GRANTED: u64 = 9;
const LOCATED: u64 = 10;
const REGION: u64 = 11;

impl Reply {
    /// Encodes the reply.
    pub fn encode(&self) -> ReplyWords {
        let mut words = [0; REPLY_WORDS];
        match self {
            Self::Declined => words[0] = DECLINED,
            Self::Failed(errno) => (words[0], words[1]) = (FAILED, u64::from(*errno as u32)),
            Self::Done => words[0] = DONE,
            Self::Count(count) => (words[0], words[1]) = (COUNT, u64::from(*count)),
            Self::Granted(count) => (words[0], words[1]) = (GRANTED, u64::from(*count)),
            Self::Located(count) => (words[0], words[1]) = (LOCATED, u64::from(*count)),
            Self::Appended { count, end } => {
                (words[0], words[1], words[2]) = (APPENDED, u64::from(*count), *end);
            }
            Self::Offset(offset) => (words[0], words[1]) = (OFFSET, *offset),
            Self::Status(status) => {
                words[0] = ATTRIBUTES;
                status.encode(&mut words);
            }
            Self::Opened { handle, key, status } => {
                (words[0], words[1]) = (OPENED, *handle);
                words[KEY] = key.map_or(0, FileKey::get);
                status.encode(&mut words);
            }
            Self::Region { number, owner, pages } => {
                words[..4].copy_from_slice(&[REGION, *number, u64::from(*owner), u64::from(*pages)]);
            }
        }
        words
    }

    /// Decodes a reply; `None` for invalid words.
    pub fn decode(words: &ReplyWords) -> Option<Self> {
        Some(match words[0] {
            DECLINED => Self::Declined,
            FAILED => Self::Failed(u32::try_from(words[1]).ok()? as i32),
            DONE => Self::Done,
            COUNT => Self::Count(window_size(words[1])?),
            GRANTED => Self::Granted(window_size(words[1])?),
            LOCATED => Self::Located(window_size(words[1])?),
            APPENDED => Self::Appended { count: window_size(words[1])?, end: words[2] },
            OFFSET => Self::Offset(words[1]),
            ATTRIBUTES => Self::Status(Status::decode(words)),
            OPENED => {
                let key = FileKey::new(words[KEY]);
                Self::Opened { handle: words[1], key, status: Status::decode(words) }
            }
            REGION => {
                let owner = u16::try_from(words[2]).ok()?;
                Self::Region { number: words[1], owner, pages: count(words[3])? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
