//! File attributes, and their encoding in words. `tameike.h` of `tameike-capi` has the same structures.

use super::{REPLY_WORDS, ReplyWords};
use rustix::fs::Stat;

/// Words before the attributes.
const BEFORE_STATUS: usize = 2;
/// Number of words of attributes.
pub(crate) const STATUS_WORDS: usize = 11;
/// Encoded attributes.
pub(crate) type StatusWords = [u64; STATUS_WORDS];

/// The first word after the attributes.
pub(super) const END: usize = BEFORE_STATUS + STATUS_WORDS;

const _: () = assert!(END < REPLY_WORDS);

/// A time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since the beginning of 1970.
    pub seconds: i64,
    /// Less than 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes, as in stat(2) without the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Inode number within the view.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: Time,
    /// Time of the last write.
    pub mtime: Time,
    /// Time of the last change of attributes.
    pub ctime: Time,
    /// File type and permissions.
    pub mode: u32,
    /// Number of links.
    pub nlink: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

impl From<&Stat> for Status {
    fn from(stat: &Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| Time { seconds, nanoseconds: nanoseconds as u32 };
        Self {
            ino: stat.st_ino,
            size: stat.st_size.cast_unsigned(),
            blocks: stat.st_blocks.cast_unsigned(),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            mode: stat.st_mode,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            blksize: stat.st_blksize as u32,
        }
    }
}

impl Status {
    pub(crate) fn to_words(self) -> StatusWords {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [
            self.ino,
            self.size,
            self.blocks,
            self.atime.seconds as u64,
            self.mtime.seconds as u64,
            self.ctime.seconds as u64,
            pair(self.atime.nanoseconds, self.mtime.nanoseconds),
            pair(self.ctime.nanoseconds, self.blksize),
            pair(self.mode, self.nlink),
            pair(self.uid, self.gid),
            self.rdev,
        ]
    }

    pub(crate) fn of_words(words: &StatusWords) -> Self {
        let pair = |place: usize| ((words[place] >> 32) as u32, words[place] as u32);
        let ((atime, mtime), (ctime, blksize)) = (pair(6), pair(7));
        let ((mode, nlink), (uid, gid)) = (pair(8), pair(9));
        let time = |place: usize, nanoseconds| Time { seconds: words[place] as i64, nanoseconds };
        Self {
            ino: words[0],
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
            blksize,
        }
    }

    pub(super) fn encode(&self, words: &mut ReplyWords) {
        words[BEFORE_STATUS..BEFORE_STATUS + STATUS_WORDS].copy_from_slice(&self.to_words());
    }

    pub(super) fn decode(words: &ReplyWords) -> Self {
        Self::of_words(&std::array::from_fn(|place| words[BEFORE_STATUS + place]))
    }
}
