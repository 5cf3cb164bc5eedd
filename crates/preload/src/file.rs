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
    match table::entry(number) {
        Some(entry) if !entry.is_free() && !connection::is_vfork_child() => entry.hold(),
        _ => Resolved::Kernel,
    }
}

/// A ring file during a call.
struct Call {
    file: Hold,
    opened: Opened,
    client: connection::Call,
}

/// Next step of a call.
enum Step<T> {
    Done(Result<T, Errno>),
    /// Upgrade the descriptor, and let the kernel serve the call.
    Kernel,
    /// Another call has interfered.
    Retry,
}

impl Call {
    fn step<T>(&self, answer: Answer<T>) -> Step<T> {
        match answer {
            Answer::Done(done) => Step::Done(Ok(done)),
            Answer::Failed(errno) => Step::Done(Err(Errno::from_raw_os_error(errno))),
            Answer::Declined => Step::Kernel,
            // A child forked by a signal handler: its descriptor was upgraded.
            Answer::Broken if !self.file.is_current() => Step::Retry,
            Answer::Broken => Step::Done(Err(Errno::IO)),
        }
    }

    fn reads(&self) -> Result<(), Errno> {
        let refused = self.opened.flags & libc::O_ACCMODE == libc::O_WRONLY;
        if refused { Err(Errno::BADF) } else { Ok(()) }
    }

    fn writes(&self) -> Result<(), Errno> {
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

fn on_file<T>(number: i32, mut call: impl FnMut(&Call) -> Step<T>) -> Verdict<T> {
    loop {
        let file = match resolve(number) {
            Resolved::Kernel => return None,
            Resolved::Invalid => return Some(Err(Errno::BADF)),
            Resolved::File(file) => file,
        };
        let Some(client) = connection::client() else { return Some(Err(Errno::IO)) };
        let held = Call { opened: file.opened(), file, client };
        match call(&held) {
            Step::Done(outcome) => return Some(outcome),
            Step::Retry => {}
            Step::Kernel => {
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
        let offset = match (call.reads(), offset.map(u64::try_from)) {
            (Err(error), _) => return Step::Done(Err(error)),
            (Ok(()), Some(Err(_))) => return Step::Done(Err(Errno::INVAL)),
            (Ok(()), Some(Ok(offset))) => {
                return call.step(call.client.read(call.opened.handle, call.opened.key, offset, into));
            }
            (Ok(()), None) => call.file.offset(),
        };
        let Some(offset) = offset else { return Step::Retry };
        match call.step(call.client.read(call.opened.handle, call.opened.key, offset, into)) {
            Step::Done(Ok(count)) if !call.file.move_offset(offset, offset + count as u64) => Step::Retry,
            step => step,
        }
    })
}

/// `writev`; with an offset, `pwritev`.
pub fn write(number: i32, offset: Option<i64>, from: &[&[u8]]) -> Verdict<usize> {
    let size = from.iter().map(|part| part.len() as u64).sum();
    on_file(number, |call| match (call.writes(), offset.map(u64::try_from)) {
        (Err(error), _) => Step::Done(Err(error)),
        (Ok(()), Some(Err(_))) => Step::Done(Err(Errno::INVAL)),
        (Ok(()), _) if size == 0 => Step::Done(Ok(0)),
        // With O_APPEND, Linux appends whatever the offset.
        (Ok(()), at) if call.appends() => append(call, at.is_none(), from),
        (Ok(()), Some(Ok(offset))) => call.step(call.client.write(call.opened.handle, offset, from)),
        (Ok(()), None) => write_on(call, number, size, from),
    })
}

fn append(call: &Call, moves: bool, from: &[&[u8]]) -> Step<usize> {
    match call.step(call.client.append(call.opened.handle, from)) {
        Step::Done(Ok((count, end))) => {
            if moves {
                call.file.set_offset(end);
            }
            Step::Done(Ok(count))
        }
        Step::Done(Err(error)) => Step::Done(Err(error)),
        Step::Kernel => Step::Kernel,
        Step::Retry => Step::Retry,
    }
}

/// Writes at the file's offset, which it moves first.
fn write_on(call: &Call, number: i32, size: u64, from: &[&[u8]]) -> Step<usize> {
    let Some(offset) = call.file.offset() else { return Step::Retry };
    let Some(end) = offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok()) else {
        return Step::Done(Err(Errno::FBIG));
    };
    if !call.file.move_offset(offset, end) {
        return Step::Retry;
    }
    match call.step(call.client.write(call.opened.handle, offset, from)) {
        Step::Done(Ok(count)) => {
            if (count as u64) < size {
                call.file.move_offset(end, offset + count as u64);
            }
            Step::Done(Ok(count))
        }
        Step::Done(Err(error)) => {
            call.file.move_offset(end, offset);
            Step::Done(Err(error))
        }
        step if call.file.move_offset(end, offset) => step,
        // Other calls continue after this range: write it at its offset.
        _ => Step::Done(upgrade::one(number).and_then(|()| kernel::write_at(number, offset, from))),
    }
}

/// `lseek`.
pub fn seek(number: i32, offset: i64, whence: i32) -> Verdict<i64> {
    on_file(number, |call| {
        let Some(from) = call.file.offset() else { return Step::Retry };
        let Ok(from) = i64::try_from(from) else { return Step::Done(Err(Errno::OVERFLOW)) };
        let target = match whence {
            libc::SEEK_SET => Step::Done(Ok(offset)),
            libc::SEEK_CUR if offset == 0 => return Step::Done(Ok(from)),
            libc::SEEK_CUR => Step::Done(from.checked_add(offset).ok_or(Errno::OVERFLOW)),
            libc::SEEK_END => seek_end(call, offset),
            libc::SEEK_DATA | libc::SEEK_HOLE => seek_data(call, offset, whence == libc::SEEK_DATA),
            _ => Step::Done(Err(Errno::INVAL)),
        };
        let Step::Done(Ok(target)) = target else { return target };
        match u64::try_from(target) {
            Err(_) => Step::Done(Err(Errno::INVAL)),
            // Relative to the offset, which another call may have moved.
            Ok(to) if whence == libc::SEEK_CUR => {
                if call.file.move_offset(from.cast_unsigned(), to) {
                    Step::Done(Ok(target))
                } else {
                    Step::Retry
                }
            }
            Ok(to) => {
                if call.file.set_offset(to) {
                    Step::Done(Ok(target))
                } else {
                    Step::Retry
                }
            }
        }
    })
}

fn seek_end(call: &Call, offset: i64) -> Step<i64> {
    match call.step(call.client.status(call.opened.handle)) {
        Step::Done(Ok(status)) => {
            let end = i64::try_from(status.size).ok().and_then(|size| size.checked_add(offset));
            Step::Done(end.ok_or(Errno::OVERFLOW))
        }
        Step::Done(Err(error)) => Step::Done(Err(error)),
        Step::Kernel => Step::Kernel,
        Step::Retry => Step::Retry,
    }
}

fn seek_data(call: &Call, offset: i64, data: bool) -> Step<i64> {
    let Ok(offset) = u64::try_from(offset) else { return Step::Done(Err(Errno::NXIO)) };
    let found = call.client.seek(call.opened.handle, data, offset);
    call.step(found.map(|found| i64::try_from(found).unwrap_or(i64::MAX)))
}

/// `fstat`: returns the attributes and the view's number.
pub fn status(number: i32) -> Verdict<(Status, usize)> {
    on_file(number, |call| {
        let status = call.client.status(call.opened.handle);
        call.step(status.map(|status| (status, call.opened.view)))
    })
}

/// `fsync` and `fdatasync`.
pub fn sync(number: i32) -> Verdict<()> {
    on_file(number, |call| call.step(call.client.sync(call.opened.handle)))
}

/// `ftruncate`.
pub fn set_size(number: i32, size: i64) -> Verdict<()> {
    on_file(number, |call| match (call.writes(), u64::try_from(size)) {
        // EINVAL, where write fails with EBADF.
        (Err(_), _) | (Ok(()), Err(_)) => Step::Done(Err(Errno::INVAL)),
        (Ok(()), Ok(size)) => call.step(call.client.set_size(call.opened.handle, size)),
    })
}

/// Returns the flags of `open`.
pub fn flags(number: i32) -> Verdict<i32> {
    on_file(number, |call| Step::Done(Ok(call.opened.flags)))
}

/// `close`.
pub fn close(number: i32) -> Verdict<()> {
    let entry = table::entry(number).filter(|entry| !entry.is_free() && !connection::is_vfork_child())?;
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

/// The number is closed, whatever the reply.
fn closed(answer: Answer<()>) -> Result<(), Errno> {
    match answer {
        Answer::Done(()) | Answer::Declined => Ok(()),
        Answer::Failed(errno) => Err(Errno::from_raw_os_error(errno)),
        Answer::Broken => Err(Errno::IO),
    }
}
