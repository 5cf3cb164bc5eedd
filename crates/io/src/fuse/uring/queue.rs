//! One queue: its requests under way, the answers to be handed over, and the thread that does so.

use super::memory::{Memory, RingHeader};
use crate::fuse::abi::{self, Body, Header, OUT_HEADER_SIZE, Request};
use crate::fuse::reply::{Reply, Route};
use crate::fuse::{Service, libc_errno};
use crate::os::process;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tameike_core::Errno;

/// Commands of the kernel's (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Place of the number of vectors in an entry (`sqe->len`).
const VECTORS_START: usize = 24;
/// Stands for being woken, among the numbers of slots.
const WAKE: u64 = u64::MAX;

/// An answer on its way to the kernel.
struct Answer {
    slot: usize,
    header: [u8; OUT_HEADER_SIZE],
    carried: Carried,
}

/// What an answer carries.
enum Carried {
    /// Little, here.
    Body(Body),
    /// So many bytes, in the slot.
    InSlot(usize),
}

#[derive(Default)]
struct Answers {
    given: Vec<Answer>,
    /// The queue's thread sleeps, and must be woken.
    sleeps: bool,
}

/// One queue.
pub(in crate::fuse) struct Queue {
    number: u16,
    memory: Memory,
    answers: Mutex<Answers>,
    wake: OwnedFd,
}

impl Queue {
    pub(super) fn new(number: u16, depth: usize, payload_size: usize) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { number, memory: Memory::new(depth, payload_size)?, answers: Mutex::default(), wake })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    fn give(&self, answer: Answer) {
        let sleeps = {
            let mut answers = self.answers.lock();
            answers.given.push(answer);
            std::mem::take(&mut answers.sleeps)
        };
        if sleeps {
            // It cannot be full: each sleep is ended by one.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// What there is to hand over; when there is nothing, who calls may sleep.
    fn take(&self, taken: &mut Vec<Answer>) {
        let mut answers = self.answers.lock();
        std::mem::swap(&mut answers.given, taken);
        answers.sleeps = taken.is_empty();
    }
}

/// A request in a queue that is to be answered, which is done once.
pub(in crate::fuse) struct Slot {
    queue: Arc<Queue>,
    number: usize,
    unique: u64,
    /// What the request carries is read where it lies.
    is_read: bool,
}

impl Slot {
    pub(in crate::fuse) fn answer(self, error: i32, bytes: &[u8]) {
        let memory = &self.queue.memory;
        let (error, carried) = match Body::of(bytes) {
            Some(body) => (error, Carried::Body(body)),
            None if self.is_read || bytes.len() > memory.payload_size() => {
                (libc_errno(Errno::EIO), Carried::Body(Body::default()))
            }
            None => {
                // SAFETY: a slot that the kernel has handed over is its one `Slot`'s until the answer is given, and
                // what the request carried is read nowhere (`is_read`).
                unsafe { memory.put(self.number, bytes) };
                (error, Carried::InSlot(bytes.len()))
            }
        };
        let header = abi::out_header(OUT_HEADER_SIZE + carried.size(), error, self.unique);
        self.queue.give(Answer { slot: self.number, header, carried });
    }
}

impl Carried {
    fn size(&self) -> usize {
        match self {
            Self::Body(body) => body.len(),
            Self::InSlot(size) => *size,
        }
    }
}

/// The thread of a queue.
pub(super) struct Worker {
    ring: IoUring<Entry128>,
    queue: Arc<Queue>,
    device: OwnedFd,
    /// By which the kernel knows the request in each slot.
    commits: Vec<u64>,
}

impl Worker {
    pub(super) fn new(ring: IoUring<Entry128>, queue: Arc<Queue>, device: OwnedFd) -> Self {
        let commits = vec![0; queue.memory.depth()];
        Self { ring, queue, device, commits }
    }

    /// Serves until the file system is unmounted, or the kernel refuses.
    pub(super) fn run(mut self, service: &impl Service) {
        process::prefer_core(self.queue.number.into());
        if let Err(error) = self.serve(service) {
            log::info!("queue {} of FUSE over io_uring ends: {error}", self.queue.number);
        }
    }

    fn serve(&mut self, service: &impl Service) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        let vectors: Vec<_> = (0..self.commits.len()).map(|slot| self.queue.memory.vectors(slot)).collect();
        for (slot, vectors) in vectors.iter().enumerate() {
            self.push(self.register(slot, vectors));
        }
        self.watch();
        let (mut answers, mut ended, mut carried) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.queue.take(&mut answers);
            let want = usize::from(answers.is_empty());
            for answer in answers.drain(..) {
                self.commit(&answer);
            }
            match self.ring.submit_and_wait(want) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
            ended.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
            for (number, result) in ended.drain(..) {
                if result < 0 {
                    return Err(io::Error::from_raw_os_error(-result));
                }
                if number == WAKE {
                    let _ = rustix::io::read(&self.queue.wake, &mut [0; 8]);
                    self.watch();
                } else {
                    self.take_in(service, number as usize, &mut carried);
                }
            }
        }
    }

    /// Has the service serve the request that the kernel has put into a slot.
    fn take_in(&mut self, service: &impl Service, number: usize, copy: &mut Vec<u8>) {
        // SAFETY: the kernel has just handed the slot over.
        let RingHeader { message, fixed, commit, size } = unsafe { self.queue.memory.take_header(number) };
        self.commits[number] = commit;
        let (header, _) = Header::decode(&message).expect("it has the size of a header");
        let is_read = header.opcode == abi::opcode::WRITE;
        // SAFETY: the slot is ours until it is committed, which this thread does later; nobody writes to what it
        // carries meanwhile: an answer to what is read in place is not put there.
        let mut carried = unsafe { self.queue.memory.carried(number, size) };
        if !is_read {
            copy.clear();
            copy.extend_from_slice(carried);
            carried = copy;
        }
        let slot = Slot { queue: self.queue.clone(), number, unique: header.unique, is_read };
        let reply = Reply::new(Route::Ring(slot));
        match Request::from_parts(header, &fixed, carried) {
            Ok(request) => crate::fuse::serve(service, request, reply),
            Err(abi::Malformed) => reply.error(Errno::EIO),
        }
    }

    fn commit(&mut self, answer: &Answer) {
        // SAFETY: the answer is given, so that the slot is this thread's.
        unsafe {
            if let Carried::Body(body) = &answer.carried {
                self.queue.memory.put(answer.slot, body);
            }
            self.queue.memory.put_header(answer.slot, &answer.header, answer.carried.size());
        }
        let entry = self.command(COMMIT_AND_FETCH, self.commits[answer.slot]);
        self.push(entry.build().user_data(answer.slot as u64));
    }

    fn register(&self, slot: usize, vectors: &[libc::iovec; 2]) -> Entry128 {
        let entry = self.command(REGISTER, 0).addr(Some(vectors.as_ptr() as u64));
        let mut entry = entry.build().user_data(slot as u64);
        const { assert!(size_of::<Entry128>() == 128) };
        // SAFETY: an entry is the kernel's structure of 128 bytes, and this its number of vectors.
        unsafe { (&raw mut entry).byte_add(VECTORS_START).cast::<u32>().write(vectors.len() as u32) };
        entry
    }

    fn command(&self, code: u32, commit: u64) -> opcode::UringCmd80 {
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.number.to_ne_bytes());
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code).cmd(command)
    }

    /// Is woken when another thread has answered.
    fn watch(&mut self) {
        let poll = opcode::PollAdd::new(types::Fd(self.queue.wake.as_raw_fd()), libc::POLLIN as u32);
        self.push(squeue::Entry128::from(poll.build().user_data(WAKE)));
    }

    fn push(&mut self, entry: Entry128) {
        // SAFETY: the entry names descriptors and memory that live as long as the ring; the vectors of a
        // registration, which the kernel reads when it is submitted, live until `serve` ends.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are as many entries as requests");
    }
}
