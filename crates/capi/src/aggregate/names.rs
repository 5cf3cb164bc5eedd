//! Names of a container.

use super::{Aggregate, inner, told};
use crate::abi::{Status, Time, counted, done, fits, put, there};
use rustix::io::Errno;
use std::ffi::{CString, c_char, c_int, c_uint};
use tameike_container::session::Brief;
use tameike_core::FileKind;

/// Names in a directory of a container.
pub struct AggregateList {
    names: Vec<(CString, FileKind)>,
    next: usize,
}

/// Tells of what is at a path; links are followed, within the container. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_stat(
    container: *mut Aggregate,
    path: *const c_char,
    status: *mut Status,
) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let (aggregate, path) = unsafe { (there(container)?, inner(path)?) };
        let found = told(aggregate.session()?.stat_followed(path))?;
        // SAFETY: the same.
        unsafe { put(status, Status::from(&found)) }
    })
}

/// Makes a directory, and those that it lies in. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_mkdir(
    container: *mut Aggregate,
    path: *const c_char,
    mode: c_uint,
) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let (aggregate, path) = unsafe { (there(container)?, inner(path)?) };
        told(aggregate.session()?.make_dir(path, (mode & 0o7777) as u16))
    })
}

/// Removes a directory in which nothing is. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_rmdir(container: *mut Aggregate, path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let (aggregate, path) = unsafe { (there(container)?, inner(path)?) };
        told(aggregate.session()?.remove_dir(path))
    })
}

/// Removes a file. Who has it open keeps it until it is closed. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_unlink(container: *mut Aggregate, path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let (aggregate, path) = unsafe { (there(container)?, inner(path)?) };
        told(aggregate.session()?.unlink(path))
    })
}

/// Gives a file or a directory another name, in place of what has that name: of a directory that is empty at most. Returns 0 or a negative
/// errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_rename(
    container: *mut Aggregate,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let (aggregate, from, to) = unsafe { (there(container)?, inner(from)?, inner(to)?) };
        told(aggregate.session()?.rename(from, to))
    })
}

/// Lists a directory as it is now. `*list` is for tameike_agg_closedir(). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_opendir(
    container: *mut Aggregate,
    path: *const c_char,
    list: *mut *mut AggregateList,
) -> c_int {
    done(|| {
        fits(list, 1)?;
        // SAFETY: by the contract of the function.
        let (aggregate, path) = unsafe { (there(container)?, inner(path)?) };
        let names = told(aggregate.session()?.read_dir(path))?;
        let names = names.into_iter().filter_map(|(name, kind)| Some((CString::new(name).ok()?, kind)));
        let names = names.collect();
        // SAFETY: the same.
        unsafe { put(list, Box::into_raw(Box::new(AggregateList { names, next: 0 }))) }
    })
}

/// Gives the next name of a list, by name, and in `*kind`, unless that is null, what it is: as the kind in a `mode`. The name is
/// there until the list is closed. Returns 1, 0 at the end, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_readdir(
    list: *mut AggregateList,
    name: *mut *const c_char,
    kind: *mut u32,
) -> c_int {
    let read = counted(|| {
        fits(name, 1)?;
        // SAFETY: by the contract of the function.
        let list = unsafe { list.as_mut() }.ok_or(Errno::FAULT)?;
        let Some((next, of)) = list.names.get(list.next) else { return Ok(0) };
        // SAFETY: the same.
        unsafe {
            put(name, next.as_ptr())?;
            if !kind.is_null() {
                put(kind, of.mode_bits())?;
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
        fits(list, 1)?;
        // SAFETY: it came from `tameike_agg_opendir`, and was not closed.
        drop(unsafe { Box::from_raw(list) });
        Ok(())
    })
}

impl From<&Brief> for Status {
    fn from(brief: &Brief) -> Self {
        let time = || Time { seconds: brief.mtime.seconds, nanoseconds: brief.mtime.nanoseconds };
        Self {
            ino: 0,
            size: brief.size,
            blocks: brief.size.div_ceil(512),
            atime: time(),
            mtime: time(),
            ctime: time(),
            mode: brief.kind.mode_bits() | u32::from(brief.mode),
            nlink: 1,
            uid: brief.uid,
            gid: brief.gid,
            rdev: 0,
            blksize: 1 << 20,
        }
    }
}
