//! Who looks for requests, told to programs in memory that they can only read.
//!
//! A serving thread looks (it will go through all arenas again), sleeps (in `epoll`, where a ring wakes it), or works. The
//! word counts lookers and sleepers. A program that has asked rings when nobody looks and somebody sleeps; a ring is a
//! byte on its socket, and each byte wakes one thread.
//!
//! No request is overlooked. A program sets its bit in `pending`, then reads the word; a thread changes the word, then
//! reads all `pending`; both with a full fence between. So of a bit and a change of the word, either the program has seen
//! the change, or the thread sees the bit. Let a program have set its bit and then read the word:
//!
//! - Somebody looks. That thread stops looking later than the program's read, and reads `pending` after that, whether it
//!   goes to sleep or to work: it sees the bit if nobody has taken it. Who goes to sleep then looks again; who goes to work
//!   wakes a sleeper if nobody else looks, and if there is no sleeper either, all work, and each of them looks when it is
//!   done.
//! - Nobody looks and somebody sleeps. The program rings. The byte wakes a sleeper, or is there when one begins to sleep:
//!   `epoll` tells of it once, to one thread, which then looks.
//! - Nobody looks and nobody sleeps. All work. Each thread counts itself as a looker after its work, which is later than
//!   the program's read, and reads `pending` after that.
//!
//! No answer is overlooked. State and sleep of a slot are one word: the program adds `SLEEPS` in one step and sleeps only
//! on a word that says so and has no answer; the thread puts the answer in its place in one step, and wakes the program
//! when what it took away said that it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use tameike_io::os::arena::Notice;

use super::THREADS;

/// Where the word lies in the notice.
pub(crate) const WATCH: usize = 0;

const LOOKER: u32 = 1;
const SLEEPER: u32 = 1 << 16;
const LOOKERS: u32 = SLEEPER - 1;

const _: () = assert!(THREADS < LOOKERS as usize);

/// Whether a program that has asked must ring.
pub(crate) fn wants_ring(word: u32) -> bool {
    word & LOOKERS == 0 && word >= SLEEPER
}

pub(super) struct Watch(Arc<Notice>);

impl Watch {
    pub fn new(notice: Arc<Notice>) -> Self {
        Self(notice)
    }

    fn word(&self) -> &AtomicU32 {
        self.0.word(WATCH)
    }

    fn change(&self, more: u32, less: u32) -> u32 {
        let before = self.word().fetch_add(more.wrapping_sub(less), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before
    }

    /// A thread that worked looks; whether another does so already.
    pub fn look(&self) -> bool {
        self.change(LOOKER, 0) & LOOKERS > 0
    }

    /// A thread that looked works. Whether nobody looks any more, and somebody sleeps: if there are requests, one of these
    /// is to be woken.
    pub fn work(&self) -> bool {
        wants_ring(self.change(0, LOOKER) - LOOKER)
    }

    /// A thread that looked sleeps, unless it finds a request yet.
    pub fn sleep(&self) {
        self.change(SLEEPER, LOOKER);
    }

    /// A thread that slept works.
    pub fn rise(&self) {
        self.change(0, SLEEPER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_rings_when_all_who_are_idle_sleep() {
        let watch = Watch::new(Arc::new(Notice::create("test", 4096).expect("memory")));
        let wants_ring = || wants_ring(watch.word().load(Ordering::Relaxed));
        assert!(!wants_ring(), "all work");
        assert!(!watch.look());
        assert!(watch.look(), "another looks");
        assert!(!wants_ring());
        watch.sleep();
        assert!(!wants_ring(), "one looks yet");
        assert!(watch.work(), "the last that looked");
        assert!(wants_ring());
        watch.rise();
        assert!(!wants_ring());
        assert!(!watch.look() && !watch.work(), "there is nobody to wake");
        assert_eq!(watch.word().load(Ordering::Relaxed), 0);
    }
}
