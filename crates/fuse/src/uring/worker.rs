//! The thread of a queue: receives requests from the kernel, has them served, and hands replies over.

use super::SPARE;
use super::memory::{Memory, RingHeader};
use super::queue::{Answer, Carried, Queue, Slot};
use crate::Service;
use crate::abi::{self, Header, Request};
use crate::reply::{Reply, Route};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, squeue, types};
use std::convert::Infallible;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tameike_core::Errno;
use tameike_io::os::{inline_blocking, process};
use tameike_io::slab::Pool;

/// Commands of the kernel (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Offset of the number of vectors in an entry (`sqe->len`).
const VECTORS_START: usize = 24;
/// Entries of a ring; more are submitted in parts.
const RING_SIZE: u32 = 64;
/// `user_data` of a wake-up, distinct from slot numbers.
const WAKE: u64 = u64::MAX;

/// The state of a slot in the queue's thread.
struct SlotState {
    memory: Arc<Memory>,
    /// The commit id of the request in it; `None` while the kernel owns the slot.
    commit: Option<u64>,
}

pub(crate) struct Worker {
    ring: IoUring<Entry128>,
    queue: Arc<Queue>,
    device: OwnedFd,
    /// Number of free slots that the queue maintains.
    depth: usize,
    /// Memory for the initial slots.
    prepared: Vec<Memory>,
    slots: Vec<SlotState>,
    /// Number of slots that the kernel has removed.
    lost: usize,
    /// Requests received and not yet answered.
    in_flight: usize,
    /// No more slots can be added.
    is_full: bool,
}

impl Worker {
    /// Allocates the initial resources of the queue, for the calling thread.
    pub(super) fn new(
        number: u16,
        device: OwnedFd,
        (depth, payload_size): (usize, usize),
        frames: &Pool,
    ) -> io::Result<Self> {
        process::prefer_core(number.into());
        let mut ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(RING_SIZE)?;
        test_ring(&mut ring)?;
        let frame = |_| frames.try_take().map(|frame| Memory::in_frame(frame, payload_size));
        let prepared = (0..depth).map(frame).collect::<Option<_>>();
        let prepared = prepared.ok_or_else(|| io::Error::other("no frame is free"))?;
        let (queue, slots) = (Arc::new(Queue::new(number, payload_size)?), Vec::new());
        Ok(Self { ring, queue, device, depth, prepared, slots, lost: 0, in_flight: 0, is_full: false })
    }

    /// Serves until the unmount, or until the kernel refuses. The result must be dropped after the calling thread has ended.
    pub(super) fn run(self, service: &dyn Service) -> Self {
        inline_blocking::never_block_thread();
        // In a panic the memory leaks, since the kernel uses it for this thread.
        let mut worker = ManuallyDrop::new(self);
        let Err(error) = worker.serve(service);
        if !is_end(&error) {
            let number = worker.queue.number;
            log::error!("queue {number} of FUSE over io_uring failed; calls on its core hang: {error}");
        }
        ManuallyDrop::into_inner(worker)
    }

    fn serve(&mut self, service: &dyn Service) -> io::Result<Infallible> {
        self.watch()?;
        let (mut answers, mut ended, mut carried) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.queue.take(&mut answers);
            for answer in answers.drain(..) {
                self.commit(&answer)?;
            }
            self.add_free_slots()?;
            match self.ring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
            self.queue.awake();
            ended.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
            for (number, result) in ended.drain(..) {
                if number == WAKE {
                    let _ = rustix::io::read(&self.queue.wake, &mut [0; 8]);
                    self.watch()?;
                } else if result < 0 {
                    self.lose(io::Error::from_raw_os_error(-result))?;
                } else {
                    self.serve_one(service, number, &mut carried);
                }
            }
        }
    }

    /// Serves the request that the kernel has written into a slot.
    fn serve_one(&mut self, service: &dyn Service, number: u64, copy: &mut Vec<u8>) {
        let place = &mut self.slots[number as usize];
        let memory = place.memory.clone();
        assert!(place.commit.is_none(), "the kernel owned the slot");
        // SAFETY: the kernel has just handed the slot over.
        let RingHeader { message, fixed, commit, size } = unsafe { memory.take_header() };
        let (header, _) = Header::decode(&message).expect("a header of the right size");
        place.commit = Some(commit);
        self.in_flight += 1;
        let is_read = header.opcode == abi::opcode::WRITE;
        // SAFETY: the slot is owned here until its commit, which this thread does later. Nothing writes to the payload meanwhile:
        // the reply to a request that is read in place is not stored there.
        let mut carried = unsafe { memory.carried(size) };
        if !is_read {
            copy.clear();
            copy.extend_from_slice(carried);
            carried = copy;
        }
        let slot = Slot::new(self.queue.clone(), memory.clone(), (number, header.unique), is_read);
        let reply = Reply::new(Route::Ring(slot));
        match Request::from_parts(header, &fixed, carried) {
            Ok(request) => crate::serve(service, request, reply),
            Err(abi::Malformed) => reply.error(Errno::EIO),
        }
    }

    fn commit(&mut self, answer: &Answer) -> io::Result<()> {
        let SlotState { memory, commit } = &mut self.slots[answer.slot as usize];
        let commit = commit.take().expect("a request is answered once");
        // SAFETY: the reply is complete, so this thread owns the slot.
        unsafe {
            if let Carried::Body(body) = &answer.carried {
                memory.put(body);
            }
            memory.put_header(&answer.header, answer.carried.size());
        }
        self.in_flight -= 1;
        self.push(self.command(COMMIT_AND_FETCH, commit).build().user_data(answer.slot))
    }

    /// Maintains `depth` free slots, whatever the pending requests wait for. Spare slots are added first, so that the kernel uses
    /// them last.
    fn add_free_slots(&mut self) -> io::Result<()> {
        while !self.is_full && self.slots.len() - self.lost < self.in_flight + self.depth + SPARE {
            let prepared = if self.slots.len() < SPARE { None } else { self.prepared.pop() };
            let memory = prepared.map_or_else(|| Memory::mapped(self.queue.payload_size), Ok);
            match memory {
                Ok(memory) => self.add_slot(memory)?,
                Err(error) => {
                    self.full(&error);
                    // The reserved memory is still available.
                    while let Some(memory) = self.prepared.pop() {
                        self.add_slot(memory)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the removal of a slot by the kernel. Fails after the unmount, or if it was the last one.
    fn lose(&mut self, error: io::Error) -> io::Result<()> {
        self.lost += 1;
        if is_end(&error) || self.lost == self.slots.len() {
            return Err(error);
        }
        self.full(&error);
        Ok(())
    }

    /// Stops adding slots: requests wait for each other from now on.
    fn full(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_full, true) {
            log::warn!("queue {} of FUSE over io_uring cannot grow: {error}", self.queue.number);
        }
    }

    /// Registers a slot with this memory.
    fn add_slot(&mut self, memory: Memory) -> io::Result<()> {
        let memory = Arc::new(memory);
        let (vectors, number) = (memory.vectors(), self.slots.len() as u64);
        let mut entry =
            self.command(REGISTER, 0).addr(Some(vectors.as_ptr() as u64)).build().user_data(number);
        const { assert!(size_of::<Entry128>() == 128) };
        // SAFETY: an entry is the kernel's structure of 128 bytes, and the offset is that of its number of vectors.
        unsafe { (&raw mut entry).byte_add(VECTORS_START).cast::<u32>().write(vectors.len() as u32) };
        self.slots.push(SlotState { memory, commit: None });
        self.push(entry)
    }

    fn command(&self, code: u32, commit: u64) -> opcode::UringCmd80 {
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.number.to_ne_bytes());
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code).cmd(command)
    }

    /// Requests a wake-up when another thread has queued a reply.
    fn watch(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.queue.wake.as_raw_fd()), libc::POLLIN as u32);
        self.push(squeue::Entry128::from(poll.build().user_data(WAKE)))
    }

    fn push(&mut self, entry: Entry128) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: the entry names descriptors of the worker, and memory of its slots with their vectors. All live as long as the
        // ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)
    }

    fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Err(error) if !is_passing(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// True if the file system is unmounted.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted)
}

/// True if the call should be repeated.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

/// Tests the ring, since a user who may create one may still be denied its use.
fn test_ring(ring: &mut IoUring<Entry128>) -> io::Result<()> {
    // SAFETY: a no-op names no memory.
    let pushed = unsafe { ring.submission().push(&squeue::Entry128::from(opcode::Nop::new().build())) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    ring.completion().for_each(drop);
    Ok(())
}
