//! The C functions for files. `include/tameike.h` is generated from this file and [`Status`], with their comments.
//!
//! Functions check pointers for null, and otherwise trust the contract in the header.

#![expect(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header; the module documentation states the contract"
)]

use crate::file::{self, File, Result};
use crate::request::{Memory, Request};
use libc::ssize_t;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tameike_ring::client::{Status, TRANSFER_SIZE_MAX};

/// A range of a file, and the memory for it.
#[repr(C)]
pub struct Piece {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Address in memory. Writes only read it.
    pub memory: *mut c_void,
    /// Size in bytes.
    pub size: usize,
}

/// Runs a call that returns a count. A panic of this library becomes `EIO`.
pub(crate) fn counted(call: impl FnOnce() -> Result<usize>) -> ssize_t {
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::IO)) {
        Ok(count) => count.cast_signed(),
        Err(error) => -(error.raw_os_error() as isize),
    }
}

/// As [`counted`], for a call that returns 0.
pub(crate) fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    counted(|| call().map(|()| 0)) as c_int
}

/// # Safety
/// The path is null or NUL-terminated.
pub(crate) unsafe fn text<'a>(path: *const c_char) -> Result<&'a CStr> {
    // SAFETY: by the contract above.
    if path.is_null() { Err(Errno::FAULT) } else { Ok(unsafe { CStr::from_ptr(path) }) }
}

/// # Safety
/// The pointer is null, or to a value that lives and does not change while the result is used.
pub(crate) unsafe fn deref<'a, T>(pointer: *mut T) -> Result<&'a T> {
    // SAFETY: by the contract above.
    unsafe { pointer.as_ref() }.ok_or(Errno::FAULT)
}

/// # Safety
/// The pointer is null, or valid for writes.
pub(crate) unsafe fn write_out<T>(pointer: *mut T, value: T) -> Result<()> {
    if pointer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: by the contract above.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Checks that `memory` may be `size` bytes: not null, and not too large.
pub(crate) fn check_memory<T>(memory: *const T, size: usize) -> Result<()> {
    if isize::try_from(size).is_err() {
        return Err(Errno::INVAL);
    }
    if memory.is_null() && size > 0 { Err(Errno::FAULT) } else { Ok(()) }
}

/// Opens a file like open(2), with O_CLOEXEC. `mode` applies with O_CREAT. Close `*file` with tameike_close().
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_open(
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    file: *mut *mut File,
) -> c_int {
    done(|| {
        check_memory(file, 1)?;
        // SAFETY: by the contract of the function.
        let opened = File::open(unsafe { text(path)? }, flags, mode)?;
        // SAFETY: the same.
        unsafe { write_out(file, Arc::into_raw(Arc::new(opened)).cast_mut()) }
    })
}

/// Closes a file, and returns what close(2) returns, including errors of earlier writes. The file is closed even on an error, except
/// -EBUSY: a request on it has not been waited for. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_close(file: *mut File) -> c_int {
    done(|| {
        check_memory(file, 1)?;
        // SAFETY: it came from `tameike_open`, and was not closed.
        match Arc::try_unwrap(unsafe { Arc::from_raw(file) }) {
            Ok(file) => file.close(),
            Err(file) => {
                // The program keeps the file.
                let _ = Arc::into_raw(file);
                Err(Errno::BUSY)
            }
        }
    })
}

/// Reads at an offset. Returns the number of bytes, less than `size` only at the end of the file, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_read(
    file: *mut File,
    memory: *mut c_void,
    size: usize,
    offset: u64,
) -> ssize_t {
    if size > TRANSFER_SIZE_MAX {
        let piece = Piece { offset, memory, size };
        // SAFETY: by the contract of the function.
        return unsafe { tameike_read_list(file, &raw const piece, 1) };
    }
    counted(|| {
        check_memory(memory, size)?;
        // SAFETY: by the contract of the function.
        let into = unsafe { Memory::Into(memory.cast()).into(size) };
        // SAFETY: the same.
        unsafe { deref(file)? }.read(offset, into)
    })
}

/// Writes at an offset, or at the end of a file that was opened with O_APPEND. Returns the number of bytes or a negative errno. The
/// number is less than `size` only if the rest failed: the next call returns the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_write(
    file: *mut File,
    memory: *const c_void,
    size: usize,
    offset: u64,
) -> ssize_t {
    if size > TRANSFER_SIZE_MAX {
        let piece = Piece { offset, memory: memory.cast_mut(), size };
        // SAFETY: by the contract of the function; the memory is only read.
        return unsafe { tameike_write_list(file, &raw const piece, 1) };
    }
    counted(|| {
        check_memory(memory, size)?;
        // SAFETY: by the contract of the function.
        let from = unsafe { Memory::From(memory.cast()).from(size) };
        // SAFETY: the same.
        unsafe { deref(file)? }.write(offset, from)
    })
}

/// Reads pieces, several at the same time. Returns the number of bytes up to and including the first short piece, or a negative errno
/// if the first piece failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_read_list(file: *mut File, pieces: *const Piece, count: usize) -> ssize_t {
    // SAFETY: by the contract of the function.
    counted(|| finish(unsafe { begin(file, pieces, count, |memory| Memory::Into(memory.cast()))? }))
}

/// Writes pieces, several at the same time. They must not overlap in the file. Returns as tameike_read_list().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_write_list(file: *mut File, pieces: *const Piece, count: usize) -> ssize_t {
    counted(|| {
        // SAFETY: by the contract of the function.
        finish(unsafe { begin(file, pieces, count, |memory| Memory::From(memory.cast_const().cast()))? })
    })
}

/// Starts to read pieces. The program must not access their memory until tameike_wait() on `*request` has returned the end.
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_submit_read(
    file: *mut File,
    pieces: *const Piece,
    count: usize,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: by the contract of the function.
    unsafe { submit(file, pieces, count, request, |memory| Memory::Into(memory.cast())) }
}

/// Starts to write pieces, as tameike_submit_read(). They are written in any order, and must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_submit_write(
    file: *mut File,
    pieces: *const Piece,
    count: usize,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: by the contract of the function.
    unsafe { submit(file, pieces, count, request, |memory| Memory::From(memory.cast_const().cast())) }
}

/// Waits for the end of a request: 0 milliseconds do not wait, a negative number waits without limit. Only a waiting program starts
/// further pieces; up to twelve are in flight in between, of all requests of the process together. Returns as tameike_read_list(), and
/// frees the request; or returns -EINPROGRESS, and the request continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_wait(request: *mut Request, milliseconds: c_int) -> ssize_t {
    counted(|| {
        check_memory(request, 1)?;
        // SAFETY: by the contract of the function.
        let waiting = unsafe { &mut *request };
        if !waiting.wait(Request::until(milliseconds)) {
            return Err(Errno::INPROGRESS);
        }
        // SAFETY: it came from a submitting call, and the program does not use it any more.
        unsafe { Box::from_raw(request) }.outcome()
    })
}

/// Reads the attributes of an open file. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_fstat(file: *mut File, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { write_out(status, deref(file)?.status()?) })
}

/// Reads the attributes of a file by path, following symbolic links. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_stat(path: *const c_char, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { write_out(status, file::status_at(text(path)?, true)?) })
}

/// As tameike_stat(), for a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_lstat(path: *const c_char, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { write_out(status, file::status_at(text(path)?, false)?) })
}

/// Truncates or extends a file to `size` bytes. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_ftruncate(file: *mut File, size: u64) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(file)? }.set_size(size))
}

/// Syncs a file like fsync(2). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_fsync(file: *mut File) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(file)? }.sync())
}

/// Returns a kernel descriptor of the file, for calls that this library does not have (mmap, locks), or a negative errno. From then on,
/// all calls on the file use the kernel. tameike_close() closes the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_descriptor(file: *mut File) -> c_int {
    let number = || {
        // SAFETY: by the contract of the function.
        let file = unsafe { deref(file)? }.kernel()?;
        Ok(file.as_raw_fd() as usize)
    };
    counted(number) as c_int
}

/// Removes a name of a file like unlink(2). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_unlink(path: *const c_char) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| file::unlink(unsafe { text(path)? }))
}

/// Creates a directory like mkdir(2). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_mkdir(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| file::make_dir(unsafe { text(path)? }, mode))
}

/// Renames a file like renameat2(2), with its flags. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_rename(from: *const c_char, to: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { file::rename(text(from)?, text(to)?, flags) })
}

/// # Safety
/// As [`tameike_read_list`].
unsafe fn begin(
    file: *mut File,
    pieces: *const Piece,
    count: usize,
    memory: impl Fn(*mut c_void) -> Memory,
) -> Result<Request> {
    check_memory(file, 1)?;
    check_memory(pieces, count.checked_mul(size_of::<Piece>()).ok_or(Errno::INVAL)?)?;
    // SAFETY: by the contract of the function; an empty list may be null.
    let pieces = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pieces, count) } };
    pieces.iter().try_for_each(|piece| check_memory(piece.memory, piece.size))?;
    // SAFETY: it came from `tameike_open`, and is not closed meanwhile; the request drops this reference.
    let file = unsafe {
        Arc::increment_strong_count(file);
        Arc::from_raw(file)
    };
    let pieces = pieces.iter().map(|piece| (piece.offset, memory(piece.memory), piece.size));
    // SAFETY: by the contract of the function, the program does not use the memory until the request ends.
    Ok(unsafe { Request::begin(file, pieces) })
}

fn finish(mut request: Request) -> Result<usize> {
    request.wait(None);
    request.outcome()
}

/// # Safety
/// As [`tameike_submit_read`].
unsafe fn submit(
    file: *mut File,
    pieces: *const Piece,
    count: usize,
    request: *mut *mut Request,
    memory: impl Fn(*mut c_void) -> Memory,
) -> c_int {
    done(|| {
        check_memory(request, 1)?;
        // SAFETY: by the contract of the function.
        let begun = unsafe { begin(file, pieces, count, memory)? };
        // SAFETY: the same.
        unsafe { write_out(request, Box::into_raw(Box::new(begun))) }
    })
}
