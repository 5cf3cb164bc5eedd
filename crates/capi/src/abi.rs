//! The functions as programs in C call them: `include/tameike.h` is made of this file, comments and all.
//!
//! Of pointers they believe what the header says of them, but that they are not null.

#![expect(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header; what callers owe stands above"
)]

use crate::file::{self, File, Result};
use crate::request::{Memory, Request};
use libc::ssize_t;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tameike_ring::client::{self, TRANSFER_SIZE_MAX};

/// One piece of a file and of memory.
#[repr(C)]
pub struct Piece {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Where in memory. What is written is only looked at.
    pub memory: *mut c_void,
    /// How many bytes.
    pub size: usize,
}

/// A moment.
#[repr(C)]
pub struct Time {
    /// Since the beginning of 1970.
    pub seconds: i64,
    /// Less than 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes, as stat(2) has them but for the device.
#[repr(C)]
pub struct Status {
    /// The file's number within its view.
    pub ino: u64,
    /// In bytes.
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    /// Of the last read.
    pub atime: Time,
    /// Of the last write.
    pub mtime: Time,
    /// Of the last change of attributes.
    pub ctime: Time,
    /// Kind and permissions.
    pub mode: u32,
    /// How many names it has.
    pub nlink: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Of a device file.
    pub rdev: u64,
    /// Bytes that are best read and written at once.
    pub blksize: u32,
}

impl From<client::Time> for Time {
    fn from(time: client::Time) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

impl From<client::Status> for Status {
    fn from(status: client::Status) -> Self {
        Self {
            ino: status.inode,
            size: status.size,
            blocks: status.blocks,
            atime: status.atime.into(),
            mtime: status.mtime.into(),
            ctime: status.ctime.into(),
            mode: status.mode,
            nlink: status.nlink,
            uid: status.uid,
            gid: status.gid,
            rdev: status.rdev,
            blksize: status.block_size,
        }
    }
}

/// Runs a call of a program; a fault of this library's own is `EIO` for it.
pub(crate) fn counted(call: impl FnOnce() -> Result<usize>) -> ssize_t {
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::IO)) {
        Ok(count) => count.cast_signed(),
        Err(error) => -(error.raw_os_error() as isize),
    }
}

/// The same of a call that counts nothing.
pub(crate) fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    counted(|| call().map(|()| 0)) as c_int
}

/// # Safety
/// The path is null, or ends with a zero.
pub(crate) unsafe fn text<'a>(path: *const c_char) -> Result<&'a CStr> {
    // SAFETY: by the contract above.
    if path.is_null() { Err(Errno::FAULT) } else { Ok(unsafe { CStr::from_ptr(path) }) }
}

/// # Safety
/// The pointer is null, or to what lives and is not changed meanwhile.
pub(crate) unsafe fn there<'a, T>(pointer: *mut T) -> Result<&'a T> {
    // SAFETY: by the contract above.
    unsafe { pointer.as_ref() }.ok_or(Errno::FAULT)
}

/// # Safety
/// The place is null, or the caller's.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: by the contract above.
    unsafe { place.write(value) };
    Ok(())
}

/// Whether so many bytes of memory can be at all.
pub(crate) fn fits<T>(memory: *const T, size: usize) -> Result<()> {
    if isize::try_from(size).is_err() {
        return Err(Errno::INVAL);
    }
    if memory.is_null() && size > 0 { Err(Errno::FAULT) } else { Ok(()) }
}

/// Opens a file as open(2) does, with O_CLOEXEC. `mode` counts with O_CREAT. `*file` is for tameike_close().
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_open(
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    file: *mut *mut File,
) -> c_int {
    done(|| {
        fits(file, 1)?;
        // SAFETY: by the contract of the function.
        let opened = File::open(unsafe { text(path)? }, flags, mode)?;
        // SAFETY: the same.
        unsafe { put(file, Arc::into_raw(Arc::new(opened)).cast_mut()) }
    })
}

/// Closes a file and tells what close(2) tells: of failed writes, too. The file is gone whatever is told, but with -EBUSY:
/// a request on it was not waited for. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_close(file: *mut File) -> c_int {
    done(|| {
        fits(file, 1)?;
        // SAFETY: it came from `tameike_open`, and was not closed.
        match Arc::try_unwrap(unsafe { Arc::from_raw(file) }) {
            Ok(file) => file.close(),
            Err(file) => {
                // It stays with the program.
                let _ = Arc::into_raw(file);
                Err(Errno::BUSY)
            }
        }
    })
}

/// Reads at an offset. Less than `size` bytes come only at the end of the file. Returns bytes or a negative errno.
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
        fits(memory, size)?;
        // SAFETY: by the contract of the function.
        let into = unsafe { Memory::Into(memory.cast()).into(size) };
        // SAFETY: the same.
        unsafe { there(file)? }.read(offset, into)
    })
}

/// Writes at an offset; to the end where the file was opened with O_APPEND. Less than `size` bytes are written only when the
/// rest failed: the next call tells why. Returns bytes or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_write(
    file: *mut File,
    memory: *const c_void,
    size: usize,
    offset: u64,
) -> ssize_t {
    if size > TRANSFER_SIZE_MAX {
        let piece = Piece { offset, memory: memory.cast_mut(), size };
        // SAFETY: by the contract of the function; the memory is only looked at.
        return unsafe { tameike_write_list(file, &raw const piece, 1) };
    }
    counted(|| {
        fits(memory, size)?;
        // SAFETY: by the contract of the function.
        let from = unsafe { Memory::From(memory.cast()).from(size) };
        // SAFETY: the same.
        unsafe { there(file)? }.write(offset, from)
    })
}

/// Reads pieces, several at the same time. Returns the bytes of all pieces before the first that came out short, and of that
/// one; or a negative errno, when the first piece failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_read_list(file: *mut File, pieces: *const Piece, count: usize) -> ssize_t {
    // SAFETY: by the contract of the function.
    counted(|| finish(unsafe { begin(file, pieces, count, |memory| Memory::Into(memory.cast()))? }))
}

/// Writes pieces, several at the same time: none may overlap in the file. What it returns is as of tameike_read_list().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_write_list(file: *mut File, pieces: *const Piece, count: usize) -> ssize_t {
    counted(|| {
        // SAFETY: by the contract of the function.
        finish(unsafe { begin(file, pieces, count, |memory| Memory::From(memory.cast_const().cast()))? })
    })
}

/// Begins to read pieces; the program goes on, and leaves their memory alone until tameike_wait() has told the end. `*request`
/// is for that. Returns 0 or a negative errno.
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

/// Begins to write pieces; as tameike_submit_read(). Their order in the file's history is not told: none may overlap.
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

/// Waits for a request's end, for so many milliseconds: 0 does not wait, a negative number has no limit. Pieces go on while a
/// program waits for them; up to twelve are under way meanwhile, for all requests of the process together. Returns what
/// tameike_read_list() does, and the request is gone; or -EINPROGRESS, and it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_wait(request: *mut Request, milliseconds: c_int) -> ssize_t {
    counted(|| {
        fits(request, 1)?;
        // SAFETY: by the contract of the function.
        let waiting = unsafe { &mut *request };
        if !waiting.wait(Request::until(milliseconds)) {
            return Err(Errno::INPROGRESS);
        }
        // SAFETY: it came from a call that submits, and nobody uses it any more.
        unsafe { Box::from_raw(request) }.outcome()
    })
}

/// Attributes of an open file. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_fstat(file: *mut File, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { put(status, there(file)?.status()?.into()) })
}

/// Attributes of a file by its path, of what a symbolic link at its end leads to. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_stat(path: *const c_char, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { put(status, file::status_at(text(path)?, true)?.into()) })
}

/// The same, of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_lstat(path: *const c_char, status: *mut Status) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { put(status, file::status_at(text(path)?, false)?.into()) })
}

/// Cuts or extends a file to `size` bytes. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_ftruncate(file: *mut File, size: u64) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { there(file)? }.set_size(size))
}

/// As fsync(2). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_fsync(file: *mut File) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { there(file)? }.sync())
}

/// The file's descriptor in the kernel, for calls that are not here (mmap, locks): it ends with tameike_close(), and from now
/// on all calls on the file go through the kernel. Returns the descriptor or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_descriptor(file: *mut File) -> c_int {
    let number = || {
        // SAFETY: by the contract of the function.
        let file = unsafe { there(file)? }.kernel()?;
        Ok(file.as_raw_fd() as usize)
    };
    counted(number) as c_int
}

/// Removes a name of a file, as unlink(2). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_unlink(path: *const c_char) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| file::unlink(unsafe { text(path)? }))
}

/// Makes a directory, as mkdir(2). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_mkdir(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| file::make_dir(unsafe { text(path)? }, mode))
}

/// Renames, as renameat2(2) with its flags. Returns 0 or a negative errno.
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
    fits(file, 1)?;
    fits(pieces, count.checked_mul(size_of::<Piece>()).ok_or(Errno::INVAL)?)?;
    // SAFETY: by the contract of the function; a list of none may be nowhere.
    let pieces = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pieces, count) } };
    pieces.iter().try_for_each(|piece| fits(piece.memory, piece.size))?;
    // SAFETY: it came from `tameike_open`, and is not closed meanwhile; the count is given back with the request.
    let file = unsafe {
        Arc::increment_strong_count(file);
        Arc::from_raw(file)
    };
    let pieces = pieces.iter().map(|piece| (piece.offset, memory(piece.memory), piece.size));
    // SAFETY: by the contract of the function, the memory is lent.
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
        fits(request, 1)?;
        // SAFETY: by the contract of the function.
        let begun = unsafe { begin(file, pieces, count, memory)? };
        // SAFETY: the same.
        unsafe { put(request, Box::into_raw(Box::new(begun))) }
    })
}
