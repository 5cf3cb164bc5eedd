//! Calls on open files of the ring.
//!
//! A file's offset changes without a lock. A read compares and swaps the offset after it has read, and reads again if another call has
//! moved it. A write moves the offset first. So concurrent calls are serialized as POSIX specifies, no call waits for one that a signal
//! handler has interrupted, and handlers may leave by `siglongjmp`. The cost: if the first of two concurrent writes fails, the second
//! leaves a hole.

use crate::connection;
use crate::kernel;
use crate::table::{self, Closed, Hold, Opened, Resolved};
use crate::upgrade;
use rustix::io::Errno;
use tameike_interpose::Verdict;
use tameike_ring::client::{Answer, Status};

/// Largest number of bytes of one call, as in the kernel.
pub const BYTES_MAX: usize = 0x7fff_f000;

/// Resolves a descriptor to a ring file or the kernel.
#[inline]
pub fn resolve(number: i32) -> Resolved {
    let entry = table::entry(number).filter(|entry| !entry.is_free() && !connection::is_vfork_child());
    entry.map_or(Resolved::Kernel, table::Entry::hold)
}

/// A ring file during a call.
struct Call {
    file: Hold,
    opened: Opened,
    client: connection::Call,
}

/// Reason why a call on a ring file has no result.
enum Stop {
    Failed(Errno),
    /// Upgrade the descriptor, and let the kernel serve the call.
    Kernel,
    /// Another call has interfered.
    Retry,
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Failed(error)
    }
}

impl Call {
    fn result<T>(&self, answer: Answer<T>) -> Result<T, Stop> {
        match answer {
            // A child forked by a signal handler: its descriptor was upgraded.
            Answer::Broken if !self.file.is_current() => Err(Stop::Retry),
            answer => Ok(answer.served().ok_or(Stop::Kernel)??),
        }
    }

    fn read(&self, offset: u64, into: &mut [&mut [u8]]) -> Result<usize, Stop> {
        self.result(self.client.read(self.opened.handle, self.opened.key, offset, into))
    }

    fn write(&self, offset: u64, from: &[&[u8]]) -> Result<usize, Stop> {
        self.result(self.client.write(self.opened.handle, offset, from))
    }

    fn offset(&self) -> Result<u64, Stop> {
        self.file.offset().ok_or(Stop::Retry)
    }

    /// Checks that the file is open for reading.
    fn check_read(&self) -> Result<(), Errno> {
        let refused = self.opened.flags & libc::O_ACCMODE == libc::O_WRONLY;
        if refused { Err(Errno::BADF) } else { Ok(()) }
    }

    /// Checks that the file is open for writing, and records the modification.
    fn check_write(&self) -> Result<(), Errno> {
        if self.opened.flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::BADF);
        }
        self.file.changes();
        Ok(())
    }

    fn appends(&self) -> bool {
        self.opened.flags & libc::O_APPEND != 0
    }
}

fn on_file<T>(number: i32, mut call: impl FnMut(&Call) -> Result<T, Stop>) -> Verdict<T> {
    loop {
        let file = match resolve(number) {
            Resolved::Kernel => return None,
            Resolved::Invalid => return Some(Err(Errno::BADF)),
            Resolved::File(file) => file,
        };
        let Some(client) = connection::client() else { return Some(Err(Errno::IO)) };
        let held = Call { opened: file.opened(), file, client };
        match call(&held) {
            Ok(done) => return Some(Ok(done)),
            Err(Stop::Failed(error)) => return Some(Err(error)),
            Err(Stop::Retry) => {}
            Err(Stop::Kernel) => {
                drop(held);
                if let Err(error) = upgrade::one(number) {
                    return Some(Err(error));
                }
            }
        }
    }
}

/// `readv`; with an offset, `preadv`.
pub fn read(number: i32, offset: Option<i64>, into: &mut [&mut [u8]]) -> Verdict<usize> {
    on_file(number, |call| {
        call.check_read()?;
        if let Some(offset) = offset {
            return call.read(u64::try_from(offset).map_err(|_| Errno::INVAL)?, into);
        }
        let offset = call.offset()?;
        let count = call.read(offset, into)?;
        if call.file.move_offset(offset, offset + count as u64) { Ok(count) } else { Err(Stop::Retry) }
    })
}

/// `writev`; with an offset, `pwritev`.
pub fn write(number: i32, offset: Option<i64>, from: &[&[u8]]) -> Verdict<usize> {
    let size = from.iter().map(|part| part.len() as u64).sum();
    on_file(number, |call| {
        call.check_write()?;
        let given = offset.map(u64::try_from).transpose().map_err(|_| Errno::INVAL)?;
        match given {
            _ if size == 0 => Ok(0),
            // With O_APPEND, Linux appends whatever the offset.
            _ if call.appends() => append(call, given.is_none(), from),
            Some(offset) => call.write(offset, from),
            None => write_on(call, number, size, from),
        }
    })
}

fn append(call: &Call, moves: bool, from: &[&[u8]]) -> Result<usize, Stop> {
    let (count, end) = call.result(call.client.append(call.opened.handle, from))?;
    if moves {
        call.file.set_offset(end);
    }
    Ok(count)
}

/// Writes at the file's offset, which it moves first.
fn write_on(call: &Call, number: i32, size: u64, from: &[&[u8]]) -> Result<usize, Stop> {
    let offset = call.offset()?;
    let end = offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::FBIG)?;
    if !call.file.move_offset(offset, end) {
        return Err(Stop::Retry);
    }
    let written = call.write(offset, from);
    let count = written.as_ref().map_or(0, |count| *count as u64);
    let is_moved_back = count < size && call.file.move_offset(end, offset + count);
    match written {
        // Other calls continue after this range: write it at its offset.
        Err(Stop::Kernel | Stop::Retry) if !is_moved_back => {
            upgrade::one(number)?;
            Ok(kernel::write_at(number, offset, from)?)
        }
        written => written,
    }
}

/// `lseek` in an open file.
pub fn seek(number: i32, offset: i64, whence: i32) -> Verdict<i64> {
    on_file(number, |call| {
        let from = i64::try_from(call.offset()?).map_err(|_| Errno::OVERFLOW)?;
        let target = match whence {
            libc::SEEK_SET => offset,
            libc::SEEK_CUR if offset == 0 => return Ok(from),
            libc::SEEK_CUR => from.checked_add(offset).ok_or(Errno::OVERFLOW)?,
            libc::SEEK_END => seek_end(call, offset)?,
            libc::SEEK_DATA | libc::SEEK_HOLE => seek_data(call, offset, whence == libc::SEEK_DATA)?,
            _ => return Err(Errno::INVAL.into()),
        };
        let to = u64::try_from(target).map_err(|_| Errno::INVAL)?;
        let is_moved = if whence == libc::SEEK_CUR {
            // Relative to the offset, which another call may have moved.
            call.file.move_offset(from.cast_unsigned(), to)
        } else {
            call.file.set_offset(to)
        };
        if is_moved { Ok(target) } else { Err(Stop::Retry) }
    })
}

fn seek_end(call: &Call, offset: i64) -> Result<i64, Stop> {
    let status = call.result(call.client.status(call.opened.handle))?;
    let end = i64::try_from(status.size).ok().and_then(|size| size.checked_add(offset));
    Ok(end.ok_or(Errno::OVERFLOW)?)
}

fn seek_data(call: &Call, offset: i64, data: bool) -> Result<i64, Stop> {
    let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
    let found = call.client.seek(call.opened.handle, data, offset);
    call.result(found.map(|found| i64::try_from(found).unwrap_or(i64::MAX)))
}

/// `fstat`: returns the attributes and the view's number.
pub fn status(number: i32) -> Verdict<(Status, usize)> {
    on_file(number, |call| {
        let status = call.result(call.client.status(call.opened.handle))?;
        Ok((status, call.opened.view))
    })
}

/// `fsync` and `fdatasync`.
pub fn sync(number: i32) -> Verdict<()> {
    on_file(number, |call| call.result(call.client.sync(call.opened.handle)))
}

/// `ftruncate` of an open file.
pub fn set_size(number: i32, size: i64) -> Verdict<()> {
    on_file(number, |call| {
        // EINVAL, where write fails with EBADF.
        call.check_write().map_err(|_| Errno::INVAL)?;
        let size = u64::try_from(size).map_err(|_| Errno::INVAL)?;
        call.result(call.client.set_size(call.opened.handle, size))
    })
}

/// Returns the flags of `open`.
pub fn flags(number: i32) -> Verdict<i32> {
    on_file(number, |call| Ok(call.opened.flags))
}

/// `close` of an open file.
pub fn close(number: i32) -> Verdict<()> {
    let entry = table::entry(number).filter(|entry| !entry.is_free() && !connection::is_vfork_child())?;
    // The number is closed, whatever the reply.
    let closed = |answer: Answer<()>| answer.served().unwrap_or(Ok(()));
    match entry.begin_close() {
        Closed::Kernel => None,
        Closed::Invalid => Some(Err(Errno::BADF)),
        Closed::Last(handle) => {
            // Without changes, there are no errors to report, and the close need not wait.
            let close = |client: connection::Call| {
                if entry.is_changed() { client.close(handle) } else { client.leave(handle) }
            };
            let answer = connection::client().map_or(Answer::Broken, close);
            // Before the kernel can reuse the number.
            entry.free();
            kernel::close(number);
            Some(closed(answer))
        }
        Closed::Deferred(handle) => {
            // A call in flight, perhaps interrupted by a signal handler, will close the handle later: sync what was written now.
            let answer = connection::client().map_or(Answer::Broken, |client| client.sync(handle));
            kernel::close(number);
            Some(match closed(answer) {
                // The call in flight has ended and closed the handle.
                Err(Errno::BADF) => Ok(()),
                synced => synced,
            })
        }
    }
}
