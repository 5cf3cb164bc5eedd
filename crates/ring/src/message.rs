//! Requests and replies, and the words in which they are written.
//!
//! Every number that comes out of the words of another process is checked here against the limits that it must keep; what
//! is not a request is none.

mod status;

pub(crate) use status::{STATUS_WORDS, StatusWords};
pub use status::{Status, Time};

use crate::WINDOW_SIZE;
use std::num::NonZeroU64;
use tameike_core::limits::PATH_SIZE_MAX;

/// Words of a request.
pub const REQUEST_WORDS: usize = 8;
/// Words of a reply.
pub const REPLY_WORDS: usize = 16;
/// A request, as it is written.
pub type RequestWords = [u64; REQUEST_WORDS];
/// A reply, as it is written.
pub type ReplyWords = [u64; REPLY_WORDS];

/// By which frames of an open file are found that the agent lends ([`crate::frames`]): never that of another file.
pub type FileKey = NonZeroU64;

/// Where a path starts that does not begin at the root of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which view, as an index into those told at connect.
    pub view: u8,
    /// The directory: `st_ino` of a descriptor of it on the view's mount; 1 is the root.
    pub dir: u64,
}

/// A path in a request: where it starts, and its size in the window. Several lie there one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where it starts.
    pub at: Start,
    /// Its bytes, at most [`PATH_SIZE_MAX`].
    pub size: u32,
}

/// What answers a read beside bytes in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// [`Reply::Lent`].
    pub lent: bool,
    /// [`Reply::Placed`].
    pub placed: bool,
    /// The bytes were not where the last such answer has told: nobody is to be told so again.
    pub misplaced: bool,
}

/// What a program can ask. Handles are numbers that [`Reply::Opened`] told the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `openat`; `mode` without the umask's bits.
    Open {
        /// Which file.
        path: Path,
        /// As of `openat`.
        flags: i32,
        /// Permissions of a new file.
        mode: u32,
    },
    /// `pread`; the bytes come in the window, or may be read where they are.
    Read {
        /// Which handle.
        handle: u64,
        /// From where.
        offset: u64,
        /// How many bytes, at most [`WINDOW_SIZE`].
        size: u32,
        /// Which other answers are taken.
        takes: Takes,
    },
    /// `pwrite` of bytes in the window.
    Write {
        /// Which handle.
        handle: u64,
        /// To where.
        offset: u64,
        /// How many bytes, at most [`WINDOW_SIZE`].
        size: u32,
    },
    /// `write` with `O_APPEND` of bytes in the window.
    Append {
        /// Which handle.
        handle: u64,
        /// How many bytes, at most [`WINDOW_SIZE`].
        size: u32,
    },
    /// `fstat`.
    Status {
        /// Which handle.
        handle: u64,
    },
    /// `fstatat`.
    StatusAt {
        /// Which file.
        path: Path,
        /// Whether a symbolic link stands for its target.
        follow: bool,
    },
    /// `ftruncate`.
    SetSize {
        /// Which handle.
        handle: u64,
        /// How long it shall be.
        size: u64,
    },
    /// `fsync`.
    Sync {
        /// Which handle.
        handle: u64,
    },
    /// `close`.
    Close {
        /// Which handle.
        handle: u64,
    },
    /// `lseek` to data or a hole.
    Seek {
        /// Which handle.
        handle: u64,
        /// Data, or a hole.
        data: bool,
        /// From where.
        offset: u64,
    },
    /// `unlinkat` of a file.
    Unlink {
        /// Which name.
        path: Path,
    },
    /// `mkdirat`; `mode` without the umask's bits.
    MakeDir {
        /// Which name.
        path: Path,
        /// Its permissions.
        mode: u32,
    },
    /// `renameat2` of a file.
    Rename {
        /// Which name.
        from: Path,
        /// Its new one.
        to: Path,
        /// As of `renameat2`.
        flags: u32,
    },
    /// A name under which the kernel can open the file of a handle; it comes in the window.
    HandOver {
        /// Which handle.
        handle: u64,
    },
}

/// What the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing has happened: the kernel is to be asked.
    Declined,
    /// It fails with this errno.
    Failed(i32),
    /// Done.
    Done,
    /// So many bytes were moved, or lie in the window.
    Count(u32),
    /// So many bytes can be read where they are lent, unless they are recalled.
    Lent(u32),
    /// So many bytes can be read by oneself where the window tells, unless they have gone from there.
    Placed(u32),
    /// So many bytes were written, and the file's place after them.
    Appended {
        /// How many.
        count: u32,
        /// Offset behind the last.
        end: u64,
    },
    /// An offset.
    Offset(u64),
    /// Attributes.
    Status(Status),
    /// An open file.
    Opened {
        /// Its number.
        handle: u64,
        /// By which its frames are found; none when they are not lent.
        key: Option<FileKey>,
        /// Its attributes.
        status: Status,
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

impl Path {
    fn words(self) -> [u64; 2] {
        [u64::from(self.at.view) << 32 | u64::from(self.size), self.at.dir]
    }

    fn decode(words: [u64; 2]) -> Option<Self> {
        let (view, size) = (u8::try_from(words[0] >> 32).ok()?, words[0] as u32);
        (size as usize <= PATH_SIZE_MAX).then_some(Self { at: Start { view, dir: words[1] }, size })
    }
}

impl Takes {
    fn word(self) -> u64 {
        u64::from(self.lent) | u64::from(self.placed) << 1 | u64::from(self.misplaced) << 2
    }

    fn decode(word: u64) -> Option<Self> {
        (word < 8).then_some(Self { lent: word & 1 == 1, placed: word & 2 == 2, misplaced: word & 4 == 4 })
    }
}

fn window_size(word: u64) -> Option<u32> {
    u32::try_from(word).ok().filter(|&size| size as usize <= WINDOW_SIZE)
}

fn flag(word: u64) -> Option<bool> {
    match word {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl Request {
    /// How it is written.
    pub fn encode(&self) -> RequestWords {
        let of_path = |code, path: &Path, a, b| {
            let [size, dir] = path.words();
            [code, size, dir, a, b, 0, 0, 0]
        };
        match self {
            Self::Open { path, flags, mode } => {
                of_path(OPEN, path, u64::from(*flags as u32), u64::from(*mode))
            }
            Self::Read { handle, offset, size, takes } => {
                [READ, *handle, *offset, u64::from(*size), takes.word(), 0, 0, 0]
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
        }
    }

    /// What these words ask; none when it is nothing that can be asked.
    pub fn decode(words: &RequestWords) -> Option<Self> {
        let [code, a, b, c, d, e, ..] = *words;
        let path = || Path::decode([a, b]);
        Some(match code {
            OPEN => Self::Open {
                path: path()?,
                flags: u32::try_from(c).ok()? as i32,
                mode: u32::try_from(d).ok()?,
            },
            READ => Self::Read { handle: a, offset: b, size: window_size(c)?, takes: Takes::decode(d)? },
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
            _ => return None,
        })
    }

    /// Bytes of the window that are its names.
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
            | Self::HandOver { .. } => 0,
        }
    }
}

/// Word of a file's key, behind its attributes.
const KEY: usize = status::END;

const DECLINED: u64 = 1;
const FAILED: u64 = 2;
const DONE: u64 = 3;
const COUNT: u64 = 4;
const APPENDED: u64 = 5;
const OFFSET: u64 = 6;
const ATTRIBUTES: u64 = 7;
const OPENED: u64 = 8;
const LENT: u64 = 9;
const PLACED: u64 = 10;

impl Reply {
    /// How it is written.
    pub fn encode(&self) -> ReplyWords {
        let mut words = [0; REPLY_WORDS];
        match self {
            Self::Declined => words[0] = DECLINED,
            Self::Failed(errno) => (words[0], words[1]) = (FAILED, u64::from(*errno as u32)),
            Self::Done => words[0] = DONE,
            Self::Count(count) => (words[0], words[1]) = (COUNT, u64::from(*count)),
            Self::Lent(count) => (words[0], words[1]) = (LENT, u64::from(*count)),
            Self::Placed(count) => (words[0], words[1]) = (PLACED, u64::from(*count)),
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
        }
        words
    }

    /// What these words answer; none when it is no answer.
    pub fn decode(words: &ReplyWords) -> Option<Self> {
        Some(match words[0] {
            DECLINED => Self::Declined,
            FAILED => Self::Failed(u32::try_from(words[1]).ok()? as i32),
            DONE => Self::Done,
            COUNT => Self::Count(window_size(words[1])?),
            LENT => Self::Lent(window_size(words[1])?),
            PLACED => Self::Placed(window_size(words[1])?),
            APPENDED => Self::Appended { count: window_size(words[1])?, end: words[2] },
            OFFSET => Self::Offset(words[1]),
            ATTRIBUTES => Self::Status(Status::decode(words)),
            OPENED => {
                let key = FileKey::new(words[KEY]);
                Self::Opened { handle: words[1], key, status: Status::decode(words) }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
