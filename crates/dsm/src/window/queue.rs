//! Message queues in the memory of a rank: bounded, with many producers.
//!
//! ```text
//!   0  magic, when the queue is complete            u64
//!   8  number of slots                              u64
//!  16  largest size of a message                    u64
//!  64  number of messages sent                      u64
//! 128  number of messages received                  u64
//! 192  slots:  0  sequence                          u64
//!              8  size of the message               u64
//!             16  the message, rounded up to 8
//! ```
//!
//! Message `n` is in slot `n % slots`. The sequence of a free slot for it is `2 n`, and `2 n + 1` with the message in it (the queue of
//! D. Vyukov). A producer takes the next number if its slot is free, stores the message, and sets the sequence. So messages of one
//! producer arrive in order. A producer that fails in between blocks the queue, and waits fail for this reason.

use super::{Result, WindowMemory};
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::Errno;

const MAGIC: u64 = u64::from_le_bytes(*b"tmkqueue");

const SLOTS: u64 = 8;
const MESSAGE_SIZE: u64 = 16;
const SENT: u64 = 64;
const RECEIVED: u64 = 128;
const HEAD_SIZE: u64 = 192;
const SLOT_HEAD_SIZE: u64 = 16;
/// How often a number is tried that other producers take first. The agent must end also if a program changes the queue for ever.
const ATTEMPTS: u32 = 1 << 10;

/// A message queue in the memory of a rank.
#[derive(Clone, Copy)]
pub struct Queue<'a> {
    memory: &'a WindowMemory,
    rank: u32,
    offset: u64,
    slots: u64,
    message_size: u64,
}

fn slot_size(message_size: u64) -> Option<u64> {
    message_size.checked_next_multiple_of(8)?.checked_add(SLOT_HEAD_SIZE)
}

/// Size of a queue in bytes; `None` if it is beyond 64 bits.
pub fn queue_size(slots: u64, message_size: u64) -> Option<u64> {
    slots.checked_mul(slot_size(message_size)?)?.checked_add(HEAD_SIZE)
}

impl<'a> Queue<'a> {
    /// Creates an empty queue, also in place of another one.
    ///
    /// # Errors
    /// `EINVAL` if it has no slots, its offset is no multiple of 8, or it does not fit the memory.
    pub fn create(
        memory: &'a WindowMemory,
        (rank, offset): (u32, u64),
        slots: u64,
        message_size: u64,
    ) -> Result<Self> {
        let queue = Self::at(memory, (rank, offset), slots, message_size)?;
        queue.word(0)?.store(0, Ordering::SeqCst);
        for (at, value) in [(SLOTS, slots), (MESSAGE_SIZE, message_size), (SENT, 0), (RECEIVED, 0)] {
            queue.word(at)?.store(value, Ordering::Relaxed);
        }
        for number in 0..slots {
            queue.sequence(number)?.store(2 * number, Ordering::Relaxed);
        }
        queue.word(0)?.store(MAGIC, Ordering::Release);
        memory.changed(rank)?;
        Ok(queue)
    }

    /// Finds the queue at an offset.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn open(memory: &'a WindowMemory, (rank, offset): (u32, u64)) -> Result<Self> {
        // Also checks that the head is in the memory.
        let head = Self::at(memory, (rank, offset), 1, 0)?;
        if head.word(0)?.load(Ordering::Acquire) != MAGIC {
            return Err(Errno::EINVAL);
        }
        let [slots, size] = [SLOTS, MESSAGE_SIZE].map(|at| head.word(at));
        Self::at(memory, (rank, offset), slots?.load(Ordering::Relaxed), size?.load(Ordering::Relaxed))
    }

    fn at(
        memory: &'a WindowMemory,
        (rank, offset): (u32, u64),
        slots: u64,
        message_size: u64,
    ) -> Result<Self> {
        let size = queue_size(slots, message_size).ok_or(Errno::EINVAL)?;
        let end = offset.checked_add(size).ok_or(Errno::EINVAL)?;
        memory.place(rank, offset..end)?;
        if slots == 0 || !offset.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        Ok(Self { memory, rank, offset, slots, message_size })
    }

    fn word(&self, at: u64) -> Result<&'a AtomicU64> {
        self.memory.word(self.rank, self.offset + at)
    }

    /// Offset in the queue of the slot of a message.
    fn slot(&self, number: u64) -> Result<u64> {
        let size = slot_size(self.message_size).ok_or(Errno::EINVAL)?;
        Ok(HEAD_SIZE + number % self.slots * size)
    }

    fn sequence(&self, number: u64) -> Result<&'a AtomicU64> {
        self.word(self.slot(number)?)
    }

    /// Takes the next number at `at`, if the sequence of its slot is `2 number + addend`.
    fn take(&self, at: u64, addend: u64, check: impl Fn(u64) -> Result<()>) -> Result<Option<u64>> {
        let next = self.word(at)?;
        let mut number = next.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            let ready = number.wrapping_mul(2).wrapping_add(addend);
            let sequence = self.sequence(number)?.load(Ordering::Acquire);
            if sequence == ready {
                check(number)?;
                let after = number.wrapping_add(1);
                match next.compare_exchange_weak(number, after, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Ok(Some(number)),
                    Err(other) => number = other,
                }
                continue;
            }
            let now = next.load(Ordering::Relaxed);
            if now == number {
                return Ok(None);
            }
            number = now;
        }
        Ok(None)
    }

    /// Appends a message; false if the queue is full.
    ///
    /// # Errors
    /// `EMSGSIZE` if the message is too large.
    pub fn send(&self, message: &[u8]) -> Result<bool> {
        if message.len() as u64 > self.message_size {
            return Err(Errno::EMSGSIZE);
        }
        let Some(number) = self.take(SENT, 0, |_| Ok(()))? else { return Ok(false) };
        let slot = self.slot(number)?;
        self.word(slot + 8)?.store(message.len() as u64, Ordering::Relaxed);
        self.memory.store(self.rank, self.offset + slot + SLOT_HEAD_SIZE, message)?;
        let sequence = number.wrapping_mul(2).wrapping_add(1);
        self.sequence(number)?.store(sequence, Ordering::Release);
        self.memory.changed(self.rank)?;
        Ok(true)
    }

    /// Takes the oldest message, and returns its size; `None` if the queue is empty.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is larger than `into`: it stays in the queue.
    pub fn receive(&self, into: &mut [u8]) -> Result<Option<usize>> {
        let size_of = |number| {
            let size = self.word(self.slot(number)? + 8)?.load(Ordering::Relaxed);
            // A larger one: a program has overwritten it.
            if size > self.message_size { Err(Errno::EIO) } else { Ok(size as usize) }
        };
        let fits = |number| if size_of(number)? > into.len() { Err(Errno::EMSGSIZE) } else { Ok(()) };
        let Some(number) = self.take(RECEIVED, 1, fits)? else { return Ok(None) };
        let size = size_of(number)?.min(into.len());
        let slot = self.slot(number)?;
        self.memory.load(self.rank, self.offset + slot + SLOT_HEAD_SIZE, &mut into[..size])?;
        let sequence = number.wrapping_add(self.slots).wrapping_mul(2);
        self.sequence(number)?.store(sequence, Ordering::Release);
        self.memory.changed(self.rank)?;
        Ok(Some(size))
    }
}
