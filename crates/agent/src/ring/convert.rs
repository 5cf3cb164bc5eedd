//! Between the words of programs and ours.

use tameike_client::vfs::{FileNumber, OpenMode};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, Errno, Fault, Timestamp};
use tameike_ring::message::{Reply, Status, Time};

const O_ACCMODE: i32 = 0o3;
const O_WRONLY: i32 = 0o1;
const O_RDWR: i32 = 0o2;
const O_CREAT: i32 = 0o100;
const O_EXCL: i32 = 0o200;
const O_NOCTTY: i32 = 0o400;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
const O_NONBLOCK: i32 = 0o4000;
const O_NOATIME: i32 = 0o1_000_000;
const O_CLOEXEC: i32 = 0o2_000_000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: i32 = 0o100_000;
#[cfg(not(target_arch = "aarch64"))]
const O_NOFOLLOW: i32 = 0o400_000;
/// What programs set to open files of 2 GiB and more; of no consequence here.
#[cfg(target_arch = "aarch64")]
const O_LARGEFILE: i32 = 0o400_000;
#[cfg(not(target_arch = "aarch64"))]
const O_LARGEFILE: i32 = 0o100_000;
/// All that an open through the ring may ask for.
const KNOWN: i32 = O_ACCMODE
    | O_CREAT
    | O_EXCL
    | O_NOCTTY
    | O_TRUNC
    | O_APPEND
    | O_NONBLOCK
    | O_NOATIME
    | O_CLOEXEC
    | O_NOFOLLOW
    | O_LARGEFILE;
const RENAME_NOREPLACE: u32 = 1;

/// Why a request is not done here.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The kernel is to be asked.
    Declined,
    /// It fails.
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        // The kernel looks the name up once more.
        if fault.errno == Errno::ESTALE { Self::Declined } else { Self::Fault(fault) }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Fault::from(errno).into()
    }
}

/// What a request comes to.
pub(super) type Served<T = Reply> = Result<T, Refusal>;

pub(super) fn reply_of(served: Served) -> Reply {
    match served {
        Ok(reply) => reply,
        Err(Refusal::Declined) => Reply::Declined,
        Err(Refusal::Fault(fault)) => {
            if !fault.message.is_empty() {
                log::debug!("{fault}");
            }
            Reply::Failed(fault.errno.0)
        }
    }
}

/// An open that the ring does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub mode: OpenMode,
    pub create: bool,
    pub exclusive: bool,
}

impl Wanted {
    /// What these flags of `openat` ask for; none when the kernel is to be asked.
    pub(super) fn of(flags: i32) -> Option<Self> {
        let has = |flag| flags & flag != 0;
        let access = flags & O_ACCMODE;
        let mode = OpenMode {
            read: access != O_WRONLY,
            write: access == O_WRONLY || access == O_RDWR,
            append: has(O_APPEND),
            truncate: has(O_TRUNC),
            noatime: has(O_NOATIME),
            beside_kernel: true,
        };
        let is_plain = flags & !KNOWN == 0 && access != O_ACCMODE;
        let is_clear = (mode.write || !mode.truncate) && (has(O_CREAT) || !has(O_EXCL));
        (is_plain && is_clear).then_some(Self { mode, create: has(O_CREAT), exclusive: has(O_EXCL) })
    }
}

pub(super) fn rename_mode(flags: u32) -> Option<RenameMode> {
    match flags {
        0 => Some(RenameMode::Replace),
        RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        _ => None,
    }
}

pub(super) fn status_of(file: FileNumber, attr: &Attr) -> Status {
    let time = |time: Timestamp| Time { seconds: time.seconds, nanoseconds: time.nanoseconds };
    Status {
        inode: file.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: attr.kind.mode_bits() | u32::from(attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's form of 32 bits is that of programs.
        rdev: attr.rdev.into(),
        block_size: UNIT_SIZE as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_opens_are_done_here() {
        let plain = Wanted::of(O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW).expect("a plain open");
        assert!(plain.create && plain.exclusive && plain.mode.read && plain.mode.write);
        let log = O_WRONLY | O_APPEND | O_LARGEFILE | O_NOCTTY | O_NONBLOCK;
        let log = Wanted::of(log).expect("a plain open");
        assert!(log.mode.append && !log.mode.read && !log.create);
        let (dsync, sync, path, tmpfile) = (0o10_000, 0o4_010_000, 0o10_000_000, 0o20_000_000);
        for others in [path, tmpfile | O_RDWR, dsync | O_WRONLY, sync | O_WRONLY, O_TRUNC, O_EXCL, O_ACCMODE]
        {
            assert_eq!(Wanted::of(others), None, "{others:o}");
        }
        // O_DIRECT and O_DIRECTORY, which change places among the machines.
        for others in [0o40_000, 0o200_000] {
            assert_eq!(Wanted::of(others), None, "{others:o}");
        }
    }
}
