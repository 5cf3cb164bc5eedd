//! What lies where in the memory that a program and the agent share, and what travels on the socket beside it.
//!
//! ```text
//! arena, memory of the program      0  pending: a bit for each slot that is asked, and
//!                                      one while handles are left                     u32
//!                                  64  names that the program has looked up by itself u64
//!                                  72  one more than the core where it asks, 0 until
//!                                      it wants a pinned server                           u32
//!                                  76  near: as pending, for the pinned server, and bits
//!                                      while it is there, and while it sleeps         u32
//!                                 128  handles that are left, 0 for none              8 x u64
//!                                 256  slots: 16 times 256 bytes:  0  state           u32
//!                                                                 64  request         8 x u64
//!                                                                128  reply           16 x u64
//!                                8192  windows: 16 times 1 MiB, for bytes and names
//!
//! notice, memory of the agent       0  who looks for requests, see `server::watch`    u32
//!                                4096  names: a clock, counts of changes, slots, see `names`
//!
//! hello    program -> agent   magic, version; beside it the arena
//! welcome  agent -> program   magic, version, verdict, views, frames; beside it the notice, and where frames are lent the
//!                             table of these and the slab (`frames`)
//! rings    program -> agent   any bytes: there are requests, and nobody looks
//! devices  agent -> program   the number of a device; beside it a descriptor (`placed`)
//! ```
//!
//! A slot goes round: the program writes request and window, sets `ASKED`, then the bit in `pending`. Who takes the bit
//! away there serves the slot; it writes window and reply, then sets `ANSWERED`. A program that sleeps meanwhile has added
//! `SLEEPS`. Numbers are in the order of the machine: both ends are on it.
//!
//! A *pinned server* is a thread of the agent that serves one program alone, see `server::pinned_server`. What is for it has its bits in
//! `near`, on which it sleeps; a program that finds `RESTS` there when it adds its bit wakes it.
//!
//! A handle is *left* when it is closed and nothing is to be told of that: the program puts it in a place that has none, then sets
//! `LEFT` in `pending`, and goes on. Who takes that bit away takes all handles. Where no place is free, the close is a request.

use crate::WINDOW_SIZE;
use crate::message::{REPLY_WORDS, REQUEST_WORDS, ReplyWords, RequestWords};
use crate::names::NAMES_SIZE;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tameike_io::os::arena::Arena;

/// Calls of one process that are under way at the same time.
pub const SLOTS: usize = 16;
/// Longest name by which a file is handed over to the kernel, in bytes.
pub const HANDOVER_NAME_SIZE: usize = 64;
/// Size of an arena.
pub(crate) const ARENA_SIZE: usize = WINDOWS + SLOTS * WINDOW_SIZE;
/// Where names begin in the agent's notice.
pub(crate) const NAMES: usize = 4096;
/// Size of the agent's notice.
pub(crate) const NOTICE_SIZE: usize = NAMES + NAMES_SIZE;
/// A bit for each slot.
pub(crate) const ALL_SLOTS: u32 = (1 << SLOTS) - 1;
/// Beside these: handles are left.
pub(crate) const LEFT: u32 = 1 << SLOTS;
/// In `near` beside these: there is a pinned server.
pub(crate) const ACCOMPANIED: u32 = 1 << (SLOTS + 1);
/// It sleeps.
pub(crate) const RESTS: u32 = 1 << (SLOTS + 2);
/// It is to end.
pub(crate) const ENDS: u32 = 1 << (SLOTS + 3);
/// Handles that may be left until the agent has taken them.
pub(crate) const LEFT_MAX: usize = 8;

const PENDING: usize = 0;
const LOOKED_UP: usize = 64;
const CORE: usize = 72;
const NEAR: usize = 76;
const LEFT_HANDLES: usize = 128;
const SLOT_HEADS: usize = 256;
const SLOT_SIZE: usize = 256;
const REQUEST: usize = 64;
const REPLY: usize = 128;
const WINDOWS: usize = 8192;

const _: () = assert!(LEFT_HANDLES + LEFT_MAX * 8 <= SLOT_HEADS);
const _: () = assert!(SLOT_HEADS + SLOTS * SLOT_SIZE <= WINDOWS && WINDOWS.is_multiple_of(4096));
const _: () = assert!(REQUEST + REQUEST_WORDS * 8 <= REPLY && REPLY + REPLY_WORDS * 8 <= SLOT_SIZE);

/// A request is there.
pub(crate) const ASKED: u32 = 1;
/// Its reply is.
pub(crate) const ANSWERED: u32 = 2;
/// Added when the program sleeps until it is.
pub(crate) const SLEEPS: u32 = 1 << 8;

/// One slot of an arena.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    arena: &'a Arena,
    number: usize,
}

/// The slots that are asked and not yet taken, and whether handles are left.
pub(crate) fn pending(arena: &Arena) -> &AtomicU32 {
    arena.word(PENDING)
}

/// How many names the program has looked up by itself.
pub(crate) fn looked_up(arena: &Arena) -> &AtomicU64 {
    arena.long(LOOKED_UP)
}

/// What the pinned server is asked alone, and what it does.
pub(crate) fn near(arena: &Arena) -> &AtomicU32 {
    arena.word(NEAR)
}

/// One more than the core where the program asks; 0 until it wants a pinned server.
pub(crate) fn core(arena: &Arena) -> &AtomicU32 {
    arena.word(CORE)
}

/// Places of handles that are left.
pub(crate) fn left(arena: &Arena) -> impl Iterator<Item = &AtomicU64> {
    (0..LEFT_MAX).map(|place| arena.long(LEFT_HANDLES + 8 * place))
}

impl<'a> Slot<'a> {
    /// The slot of this number, of which there are [`SLOTS`].
    pub fn new(arena: &'a Arena, number: usize) -> Self {
        assert!(number < SLOTS, "slot {number} is one of {SLOTS}");
        Self { arena, number }
    }

    pub fn bit(self) -> u32 {
        1 << self.number
    }

    fn head(self) -> usize {
        SLOT_HEADS + self.number * SLOT_SIZE
    }

    pub fn state(self) -> &'a AtomicU32 {
        self.arena.word(self.head())
    }

    // The words are ordered by the state and by `pending`.
    pub fn set_request(self, words: &RequestWords) {
        for (place, &word) in words.iter().enumerate() {
            self.arena.long(self.head() + REQUEST + 8 * place).store(word, Ordering::Relaxed);
        }
    }

    pub fn request(self) -> RequestWords {
        std::array::from_fn(|place| {
            self.arena.long(self.head() + REQUEST + 8 * place).load(Ordering::Relaxed)
        })
    }

    pub fn set_reply(self, words: &ReplyWords) {
        for (place, &word) in words.iter().enumerate() {
            self.arena.long(self.head() + REPLY + 8 * place).store(word, Ordering::Relaxed);
        }
    }

    pub fn reply(self) -> ReplyWords {
        std::array::from_fn(|place| self.arena.long(self.head() + REPLY + 8 * place).load(Ordering::Relaxed))
    }

    /// Where its window begins in the arena.
    pub fn window(self) -> usize {
        WINDOWS + self.number * WINDOW_SIZE
    }
}
