//! One queue: the slots of its requests, and the replies that its thread hands to the kernel.

use super::memory::Memory;
use crate::abi::{self, Body, OUT_HEADER_SIZE};
use crate::libc_errno;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_core::Errno;

/// A reply for the kernel.
pub(super) struct Answer {
    pub(super) slot: u64,
    pub(super) header: [u8; OUT_HEADER_SIZE],
    pub(super) carried: Carried,
}

/// The payload of a reply.
pub(super) enum Carried {
    /// A small payload.
    Body(Body),
    /// A payload of this size in the slot.
    InSlot(usize),
}

#[derive(Default)]
struct Answers {
    given: Vec<Answer>,
    /// The queue's thread may sleep, and needs a wake-up.
    sleeps: bool,
}

pub(crate) struct Queue {
    pub(super) number: u16,
    /// Capacity for the payload of a request, in bytes.
    pub(super) payload_size: usize,
    answers: Mutex<Answers>,
    pub(super) wake: OwnedFd,
}

impl Queue {
    pub(super) fn new(number: u16, payload_size: usize) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { number, payload_size, answers: Mutex::default(), wake })
    }

    fn push(&self, answer: Answer) {
        let sleeps = {
            let mut answers = self.answers.lock();
            answers.given.push(answer);
            std::mem::take(&mut answers.sleeps)
        };
        if sleeps {
            // The counter cannot overflow: at most one write per sleep.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Takes the queued replies. The caller may sleep from then on.
    pub(super) fn take(&self, taken: &mut Vec<Answer>) {
        let mut answers = self.answers.lock();
        std::mem::swap(&mut answers.given, taken);
        answers.sleeps = true;
    }

    /// Notes that the caller is awake: it takes replies without a wake-up.
    pub(super) fn awake(&self) {
        self.answers.lock().sleeps = false;
    }
}

/// A slot with a request, to be answered once.
pub(crate) struct Slot {
    queue: Arc<Queue>,
    memory: Arc<Memory>,
    number: u64,
    unique: u64,
    /// The service reads the payload of the request in place.
    is_read: bool,
}

impl Slot {
    /// The slot of request `unique`. `is_read` if the service reads the payload in place.
    pub(super) fn new(
        queue: Arc<Queue>,
        memory: Arc<Memory>,
        (number, unique): (u64, u64),
        is_read: bool,
    ) -> Self {
        Self { queue, memory, number, unique, is_read }
    }

    pub(crate) fn answer(self, error: i32, bytes: &[u8]) {
        let memory = &self.memory;
        let (error, carried) = match Body::of(bytes) {
            Some(body) => (error, Carried::Body(body)),
            None if self.is_read || bytes.len() > memory.payload_size() => {
                (libc_errno(Errno::EIO), Carried::Body(Body::default()))
            }
            None => {
                // SAFETY: a slot that the kernel has handed over belongs to its only `Slot` until the reply, and the payload of
                // the request is not read any more (`is_read`).
                unsafe { memory.put(bytes) };
                (error, Carried::InSlot(bytes.len()))
            }
        };
        let header = abi::out_header(OUT_HEADER_SIZE + carried.size(), error, self.unique);
        self.queue.push(Answer { slot: self.number, header, carried });
    }
}

impl Carried {
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Body(body) => body.len(),
            Self::InSlot(size) => *size,
        }
    }
}
