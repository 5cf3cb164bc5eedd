//! The thread of a queue: takes requests from the kernel, has them served, and hands replies over.

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
use tameike_io::os::{lending, process};
use tameike_io::slab::Pool;

/// Commands of the kernel's (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Place of the number of vectors in an entry (`sqe->len`).
const VECTORS_START: usize = 24;
/// Entries of a ring; what is more is submitted in parts.
const RING_SIZE: u32 = 64;
/// Stands for being woken, among the numbers of slots.
const WAKE: u64 = u64::MAX;

/// What the thread of a queue keeps of a slot.
struct Place {
    memory: Arc<Memory>,
    /// By which the kernel knows the request in it; none while it is the kernel's to use.
    commit: Option<u64>,
}

/// The thread of a queue.
pub(crate) struct Worker {
    ring: IoUring<Entry128>,
    queue: Arc<Queue>,
    device: OwnedFd,
    /// Requests that it can take in beside those that are under way.
    depth: usize,
    /// Memory for the first places.
    prepared: Vec<Memory>,
    places: Vec<Place>,
    /// Places that the kernel has taken out of use.
    lost: usize,
    /// Requests that have been taken in and not been answered.
    under_way: usize,
    /// No more places are to be had.
    is_full: bool,
}

impl Worker {
    /// Takes all that the queue needs to begin, for the calling thread.
    pub(super) fn new(
        number: u16,
        device: OwnedFd,
        (depth, payload_size): (usize, usize),
        frames: &Pool,
    ) -> io::Result<Self> {
        process::prefer_core(number.into());
        let mut ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(RING_SIZE)?;
        try_out(&mut ring)?;
        let frame = |_| frames.try_take().map(|frame| Memory::in_frame(frame, payload_size));
        let prepared = (0..depth).map(frame).collect::<Option<_>>();
        let prepared = prepared.ok_or_else(|| io::Error::other("no frame is free"))?;
        let (queue, places) = (Arc::new(Queue::new(number, payload_size)?), Vec::new());
        Ok(Self { ring, queue, device, depth, prepared, places, lost: 0, under_way: 0, is_full: false })
    }

    /// Serves until the file system is unmounted, or the kernel refuses. What comes back is to be dropped when the calling
    /// thread has ended.
    pub(super) fn run(self, service: &dyn Service) -> Self {
        lending::keep_thread();
        // The kernel uses its memory for this thread: in a panic it stays.
        let mut worker = ManuallyDrop::new(self);
        let Err(error) = worker.serve(service);
        if !is_end(&error) {
            let number = worker.queue.number;
            log::error!("queue {number} of FUSE over io_uring ends, and with it its core's calls: {error}");
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
            self.make_room()?;
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
                    self.take_in(service, number, &mut carried);
                }
            }
        }
    }

    /// Has the service serve the request that the kernel has put into a slot.
    fn take_in(&mut self, service: &dyn Service, number: u64, copy: &mut Vec<u8>) {
        let place = &mut self.places[number as usize];
        let memory = place.memory.clone();
        assert!(place.commit.is_none(), "the kernel hands over what it has");
        // SAFETY: the kernel has just handed it over.
        let RingHeader { message, fixed, commit, size } = unsafe { memory.take_header() };
        let (header, _) = Header::decode(&message).expect("it has the size of a header");
        place.commit = Some(commit);
        self.under_way += 1;
        let is_read = header.opcode == abi::opcode::WRITE;
        // SAFETY: the slot is ours until it is committed, which this thread does later; nobody writes to what it
        // carries meanwhile: an answer to what is read in place is not put there.
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
        let Place { memory, commit } = &mut self.places[answer.slot as usize];
        let commit = commit.take().expect("a request is answered once");
        // SAFETY: the answer is given, so that the slot is this thread's.
        unsafe {
            if let Carried::Body(body) = &answer.carried {
                memory.put(body);
            }
            memory.put_header(&answer.header, answer.carried.size());
        }
        self.under_way -= 1;
        self.push(self.command(COMMIT_AND_FETCH, commit).build().user_data(answer.slot))
    }

    /// Lets the kernel find as many free places as the queue began with, whatever waits: at first those to spare, which it is then to
    /// use last.
    fn make_room(&mut self) -> io::Result<()> {
        while !self.is_full && self.places.len() - self.lost < self.under_way + self.depth + SPARE {
            let prepared = if self.places.len() < SPARE { None } else { self.prepared.pop() };
            let memory = prepared.map_or_else(|| Memory::mapped(self.queue.payload_size), Ok);
            match memory {
                Ok(memory) => self.add_slot(memory)?,
                Err(error) => {
                    self.full(&error);
                    // What was set aside is there all the same.
                    while let Some(memory) = self.prepared.pop() {
                        self.add_slot(memory)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The kernel takes a place out of use. The others go on, but for the end of the file system.
    fn lose(&mut self, error: io::Error) -> io::Result<()> {
        self.lost += 1;
        if is_end(&error) || self.lost == self.places.len() {
            return Err(error);
        }
        self.full(&error);
        Ok(())
    }

    /// Requests wait for one another from now on.
    fn full(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_full, true) {
            log::warn!("queue {} of FUSE over io_uring grows no further: {error}", self.queue.number);
        }
    }

    /// Lets the kernel put a request into this memory.
    fn add_slot(&mut self, memory: Memory) -> io::Result<()> {
        let memory = Arc::new(memory);
        let (vectors, number) = (memory.vectors(), self.places.len() as u64);
        let mut entry =
            self.command(REGISTER, 0).addr(Some(vectors.as_ptr() as u64)).build().user_data(number);
        const { assert!(size_of::<Entry128>() == 128) };
        // SAFETY: an entry is the kernel's structure of 128 bytes, and this its number of vectors.
        unsafe { (&raw mut entry).byte_add(VECTORS_START).cast::<u32>().write(vectors.len() as u32) };
        self.places.push(Place { memory, commit: None });
        self.push(entry)
    }

    fn command(&self, code: u32, commit: u64) -> opcode::UringCmd80 {
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.number.to_ne_bytes());
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code).cmd(command)
    }

    /// Is woken when another thread has answered.
    fn watch(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.queue.wake.as_raw_fd()), libc::POLLIN as u32);
        self.push(squeue::Entry128::from(poll.build().user_data(WAKE)))
    }

    fn push(&mut self, entry: Entry128) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: the entry names descriptors of the worker, and memory of its places with the vectors that lie in it: all
        // live as long as the ring.
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

/// The file system is unmounted.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted)
}

/// Whether a call that failed is made again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

/// Sees whether the calling thread may use a ring: who may make one need not be let in.
fn try_out(ring: &mut IoUring<Entry128>) -> io::Result<()> {
    // SAFETY: it names no memory.
    let pushed = unsafe { ring.submission().push(&squeue::Entry128::from(opcode::Nop::new().build())) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    ring.completion().for_each(drop);
    Ok(())
}
