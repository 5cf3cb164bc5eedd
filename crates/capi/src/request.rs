//! Lists of pieces of a file, moved while the program goes on.
//!
//! A request's pieces are begun in their order, as many at once as the ring takes, and whoever waits for the request takes
//! in what has ended and begins more: there is no thread behind it. A piece that the ring does not take is moved by a call
//! that waits, at once when the request is made, so that nothing of it is left to do later.

use crate::file::{Begun, Direction, File, Result, RingFile};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tameike_io::os::process::monotonic;
use tameike_ring::client::{Answer, TRANSFER_SIZE_MAX, Transfer};

/// Memory of the program, one part of a list.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// To be read into.
    Into(*mut u8),
    /// To be written from.
    From(*const u8),
}

/// A part of a list.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    memory: Memory,
    size: usize,
}

/// A transfer, and which part it is of.
struct UnderWay {
    part: usize,
    transfer: Transfer<'static>,
    /// Its handle is not closed before.
    _file: Arc<RingFile>,
}

/// A list under way.
pub struct Request {
    file: Arc<File>,
    parts: Vec<Part>,
    /// How each part ended that has.
    ends: Vec<Option<Result<usize>>>,
    /// The first part that was not begun yet.
    next: usize,
    under_way: VecDeque<UnderWay>,
}

impl Memory {
    fn skip(self, size: usize) -> Self {
        match self {
            Self::Into(start) => Self::Into(start.wrapping_add(size)),
            Self::From(start) => Self::From(start.wrapping_add(size)),
        }
    }

    /// So many bytes to be read into; none where it is to be written.
    ///
    /// # Safety
    /// They are the caller's for as long as they are used.
    pub unsafe fn into<'a>(self, size: usize) -> &'a mut [u8] {
        match self {
            // SAFETY: by the contract above.
            Self::Into(start) if size > 0 => unsafe { std::slice::from_raw_parts_mut(start, size) },
            Self::Into(_) | Self::From(_) => &mut [],
        }
    }

    /// So many bytes to be written; none where it is to be read into.
    ///
    /// # Safety
    /// Nobody changes them for as long as they are used.
    pub unsafe fn from<'a>(self, size: usize) -> &'a [u8] {
        match self {
            // SAFETY: by the contract above.
            Self::From(start) if size > 0 => unsafe { std::slice::from_raw_parts(start, size) },
            Self::Into(_) | Self::From(_) => &[],
        }
    }
}

impl Request {
    /// Begins to move pieces: offset, memory and size of each.
    ///
    /// # Safety
    /// The memory is nobody else's to change until the request has ended, and none overlaps another one that is read into.
    pub unsafe fn begin(file: Arc<File>, pieces: impl Iterator<Item = (u64, Memory, usize)>) -> Self {
        // What is appended lands in one piece.
        let most = if file.appends() { usize::MAX } else { TRANSFER_SIZE_MAX };
        let parts = pieces.flat_map(|(offset, memory, size)| split(offset, memory, size, most));
        let parts: Vec<Part> = parts.collect();
        let ends = parts.iter().map(|_| None).collect();
        let mut request = Self { file, parts, ends, next: 0, under_way: VecDeque::new() };
        request.go_on();
        request
    }

    /// Begins what can be begun.
    fn go_on(&mut self) {
        while let Some(part) = self.parts.get(self.next).copied() {
            let direction = match part.memory {
                Memory::Into(_) => Direction::Read(part.size),
                // SAFETY: who began the request has lent the memory.
                Memory::From(_) => Direction::Write(unsafe { part.memory.from(part.size) }),
            };
            match self.file.begin(part.offset, &direction) {
                Begun::UnderWay(transfer, file) => {
                    self.under_way.push_back(UnderWay { part: self.next, transfer, _file: file });
                }
                Begun::Later if !self.under_way.is_empty() => return,
                Begun::Later | Begun::Call => self.ends[self.next] = Some(self.call(part)),
            }
            self.next += 1;
        }
    }

    /// Moves a part by a call that waits.
    fn call(&self, part: Part) -> Result<usize> {
        // SAFETY: who began the request has lent the memory.
        unsafe {
            match part.memory {
                Memory::Into(_) => self.file.read(part.offset, part.memory.into(part.size)),
                Memory::From(_) => self.file.write(part.offset, part.memory.from(part.size)),
            }
        }
    }

    /// Takes in a transfer that has ended.
    fn take(&mut self, ended: UnderWay) {
        let part = self.parts[ended.part];
        // SAFETY: who began the request has lent the memory.
        let told = match ended.transfer.end(unsafe { part.memory.into(part.size) }) {
            Answer::Done(count) => Ok(count),
            Answer::Failed(errno) => Err(Errno::from_raw_os_error(errno)),
            Answer::Declined => self.call(part),
            Answer::Broken => Err(Errno::IO),
        };
        self.ends[ended.part] = Some(told);
    }

    /// Waits for the end, but not beyond `until` on the monotonic clock; whether it has come.
    pub fn wait(&mut self, until: Option<Duration>) -> bool {
        loop {
            self.go_on();
            let Some(first) = self.under_way.front() else { return true };
            if !first.transfer.wait(until) {
                return false;
            }
            if let Some(ended) = self.under_way.pop_front() {
                self.take(ended);
            }
        }
    }

    /// Bytes that were moved before the first part that fell short, with those of it.
    ///
    /// # Errors
    /// That of the first part, when none was moved before it.
    pub fn outcome(&self) -> Result<usize> {
        let mut moved = 0;
        for (part, end) in self.parts.iter().zip(&self.ends) {
            match end {
                Some(Ok(count)) => {
                    moved += count;
                    if *count < part.size {
                        break;
                    }
                }
                Some(Err(error)) if moved == 0 => return Err(*error),
                Some(Err(_)) | None => break,
            }
        }
        Ok(moved)
    }

    /// The end of a wait of so many milliseconds; negative: none.
    pub fn until(milliseconds: i32) -> Option<Duration> {
        let time = Duration::from_millis(u64::try_from(milliseconds).ok()?);
        Some(monotonic() + time)
    }
}

/// A piece in parts of at most `most` bytes; an empty one is a part, too, which asks whether the file can be used.
fn split(offset: u64, memory: Memory, size: usize, most: usize) -> impl Iterator<Item = Part> {
    let count = size.div_ceil(most).max(1);
    (0..count).map(move |index| {
        let start = index * most;
        Part {
            offset: offset.saturating_add(start as u64),
            memory: memory.skip(start),
            size: (size - start).min(most),
        }
    })
}
