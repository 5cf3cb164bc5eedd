//! An io_uring over one file.
//!
//! It keeps each request, with the memory that the kernel accesses, from the push to the completion; its drop waits for requests
//! that the kernel has. All requests use `RWF_NOWAIT`: the kernel returns at once what it cannot start without waiting. So it
//! never creates worker threads, which would wake up every few seconds for the lifetime of the agent.

use crate::os::runtime::Resolver;
use crate::slab::{Frame, Payload, Slab};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno as Os;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;

/// The file's index in the ring's table of files.
const FILE: types::Fixed = types::Fixed(0);
/// Largest registered buffer, a limit of the kernel.
const BUFFER_SIZE: usize = 1 << 30;
const FRAMES_PER_BUFFER: u32 = (BUFFER_SIZE / UNIT_SIZE) as u32;

/// The number of bytes transferred, which may be fewer than requested.
pub(super) type Outcome = Result<u32, Os>;

/// A request in flight.
pub(super) enum Request {
    Read { offset: u64, frame: Frame, range: Range<u32>, resolver: Resolver<(Frame, Outcome)> },
    Write { offset: u64, payload: Payload, resolver: Resolver<Outcome> },
}

impl Request {
    pub(super) fn end(self, outcome: Outcome) {
        match self {
            Self::Read { frame, resolver, .. } => resolver.resolve((frame, outcome)),
            Self::Write { resolver, .. } => resolver.resolve(outcome),
        }
    }

    /// Encodes the request. `registered` is the slab that the kernel knows.
    fn entry(&mut self, registered: Option<&Arc<Slab>>) -> squeue::Entry {
        let buffer_of = |frame: u32| (frame / FRAMES_PER_BUFFER) as u16;
        match self {
            Self::Read { offset, frame, range, .. } => {
                let buffer = registered.and_then(|slab| frame.index_in(slab)).map(buffer_of);
                let bytes = &mut frame[range.start as usize..range.end as usize];
                let (start, size) = (bytes.as_mut_ptr(), range.end - range.start);
                match buffer {
                    Some(buffer) => opcode::ReadFixed::new(FILE, start, size, buffer)
                        .offset(*offset)
                        .rw_flags(libc::RWF_NOWAIT)
                        .build(),
                    None => opcode::Read::new(FILE, start, size)
                        .offset(*offset)
                        .rw_flags(libc::RWF_NOWAIT)
                        .build(),
                }
            }
            Self::Write { offset, payload, .. } => {
                let place = registered.and_then(|slab| payload.place_in(slab));
                let (start, size) = (payload.as_ptr(), payload.len() as u32);
                match place {
                    Some((frame, _)) => opcode::WriteFixed::new(FILE, start, size, buffer_of(frame))
                        .offset(*offset)
                        .rw_flags(libc::RWF_NOWAIT)
                        .build(),
                    None => opcode::Write::new(FILE, start, size)
                        .offset(*offset)
                        .rw_flags(libc::RWF_NOWAIT)
                        .build(),
                }
            }
        }
    }
}

/// Decodes the result of a request.
fn outcome(result: i32) -> Outcome {
    match u32::try_from(result) {
        Ok(count) => Ok(count),
        Err(_) => match Os::from_raw_os_error(-result) {
            // The kernel cannot start it without waiting, or the file system does not support `RWF_NOWAIT`.
            Os::AGAIN | Os::OPNOTSUPP | Os::INTR => Ok(0),
            error => Err(error),
        },
    }
}

pub(super) struct Ring {
    ring: IoUring,
    /// By the number in the kernel's `user_data`.
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    /// The slab that is registered with the kernel.
    registered: Option<Arc<Slab>>,
}

impl Ring {
    /// A ring for `file` with at most `depth` concurrent requests, a power of two.
    pub(super) fn new(file: BorrowedFd<'_>, depth: u32) -> Result<Self, String> {
        let ring = build(depth)?;
        ring.submitter()
            .register_files(&[file.as_raw_fd()])
            .map_err(|error| format!("cannot register its file ({error})"))?;
        let requests = std::iter::repeat_with(|| None).take(depth as usize).collect();
        Ok(Self { ring, requests, free: (0..depth as usize).rev().collect(), registered: None })
    }

    /// Registers all frames with the kernel, once for all requests. Fails if the user may not lock that much memory:
    /// then requests are slower.
    pub(super) fn register(&mut self, slab: &Arc<Slab>) -> std::io::Result<()> {
        let pieces = slab.pieces(BUFFER_SIZE);
        let buffers: Vec<libc::iovec> = pieces
            .map(|(start, size)| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: size })
            .collect();
        // SAFETY: the buffers are the slab's mapping, which outlives the ring, since the ring keeps the slab.
        unsafe { self.ring.submitter().register_buffers(&buffers)? };
        self.registered = Some(slab.clone());
        Ok(())
    }

    pub(super) fn has_free_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Pushes a request. Requires [`Self::has_free_slot`].
    pub(super) fn push(&mut self, mut request: Request) {
        let slot = self.free.pop().expect("the caller has checked has_free_slot");
        let entry = request.entry(self.registered.as_ref()).user_data(slot as u64);
        self.requests[slot] = Some(request);
        // SAFETY: the entry names memory of a frame and a registered file. The frame stays in `requests` until the kernel has
        // completed the request (`reap`, which `drop` waits for), so its memory stays mapped. A frame that is read into is owned
        // there, and the bytes of a payload are immutable.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are as many entries as requests");
    }

    /// Submits the pushed requests to the kernel. After an error they stay pushed.
    pub(super) fn submit(&mut self) -> std::io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Removes completed requests.
    pub(super) fn reap(&mut self, ended: &mut Vec<(Request, Outcome)>) {
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            let request = self.requests[slot].take().expect("the kernel completes each request once");
            self.free.push(slot);
            ended.push((request, outcome(completion.result())));
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.requests.len()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while !self.is_idle() {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    log::error!("cannot wait for the disk ({error}): leaking its frames");
                    std::mem::forget(std::mem::take(&mut self.requests));
                    return;
                }
                Ok(_) | Err(_) => self.reap(&mut ended),
            }
        }
        ended.into_iter().for_each(|(request, outcome)| request.end(outcome));
    }
}

/// Creates an io_uring that supports reads and writes.
pub(super) fn build(depth: u32) -> Result<IoUring, String> {
    // With this flag (Linux 5.19), completions do not interrupt the submitting thread.
    let mut builder = IoUring::builder();
    let built = builder.setup_coop_taskrun().build(depth).or_else(|error| {
        if error.raw_os_error() == Some(Os::INVAL.raw_os_error()) { IoUring::new(depth) } else { Err(error) }
    });
    let ring = built.map_err(|error| format!("cannot create an io_uring ({error})"))?;
    let mut probe = Probe::new();
    let probed = ring.submitter().register_probe(&mut probe);
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE];
    if probed.is_err() || needed.iter().any(|&code| !probe.is_supported(code)) {
        return Err("the kernel's io_uring is older than Linux 5.6".to_owned());
    }
    Ok(ring)
}
