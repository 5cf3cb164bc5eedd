//! Functions for files of a container.

use super::names::status_of;
use super::{Aggregate, on_path, with_message};
use crate::abi::{check_memory, counted, deref, done, write_out};
use crate::file;
use libc::ssize_t;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use tameike_container::session::{Brief, OpenFile, OpenFlags, Session};
use tameike_core::Result;
use tameike_ring::client::Status;

/// An open file of a container.
pub struct AggregateFile {
    container: Arc<Aggregate>,
    file: OpenFile,
    is_appending: bool,
    can_read: bool,
    position: Mutex<u64>,
}

/// Opens a file of a container like open(2). `path` is relative to the container's root. Missing directories of the path are created.
/// Links are followed within the container. O_EXCL considers only files that this process knows. Close `*file` with tameike_agg_close().
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_open(
    container: *mut Aggregate,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    file: *mut *mut AggregateFile,
) -> c_int {
    done(|| {
        check_memory(file, 1)?;
        let access = flags & libc::O_ACCMODE;
        let options = OpenFlags {
            write: access != libc::O_RDONLY,
            create: flags & libc::O_CREAT != 0,
            exclusive: flags & libc::O_EXCL != 0,
            truncate: flags & libc::O_TRUNC != 0,
        };
        let open = |session: &Session, path: &[u8]| session.open_file(path, options, (mode & 0o7777) as u16);
        // SAFETY: by the contract of the function.
        let opened = unsafe { on_path(container, path, open)? };
        // SAFETY: the pointer came from `Arc::into_raw`, and was not taken.
        let container = unsafe {
            Arc::increment_strong_count(container);
            Arc::from_raw(container.cast_const())
        };
        let opened = AggregateFile {
            container,
            file: opened,
            is_appending: flags & libc::O_APPEND != 0,
            can_read: access != libc::O_WRONLY,
            position: Mutex::new(0),
        };
        // SAFETY: by the contract of the function.
        unsafe { write_out(file, Box::into_raw(Box::new(opened))) }
    })
}

/// Creates or truncates a file, and opens it for reading and writing: tameike_agg_open() with O_RDWR, O_CREAT and O_TRUNC. It does not
/// check for files of other processes, so that any number of processes can create different files concurrently.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_create(
    container: *mut Aggregate,
    path: *const c_char,
    mode: c_uint,
    file: *mut *mut AggregateFile,
) -> c_int {
    // SAFETY: by the contract of the function.
    unsafe { tameike_agg_open(container, path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, mode, file) }
}

/// Closes a file, and stores it in the container; the next sync makes it durable. The file is closed even on an error; tameike_agg_sync()
/// and tameike_agg_finalize() then retry to store it. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_close(file: *mut AggregateFile) -> c_int {
    done(|| {
        check_memory(file, 1)?;
        // SAFETY: the pointer came from `tameike_agg_open`, and was not closed.
        let AggregateFile { container, file, .. } = *unsafe { Box::from_raw(file) };
        with_message(container.session()?.close(file))
    })
}

/// Reads at the file's position, and advances it. Returns the number of bytes, less than `size` only at the end of the file, or a
/// negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_read(
    file: *mut AggregateFile,
    memory: *mut c_void,
    size: usize,
) -> ssize_t {
    counted(|| {
        // SAFETY: by the contract of the function.
        let (open, into) = unsafe { (deref(file)?, memory_into(memory, size)?) };
        let mut position = open.position.lock();
        let count = open.read(into, *position)?;
        *position += count as u64;
        Ok(count)
    })
}

/// Writes at the file's position, or at the end with O_APPEND, and advances it. Writes all bytes or fails. Returns the number of bytes or a
/// negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_write(
    file: *mut AggregateFile,
    memory: *const c_void,
    size: usize,
) -> ssize_t {
    counted(|| {
        // SAFETY: by the contract of the function.
        let (open, from) = unsafe { (deref(file)?, memory_from(memory, size)?) };
        let mut position = open.position.lock();
        *position = open.write(from, *position)?;
        Ok(from.len())
    })
}

/// Reads at an offset. Returns the number of bytes, less than `size` only at the end of the file, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_pread(
    file: *mut AggregateFile,
    memory: *mut c_void,
    size: usize,
    offset: u64,
) -> ssize_t {
    counted(|| {
        // SAFETY: by the contract of the function.
        let (open, into) = unsafe { (deref(file)?, memory_into(memory, size)?) };
        open.read(into, offset)
    })
}

/// Writes at an offset, or at the end with O_APPEND. Writes all bytes or fails. Returns the number of bytes or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_pwrite(
    file: *mut AggregateFile,
    memory: *const c_void,
    size: usize,
    offset: u64,
) -> ssize_t {
    counted(|| {
        // SAFETY: by the contract of the function.
        let (open, from) = unsafe { (deref(file)?, memory_from(memory, size)?) };
        open.write(from, offset)?;
        Ok(from.len())
    })
}

/// Moves the position of a file like lseek(2) with SEEK_SET, SEEK_CUR and SEEK_END. Returns the position or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_lseek(file: *mut AggregateFile, offset: i64, whence: c_int) -> i64 {
    let moved = counted(|| {
        // SAFETY: by the contract of the function.
        let open = unsafe { deref(file)? };
        let mut position = open.position.lock();
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => open.brief()?.size,
            _ => return Err(Errno::INVAL),
        };
        let to = from.checked_add_signed(offset).filter(|to| *to <= i64::MAX as u64).ok_or(Errno::INVAL)?;
        *position = to;
        usize::try_from(to).map_err(|_| Errno::OVERFLOW)
    });
    moved as i64
}

/// Sets the size of a file. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_ftruncate(file: *mut AggregateFile, size: u64) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(file)? }.call(|session, file| session.truncate(file, size)))
}

/// Makes an open file durable, and all files that this process has closed before. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_fsync(file: *mut AggregateFile) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(file)? }.call(Session::sync_file))
}

/// Reads the attributes of an open file. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_fstat(file: *mut AggregateFile, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { write_out(status, status_of(&deref(file)?.brief()?)) })
}

impl AggregateFile {
    fn call<T>(&self, call: impl FnOnce(&Session, &OpenFile) -> Result<T>) -> file::Result<T> {
        with_message(call(self.container.session()?, &self.file))
    }

    fn brief(&self) -> file::Result<Brief> {
        self.call(|session, file| Ok(session.status(file)))
    }

    fn read(&self, into: &mut [u8], offset: u64) -> file::Result<usize> {
        if !self.can_read {
            return Err(Errno::BADF);
        }
        self.call(|session, file| session.read_at(file, into, offset))
    }

    /// Returns the end of the write.
    fn write(&self, from: &[u8], offset: u64) -> file::Result<u64> {
        let offset = (!self.is_appending).then_some(offset);
        self.call(|session, file| session.write(file, from, offset))
    }
}

/// # Safety
/// The memory has `size` bytes, and is accessed only through the result while it is used.
unsafe fn memory_into<'a>(memory: *mut c_void, size: usize) -> file::Result<&'a mut [u8]> {
    check_memory(memory, size)?;
    // SAFETY: by the contract above; an empty slice needs no memory.
    Ok(if size == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(memory.cast(), size) } })
}

/// # Safety
/// The memory has `size` bytes, and does not change while the result is used.
unsafe fn memory_from<'a>(memory: *const c_void, size: usize) -> file::Result<&'a [u8]> {
    check_memory(memory, size)?;
    // SAFETY: by the contract above; an empty slice needs no memory.
    Ok(if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(memory.cast(), size) } })
}
