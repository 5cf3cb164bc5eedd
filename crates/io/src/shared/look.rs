//! What `stat` says of a file, and which of the files it is that had its inode number one after the other: its file
//! handle tells.

use super::{FileStat, translate};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CString, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The largest handle: `MAX_HANDLE_SZ` of `name_to_handle_at(2)`.
const HANDLE_SIZE_MAX: usize = 128;

/// `struct file_handle` with room for the largest handle.
#[repr(C)]
struct FileHandle {
    size: u32,
    kind: c_int,
    bytes: [u8; HANDLE_SIZE_MAX],
}

/// A name in a directory; of a symbolic link itself.
pub(super) fn at(root_device: u64, dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<FileStat> {
    // First: should another file take the name meanwhile, this fits no file, and what is done with it is done again. Where there is nothing,
    // a cluster is asked once.
    let birth = birth(dir, name, AtFlags::empty())?;
    let plain = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(dir, name, plain, StatxFlags::BASIC_STATS)?;
    Ok(translate::stat(root_device, &stat, birth))
}

/// An open file.
pub(super) fn open(root_device: u64, file: impl AsFd) -> rustix::io::Result<FileStat> {
    let stat = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let birth = birth(file.as_fd(), b"", AtFlags::EMPTY_PATH).unwrap_or(0);
    Ok(translate::stat(root_device, &stat, birth))
}

/// See [`FileStat::birth`]: 0 where the file system makes no handles. Some make handles of what this machine alone knows.
fn birth(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> rustix::io::Result<u64> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut handle = FileHandle { size: HANDLE_SIZE_MAX as u32, kind: 0, bytes: [0; HANDLE_SIZE_MAX] };
    let mut mount = 0;
    // SAFETY: `name` ends with a zero, `handle` has the layout of `struct file_handle` with `size` bytes behind it, and
    // both it and `mount` are only written to, during the call.
    let told = unsafe {
        libc::name_to_handle_at(
            dir.as_raw_fd(),
            name.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            flags.bits().cast_signed(),
        )
    };
    if told != 0 {
        let is_missing = std::io::Error::last_os_error().kind() == std::io::ErrorKind::NotFound;
        return if is_missing { Err(Errno::NOENT) } else { Ok(0) };
    }
    let mut hasher = DefaultHasher::new();
    (handle.kind, handle.bytes.get(..handle.size as usize)).hash(&mut hasher);
    Ok(hasher.finish().max(1))
}
