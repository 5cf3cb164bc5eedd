//! One io_uring over one file: requests go in, and come out when the kernel has ended them.
//!
//! Requests are kept here, with the memory that the kernel works on, from when they are pushed until they are ended;
//! a ring that is dropped waits for those that the kernel has. The kernel is asked to wait for nothing
//! (`RWF_NOWAIT`): what it cannot begin at once comes back with nothing done, so that no worker threads of the kernel
//! come into being. They would be woken every few seconds as long as the agent lives.

use crate::os::runtime::Resolver;
use crate::slab::{Frame, Payload, Slab};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno as Os;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;

/// The file's place in the ring's table of files.
const FILE: types::Fixed = types::Fixed(0);
/// Most bytes of one registered buffer, a limit of the kernel's.
const BUFFER_SIZE: usize = 1 << 30;
const FRAMES_PER_BUFFER: u32 = (BUFFER_SIZE / UNIT_SIZE) as u32;

/// Bytes that were read or written, maybe fewer than asked for.
pub(super) type Outcome = Result<u32, Os>;

/// A call of the disk under way.
pub(super) enum Request {
    Read { offset: u64, frame: Frame, range: Range<u32>, resolver: Resolver<(Frame, Outcome)> },
    Write { offset: u64, payload: Payload, resolver: Resolver<Outcome> },
}

impl Request {
    /// Tells who waits for it.
    pub(super) fn end(self, outcome: Outcome) {
        match self {
            Self::Read { frame, resolver, .. } => resolver.resolve((frame, outcome)),
            Self::Write { resolver, .. } => resolver.resolve(outcome),
        }
    }

    /// How the kernel is told of it. `registered`: the slab that it knows.
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

/// What the kernel says of a request's end.
fn outcome(result: i32) -> Outcome {
    match u32::try_from(result) {
        Ok(count) => Ok(count),
        Err(_) => match Os::from_raw_os_error(-result) {
            // It could not be begun without waiting, or the file system cannot tell.
            Os::AGAIN | Os::OPNOTSUPP | Os::INTR => Ok(0),
            error => Err(error),
        },
    }
}

/// The ring, and the requests in it.
pub(super) struct Ring {
    ring: IoUring,
    /// By the number under which the kernel knows them.
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    /// The frames that are registered with the kernel.
    registered: Option<Arc<Slab>>,
}

impl Ring {
    /// A ring for `file` that has at most `depth` requests, a power of two, at the same time.
    ///
    /// # Errors
    /// Why there can be none, in words.
    pub(super) fn new(file: BorrowedFd<'_>, depth: u32) -> Result<Self, String> {
        let ring = build(depth)?;
        ring.submitter()
            .register_files(&[file.as_raw_fd()])
            .map_err(|error| format!("its file cannot be registered ({error})"))?;
        let requests = std::iter::repeat_with(|| None).take(depth as usize).collect();
        Ok(Self { ring, requests, free: (0..depth as usize).rev().collect(), registered: None })
    }

    /// Has the kernel know all frames, once for all calls.
    ///
    /// # Errors
    /// When the user may not lock so much memory. Calls then take longer, and are the same.
    pub(super) fn register(&mut self, slab: &Arc<Slab>) -> std::io::Result<()> {
        let pieces = slab.pieces(BUFFER_SIZE);
        let buffers: Vec<libc::iovec> = pieces
            .map(|(start, size)| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: size })
            .collect();
        // SAFETY: the buffers are the slab's mapping, which lives as long as the ring: it keeps the slab.
        unsafe { self.ring.submitter().register_buffers(&buffers)? };
        self.registered = Some(slab.clone());
        Ok(())
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a request in; there must be room.
    pub(super) fn push(&mut self, mut request: Request) {
        let slot = self.free.pop().expect("who pushes has seen that there is room");
        let entry = request.entry(self.registered.as_ref()).user_data(slot as u64);
        self.requests[slot] = Some(request);
        // SAFETY: the entry names memory of a frame and a registered file. The frame is in `requests` until the
        // kernel has ended the request (`reap`, and `drop` waits for that), so that the memory stays mapped and is
        // nobody else's: a frame that is read into is owned there, the bytes of a payload are changed by nobody.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are as many entries as requests");
    }

    /// Hands what was pushed to the kernel.
    ///
    /// # Errors
    /// When the kernel does not take it now. It stays pushed.
    pub(super) fn submit(&mut self) -> std::io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Takes out what has ended.
    pub(super) fn reap(&mut self, ended: &mut Vec<(Request, Outcome)>) {
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            let request = self.requests[slot].take().expect("the kernel ends what it was given, once");
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
                    log::error!("cannot wait for the disk ({error}): its frames are given up");
                    std::mem::forget(std::mem::take(&mut self.requests));
                    return;
                }
                Ok(_) | Err(_) => self.reap(&mut ended),
            }
        }
        ended.into_iter().for_each(|(request, outcome)| request.end(outcome));
    }
}

/// An io_uring that can read and write.
pub(super) fn build(depth: u32) -> Result<IoUring, String> {
    // Completions wait until the thread that submits is in the kernel anyway, where the kernel can do so (5.19).
    let mut builder = IoUring::builder();
    let built = builder.setup_coop_taskrun().build(depth).or_else(|error| {
        if error.raw_os_error() == Some(Os::INVAL.raw_os_error()) { IoUring::new(depth) } else { Err(error) }
    });
    let ring = built.map_err(|error| format!("the kernel gives no io_uring ({error})"))?;
    let mut probe = Probe::new();
    let probed = ring.submitter().register_probe(&mut probe);
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE];
    if probed.is_err() || needed.iter().any(|&code| !probe.is_supported(code)) {
        return Err("the kernel's io_uring is older than Linux 5.6".to_owned());
    }
    Ok(ring)
}
