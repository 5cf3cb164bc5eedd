//! Layout of the memory that a program and the agent share, and of the messages on the socket beside it.
//!
//! ```text
//! arena, memory of the program      0  pending: a bit per slot with a request, and
//!                                      one while handles are to be closed             u32
//!                                  64  number of names looked up without a request    u64
//!                                  72  one more than the core of the last call, 0
//!                                      until a pinned server is wanted                u32
//!                                  76  near: as pending, for the pinned server, with
//!                                      bits for "it runs" and "it sleeps"             u32
//!                                 128  handles to close, 0 for none                   8 x u64
//!                                 256  slots: 16 times 256 bytes:  0  state           u32
//!                                                                 64  request         8 x u64
//!                                                                128  reply           16 x u64
//!                                8192  windows: 16 times 1 MiB, for bytes and names
//!
//! notice, memory of the agent       0  pollers and sleepers, see `server::watch`      u32
//!                                4096  names: a clock, counts of changes, slots, see `names`
//!
//! hello    program -> agent   magic, version; with the arena's descriptor
//! welcome  agent -> program   magic, version, verdict, views, frames; with the descriptors of the notice and, if frames are
//!                             granted, of their table and the slab (`frames`)
//! rings    program -> agent   any bytes: there are requests, and no thread polls
//! faults   program -> agent   any byte; with the userfaultfd of a mapped region
//! devices  agent -> program   the number of a device; with its descriptors (`extent_location`)
//! regions  agent -> program   `REGION_MARK`; with the descriptors of a region's memory, before the reply to its open
//! windows  agent -> program   `REMOTE_MARK`; with the descriptor of the memory of a remote memory window, likewise
//! ```
//!
//! 1. The program writes request and window, sets `REQUESTED` in the slot's state, then the slot's bit in `pending`.
//! 2. The thread that clears the bit serves the slot: it writes window and reply, then sets `ANSWERED`.
//! 3. A program that sleeps meanwhile has added `SLEEPS`, and is woken.
//!
//! Numbers are in native byte order, as both sides are on one host.
//!
//! A *pinned server* is a thread of the agent that serves one program, see `server::pinned_server`. Requests for it have their bits in
//! `near`, on which it sleeps. A program that finds `RESTS` there when it adds its bit wakes it.
//!
//! A handle whose close needs no reply is *left*: the program puts it in an empty place, sets `LEFT` in `pending`, and continues. The thread
//! that clears that bit closes all left handles. If no place is empty, the close is a request.

use crate::WINDOW_SIZE;
use crate::message::{REPLY_WORDS, REQUEST_WORDS, ReplyWords, RequestWords};
use crate::names::NAMES_SIZE;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tameike_io::os::arena::Arena;

/// Maximum number of calls of a process in flight.
pub const SLOTS: usize = 16;
/// Maximum size of the name by which a file is handed over to the kernel, in bytes.
pub const HANDOVER_NAME_SIZE: usize = 64;
/// The byte before the descriptors of a region's memory. Devices have lower numbers.
pub(crate) const REGION_MARK: u8 = 255;
/// The byte before the descriptor of the memory of a remote memory window.
pub(crate) const REMOTE_MARK: u8 = 254;
/// Number of descriptors of a region's memory.
pub(crate) const REGION_FILES: usize = 3;
/// Size of an arena, in bytes.
pub(crate) const ARENA_SIZE: usize = WINDOWS + SLOTS * WINDOW_SIZE;
/// Offset of the names in the agent's notice.
pub(crate) const NAMES: usize = 4096;
/// Size of the agent's notice, in bytes.
pub(crate) const NOTICE_SIZE: usize = NAMES + NAMES_SIZE;
/// The bits of all slots.
pub(crate) const ALL_SLOTS: u32 = (1 << SLOTS) - 1;
/// Bit beside these: handles are left.
pub(crate) const LEFT: u32 = 1 << SLOTS;
/// Bit of `near`: a pinned server runs.
pub(crate) const ACCOMPANIED: u32 = 1 << (SLOTS + 1);
/// Bit of `near`: the pinned server sleeps.
pub(crate) const RESTS: u32 = 1 << (SLOTS + 2);
/// Bit of `near`: the pinned server must end.
pub(crate) const ENDS: u32 = 1 << (SLOTS + 3);
/// Maximum number of left handles.
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

const _: () =
    assert!((REMOTE_MARK as usize) >= crate::extent_location::DEVICES_MAX && REMOTE_MARK < REGION_MARK);
const _: () = assert!(LEFT_HANDLES + LEFT_MAX * 8 <= SLOT_HEADS);
const _: () = assert!(SLOT_HEADS + SLOTS * SLOT_SIZE <= WINDOWS && WINDOWS.is_multiple_of(4096));
const _: () = assert!(REQUEST + REQUEST_WORDS * 8 <= REPLY && REPLY + REPLY_WORDS * 8 <= SLOT_SIZE);

/// State of a slot: a request is in it.
pub(crate) const REQUESTED: u32 = 1;
/// State of a slot: a reply is in it.
pub(crate) const ANSWERED: u32 = 2;
/// Added to the state while the program sleeps.
pub(crate) const SLEEPS: u32 = 1 << 8;

/// One slot of an arena.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    arena: &'a Arena,
    number: usize,
}

/// The word `pending`: slots with requests that no thread has taken, and whether handles are left.
pub(crate) fn pending(arena: &Arena) -> &AtomicU32 {
    arena.word(PENDING)
}

/// The number of names that the program has looked up without a request.
pub(crate) fn looked_up(arena: &Arena) -> &AtomicU64 {
    arena.long(LOOKED_UP)
}

/// The word `near`: requests for the pinned server, and its state.
pub(crate) fn near(arena: &Arena) -> &AtomicU32 {
    arena.word(NEAR)
}

/// One more than the core of the program's last call; 0 until it wants a pinned server.
pub(crate) fn core(arena: &Arena) -> &AtomicU32 {
    arena.word(CORE)
}

/// The places of left handles.
pub(crate) fn left(arena: &Arena) -> impl Iterator<Item = &AtomicU64> {
    (0..LEFT_MAX).map(|place| arena.long(LEFT_HANDLES + 8 * place))
}

impl<'a> Slot<'a> {
    /// A slot by its number, less than [`SLOTS`].
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

    pub fn set_request(self, words: &RequestWords) {
        self.store(REQUEST, words);
    }

    pub fn request(self) -> RequestWords {
        self.load(REQUEST)
    }

    pub fn set_reply(self, words: &ReplyWords) {
        self.store(REPLY, words);
    }

    pub fn reply(self) -> ReplyWords {
        self.load(REPLY)
    }

    // Relaxed: the state and `pending` order these words.
    fn store(self, start: usize, words: &[u64]) {
        for (place, &word) in words.iter().enumerate() {
            self.arena.long(self.head() + start + 8 * place).store(word, Ordering::Relaxed);
        }
    }

    fn load<const COUNT: usize>(self, start: usize) -> [u64; COUNT] {
        std::array::from_fn(|place| self.arena.long(self.head() + start + 8 * place).load(Ordering::Relaxed))
    }

    /// Offset of its window in the arena.
    pub fn window(self) -> usize {
        WINDOWS + self.number * WINDOW_SIZE
    }
}
