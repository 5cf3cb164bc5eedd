//! Conversions between types of the ring protocol and of the views.

use crate::fuse::open_mode;
use tameike_client::vfs::{FileNumber, OpenMode};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, Errno, Fault, Timestamp};
use tameike_ring::message::{Reply, Status, Time};

/// Set by programs to open files of 2 GiB and more; no effect here. The constant of the `libc` crate is 0 on 64-bit systems.
#[cfg(target_arch = "aarch64")]
const O_LARGEFILE: i32 = 0o400_000;
#[cfg(not(target_arch = "aarch64"))]
const O_LARGEFILE: i32 = 0o100_000;
/// Flags that an open through the ring supports.
const KNOWN: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | O_LARGEFILE;

/// Result of a request that does not succeed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The program must use the kernel.
    Declined,
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        // The kernel retries the lookup.
        if fault.errno == Errno::ESTALE { Self::Declined } else { Self::Fault(fault) }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Fault::from(errno).into()
    }
}

pub(super) type Served<T = Reply> = Result<T, Refusal>;

pub(super) fn reply_of(served: Served) -> Reply {
    match served {
        Ok(reply) => reply,
        Err(Refusal::Declined) => Reply::Declined,
        Err(Refusal::Fault(fault)) => {
            if fault.has_message() {
                log::debug!("{fault}");
            }
            Reply::Failed(fault.errno.0)
        }
    }
}

/// An open that the ring supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub mode: OpenMode,
    pub create: bool,
    pub exclusive: bool,
}

impl Wanted {
    /// Converts flags of `openat`. Returns `None` if the program must use the kernel.
    pub(super) fn of(flags: i32) -> Option<Self> {
        let has = |flag| flags & flag != 0;
        let mode = OpenMode { beside_kernel: true, ..open_mode(flags) };
        let is_plain = flags & !KNOWN == 0 && flags & libc::O_ACCMODE != libc::O_ACCMODE;
        let is_clear = (mode.write || !mode.truncate) && (has(libc::O_CREAT) || !has(libc::O_EXCL));
        (is_plain && is_clear).then_some(Self {
            mode,
            create: has(libc::O_CREAT),
            exclusive: has(libc::O_EXCL),
        })
    }
}

pub(super) fn rename_mode(flags: u32) -> Option<RenameMode> {
    match flags {
        0 => Some(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        _ => None,
    }
}

pub(super) fn status_of(file: FileNumber, attr: &Attr) -> Status {
    let time = |time: Timestamp| Time { seconds: time.seconds, nanoseconds: time.nanoseconds };
    Status {
        ino: file.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: attr.kind.mode_bits() | u32::from(attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // FUSE's 32-bit form is the one that programs see.
        rdev: attr.rdev.into(),
        blksize: UNIT_SIZE as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_common_open_flags_are_served() {
        let plain =
            Wanted::of(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW)
                .expect("a plain open");
        assert!(plain.create && plain.exclusive && plain.mode.read && plain.mode.write);
        let log = libc::O_WRONLY | libc::O_APPEND | O_LARGEFILE | libc::O_NOCTTY | libc::O_NONBLOCK;
        let log = Wanted::of(log).expect("a plain open");
        assert!(log.mode.append && !log.mode.read && !log.create);
        let (dsync, sync, path, tmpfile) = (0o10_000, 0o4_010_000, 0o10_000_000, 0o20_000_000);
        for others in [
            path,
            tmpfile | libc::O_RDWR,
            dsync | libc::O_WRONLY,
            sync | libc::O_WRONLY,
            libc::O_TRUNC,
            libc::O_EXCL,
            libc::O_ACCMODE,
            // O_DIRECT and O_DIRECTORY, whose values differ between architectures.
            0o40_000,
            0o200_000,
        ] {
            assert_eq!(Wanted::of(others), None, "{others:o}");
        }
    }
}
