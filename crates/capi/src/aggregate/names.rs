//! Functions for names of a container.

use super::{Aggregate, container_path, on_path};
use crate::abi::{check_memory, counted, done, write_out};
use rustix::io::Errno;
use std::ffi::{CString, c_char, c_int, c_uint};
use tameike_container::session::{Brief, Session};
use tameike_core::FileKind;
use tameike_ring::client::{Status, Time};

/// An open list of the names in a directory of a container.
pub struct AggregateList {
    names: Vec<(CString, FileKind)>,
    next: usize,
}

/// Reads attributes by path, following links within the container. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_stat(
    container: *mut Aggregate,
    path: *const c_char,
    status: *mut Status,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe {
        let found = on_path(container, path, Session::stat_followed)?;
        write_out(status, status_of(&found))
    })
}

/// Creates a directory, and missing directories of its path. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_mkdir(
    container: *mut Aggregate,
    path: *const c_char,
    mode: c_uint,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe {
        on_path(container, path, |session, path| session.make_dir(path, (mode & 0o7777) as u16))
    })
}

/// Removes an empty directory. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_rmdir(container: *mut Aggregate, path: *const c_char) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { on_path(container, path, Session::remove_dir) })
}

/// Removes a file. Processes that have it open can use it until they close it. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_unlink(container: *mut Aggregate, path: *const c_char) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { on_path(container, path, Session::unlink) })
}

/// Renames a file or a directory. Replaces a file or an empty directory of the new name. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_rename(
    container: *mut Aggregate,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe {
        let to = container_path(to)?;
        on_path(container, from, |session, from| session.rename(from, to))
    })
}

/// Lists a directory in its current state. Close `*list` with tameike_agg_closedir(). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_opendir(
    container: *mut Aggregate,
    path: *const c_char,
    list: *mut *mut AggregateList,
) -> c_int {
    done(|| {
        check_memory(list, 1)?;
        // SAFETY: by the contract of the function.
        let names = unsafe { on_path(container, path, Session::read_dir)? };
        let names = names.into_iter().filter_map(|(name, kind)| Some((CString::new(name).ok()?, kind)));
        let names = names.collect();
        // SAFETY: the same.
        unsafe { write_out(list, Box::into_raw(Box::new(AggregateList { names, next: 0 }))) }
    })
}

/// Returns the next name of a list, sorted by name, and its file type as in a `mode` in `*kind`, unless that is null. The name is valid
/// until the list is closed. Returns 1, or 0 at the end, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_readdir(
    list: *mut AggregateList,
    name: *mut *const c_char,
    kind: *mut u32,
) -> c_int {
    let read = counted(|| {
        check_memory(name, 1)?;
        // SAFETY: by the contract of the function.
        let list = unsafe { list.as_mut() }.ok_or(Errno::FAULT)?;
        let Some((next, of)) = list.names.get(list.next) else { return Ok(0) };
        // SAFETY: the same.
        unsafe {
            write_out(name, next.as_ptr())?;
            if !kind.is_null() {
                write_out(kind, of.mode_bits())?;
            }
        }
        list.next += 1;
        Ok(1)
    });
    read as c_int
}

/// Closes a list. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_closedir(list: *mut AggregateList) -> c_int {
    done(|| {
        check_memory(list, 1)?;
        // SAFETY: the pointer came from `tameike_agg_opendir`, and was not closed.
        drop(unsafe { Box::from_raw(list) });
        Ok(())
    })
}

/// Converts the attributes of a file of a container.
pub(super) fn status_of(brief: &Brief) -> Status {
    let time = Time { seconds: brief.mtime.seconds, nanoseconds: brief.mtime.nanoseconds };
    Status {
        ino: 0,
        size: brief.size,
        blocks: brief.size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        mode: brief.kind.mode_bits() | u32::from(brief.mode),
        nlink: 1,
        uid: brief.uid,
        gid: brief.gid,
        rdev: 0,
        blksize: 1 << 20,
    }
}
