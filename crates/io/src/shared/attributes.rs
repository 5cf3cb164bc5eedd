//! Attributes of files, with a hash of the file handle that distinguishes successive files of one inode number.

use super::ids::Ids;
use super::{FileStat, translate};
use rustix::fs::{Access, AtFlags, CWD, Stat, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CString, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use tameike_core::attr::AttrChange;

/// The largest handle: `MAX_HANDLE_SZ` of `name_to_handle_at(2)`.
const HANDLE_SIZE_MAX: usize = 128;

/// `struct file_handle` with space for the largest handle.
#[repr(C)]
struct FileHandle {
    size: u32,
    kind: c_int,
    bytes: [u8; HANDLE_SIZE_MAX],
}

/// The context in which the attributes of a tree are shown.
#[derive(Clone, Copy)]
pub(super) struct StatContext {
    pub(super) root_device: u64,
    /// Set in a user namespace that maps one user.
    pub(super) ids: Option<Ids>,
}

impl StatContext {
    /// The attributes to show. `dir` and `name` serve to ask the kernel for permissions.
    fn show(&self, mut stat: FileStat, dir: BorrowedFd<'_>, name: &[u8]) -> FileStat {
        if let Some(ids) = self.ids {
            ids.show(&mut stat, |access| rustix::fs::accessat(dir, name, access, AtFlags::empty()).is_ok());
        }
        stat
    }

    /// Checks the permission to write to a file. Its owner always passes.
    pub(super) fn check_write(&self, dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
        if self.ids.is_none() {
            return Ok(());
        }
        let refused = match rustix::fs::accessat(dir, name, Access::WRITE_OK, AtFlags::empty()) {
            Err(Errno::ACCESS) => Errno::ACCESS,
            asked => return asked,
        };
        let is_own =
            rustix::fs::statat(dir, name, AtFlags::empty())?.st_uid == rustix::process::geteuid().as_raw();
        if is_own { Ok(()) } else { Err(refused) }
    }

    /// The changes to apply to a file, see [`Ids::effective_change`].
    pub(super) fn effective_change(
        &self,
        change: &AttrChange,
        stat: impl FnOnce() -> rustix::io::Result<Stat>,
    ) -> rustix::io::Result<AttrChange> {
        let gives = change.uid.is_some() || change.gid.is_some();
        match self.ids.filter(|_| gives) {
            Some(ids) => stat().map(|stat| ids.effective_change((stat.st_uid, stat.st_gid), change)),
            None => Ok(change.clone()),
        }
    }
}

/// The attributes of a directory entry; symbolic links are not followed.
pub(super) fn at(context: StatContext, dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<FileStat> {
    // The handle is read first: if another file takes the name meanwhile, it matches no file, and callers repeat their operation.
    // For a missing name a cluster file system is asked only once.
    let handle_hash = handle_hash(dir, name, AtFlags::empty())?;
    let plain = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(dir, name, plain, StatxFlags::BASIC_STATS)?;
    Ok(context.show(translate::stat(context.root_device, &stat, handle_hash), dir, name))
}

/// The attributes of an open file.
pub(super) fn open(context: StatContext, file: impl AsFd) -> rustix::io::Result<FileStat> {
    let stat = open_without_hash(context, &file)?;
    Ok(FileStat { handle_hash: handle_hash(file.as_fd(), b"", AtFlags::EMPTY_PATH).unwrap_or(0), ..stat })
}

/// As [`open`], without [`FileStat::handle_hash`].
pub(super) fn open_without_hash(context: StatContext, file: impl AsFd) -> rustix::io::Result<FileStat> {
    let stat = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let stat = translate::stat(context.root_device, &stat, 0);
    match context.ids {
        None => Ok(stat),
        Some(_) => Ok(context.show(stat, CWD, &name_of(&file))),
    }
}

/// A path of an open file in `/proc`.
pub(super) fn name_of(file: impl AsFd) -> Vec<u8> {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into_bytes()
}

/// See [`FileStat::handle_hash`]: 0 if the file system has no handles. The handles of some file systems are specific to this node.
fn handle_hash(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> rustix::io::Result<u64> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut handle = FileHandle { size: HANDLE_SIZE_MAX as u32, kind: 0, bytes: [0; HANDLE_SIZE_MAX] };
    let mut mount = 0;
    // SAFETY: `name` ends with a zero, `handle` has the layout of `struct file_handle` with `size` bytes behind it, and
    // both it and `mount` are only written to, during the call.
    let returned = unsafe {
        libc::name_to_handle_at(
            dir.as_raw_fd(),
            name.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            flags.bits().cast_signed(),
        )
    };
    if returned != 0 {
        let is_missing = std::io::Error::last_os_error().kind() == std::io::ErrorKind::NotFound;
        return if is_missing { Err(Errno::NOENT) } else { Ok(0) };
    }
    let mut hasher = DefaultHasher::new();
    (handle.kind, handle.bytes.get(..handle.size as usize)).hash(&mut hasher);
    Ok(hasher.finish().max(1))
}
