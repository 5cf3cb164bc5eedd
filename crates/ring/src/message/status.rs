//! File attributes, and their encoding in words.

use super::{REPLY_WORDS, ReplyWords};

/// Words before the attributes.
const BEFORE_STATUS: usize = 2;
/// Number of words of attributes.
pub(crate) const STATUS_WORDS: usize = 11;
/// Encoded attributes.
pub(crate) type StatusWords = [u64; STATUS_WORDS];

/// The first word after the attributes.
pub(super) const END: usize = BEFORE_STATUS + STATUS_WORDS;

const _: () = assert!(END < REPLY_WORDS);

/// A time since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Attributes as `statx` on the mount returns them, except `st_dev`, which is the mount's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `st_ino`.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// `st_blocks`: allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// `st_mode`: file type and permissions.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `st_rdev`, as the kernel encodes it for programs (`makedev`).
    pub rdev: u64,
    /// `st_blksize`.
    pub block_size: u32,
}

impl Status {
    pub(crate) fn to_words(self) -> StatusWords {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [
            self.inode,
            self.size,
            self.blocks,
            self.atime.seconds as u64,
            self.mtime.seconds as u64,
            self.ctime.seconds as u64,
            pair(self.atime.nanoseconds, self.mtime.nanoseconds),
            pair(self.ctime.nanoseconds, self.block_size),
            pair(self.mode, self.nlink),
            pair(self.uid, self.gid),
            self.rdev,
        ]
    }

    pub(crate) fn of_words(words: &StatusWords) -> Self {
        let pair = |place: usize| ((words[place] >> 32) as u32, words[place] as u32);
        let ((atime, mtime), (ctime, block_size)) = (pair(6), pair(7));
        let ((mode, nlink), (uid, gid)) = (pair(8), pair(9));
        let time = |place: usize, nanoseconds| Time { seconds: words[place] as i64, nanoseconds };
        Self {
            inode: words[0],
            size: words[1],
            blocks: words[2],
            atime: time(3, atime),
            mtime: time(4, mtime),
            ctime: time(5, ctime),
            mode,
            nlink,
            uid,
            gid,
            rdev: words[10],
            block_size,
        }
    }

    pub(super) fn encode(&self, words: &mut ReplyWords) {
        words[BEFORE_STATUS..BEFORE_STATUS + STATUS_WORDS].copy_from_slice(&self.to_words());
    }

    pub(super) fn decode(words: &ReplyWords) -> Self {
        Self::of_words(&std::array::from_fn(|place| words[BEFORE_STATUS + place]))
    }
}
