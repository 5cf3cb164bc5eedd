//! Asynchronous transfers of lists of pieces of a file.
//!
//! A request starts its pieces in order, as many at once as the ring supports. The thread that waits for the request completes transfers
//! and starts more; there is no background thread. A piece that the ring does not serve is transferred by a blocking call, in order.

use crate::file::{Begun, Direction, File, Result, RingFile};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tameike_io::os::process::monotonic;
use tameike_ring::client::{TRANSFER_SIZE_MAX, Transfer};

/// Memory of a piece.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// Target of a read.
    Into(*mut u8),
    /// Source of a write.
    From(*const u8),
}

/// A part of a piece, of at most the size of one transfer.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    memory: Memory,
    size: usize,
}

/// A transfer in flight.
struct InFlight {
    /// Index of its part.
    part: usize,
    transfer: Transfer<'static>,
    /// Keeps the handle open.
    _file: Arc<RingFile>,
}

/// A request in progress.
pub struct Request {
    file: Arc<File>,
    parts: Vec<Part>,
    /// Results of completed parts.
    results: Vec<Option<Result<usize>>>,
    /// The first part that has not started.
    next: usize,
    in_flight: VecDeque<InFlight>,
}

impl Memory {
    fn skip(self, size: usize) -> Self {
        match self {
            Self::Into(start) => Self::Into(start.wrapping_add(size)),
            Self::From(start) => Self::From(start.wrapping_add(size)),
        }
    }

    /// Returns the target of a read; empty for a write.
    ///
    /// # Safety
    /// `size` bytes are valid, and accessed only through the result while it is used.
    pub unsafe fn into<'a>(self, size: usize) -> &'a mut [u8] {
        match self {
            // SAFETY: by the contract above.
            Self::Into(start) if size > 0 => unsafe { std::slice::from_raw_parts_mut(start, size) },
            Self::Into(_) | Self::From(_) => &mut [],
        }
    }

    /// Returns the source of a write; empty for a read.
    ///
    /// # Safety
    /// `size` bytes are valid, and do not change while the result is used.
    pub unsafe fn from<'a>(self, size: usize) -> &'a [u8] {
        match self {
            // SAFETY: by the contract above.
            Self::From(start) if size > 0 => unsafe { std::slice::from_raw_parts(start, size) },
            Self::Into(_) | Self::From(_) => &[],
        }
    }
}

impl Request {
    /// Starts a request for pieces, given as offset, memory and size.
    ///
    /// # Safety
    /// Until the request has ended, no other code changes the memory. No piece overlaps the target of another one.
    pub unsafe fn begin(file: Arc<File>, pieces: impl Iterator<Item = (u64, Memory, usize)>) -> Self {
        // An append must not be split.
        let most = if file.appends() { usize::MAX } else { TRANSFER_SIZE_MAX };
        let parts = pieces.flat_map(|(offset, memory, size)| split(offset, memory, size, most));
        let parts: Vec<Part> = parts.collect();
        let results = parts.iter().map(|_| None).collect();
        let mut request = Self { file, parts, results, next: 0, in_flight: VecDeque::new() };
        request.advance();
        request
    }

    /// Starts as many parts as possible.
    fn advance(&mut self) {
        while let Some(part) = self.parts.get(self.next).copied() {
            let direction = match part.memory {
                Memory::Into(_) => Direction::Read(part.size),
                // SAFETY: by the contract of `begin`.
                Memory::From(_) => Direction::Write(unsafe { part.memory.from(part.size) }),
            };
            match self.file.begin(part.offset, &direction) {
                Begun::InFlight(transfer, file) => {
                    self.in_flight.push_back(InFlight { part: self.next, transfer, _file: file });
                }
                Begun::Busy if !self.in_flight.is_empty() => return,
                Begun::Busy | Begun::Blocking => self.results[self.next] = Some(self.call(part)),
            }
            self.next += 1;
        }
    }

    /// Transfers a part by a blocking call.
    fn call(&self, part: Part) -> Result<usize> {
        // SAFETY: by the contract of `begin`.
        unsafe {
            match part.memory {
                Memory::Into(_) => self.file.read(part.offset, part.memory.into(part.size)),
                Memory::From(_) => self.file.write(part.offset, part.memory.from(part.size)),
            }
        }
    }

    /// Completes a transfer.
    fn take(&mut self, ended: InFlight) {
        let part = self.parts[ended.part];
        // SAFETY: by the contract of `begin`.
        let served = ended.transfer.end(unsafe { part.memory.into(part.size) }).served();
        self.results[ended.part] = Some(served.unwrap_or_else(|| self.call(part)));
    }

    /// Waits for the end of the request, at most until `until` of the monotonic clock. Returns whether it has ended.
    pub fn wait(&mut self, until: Option<Duration>) -> bool {
        loop {
            self.advance();
            let Some(first) = self.in_flight.front() else { return true };
            if !first.transfer.wait(until) {
                return false;
            }
            if let Some(ended) = self.in_flight.pop_front() {
                self.take(ended);
            }
        }
    }

    /// Returns the bytes transferred up to and including the first short part, or the error of the first part.
    pub fn outcome(&self) -> Result<usize> {
        let mut moved = 0;
        for (part, end) in self.parts.iter().zip(&self.results) {
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

    /// Converts a timeout to a time of the monotonic clock; `None` if it is negative.
    pub fn until(milliseconds: i32) -> Option<Duration> {
        let time = Duration::from_millis(u64::try_from(milliseconds).ok()?);
        Some(monotonic() + time)
    }
}

/// Splits a piece into parts of at most `most` bytes. An empty piece is one part, so that errors of the file are found.
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
