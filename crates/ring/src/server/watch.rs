//! State of the serving threads, which programs read to decide whether to ring.
//!
//! A serving thread polls (it will check all arenas again), sleeps (in `epoll`, where a ring wakes it), or works. The word counts pollers and
//! sleepers. After a request, a program rings if no thread polls and at least one sleeps. A ring is a byte on its socket; each byte wakes
//! one thread.
//!
//! **No request is lost.** A program sets its bit in `pending`, then reads the word. A thread changes the word, then reads all `pending`. Both
//! have a full fence in between. So for a bit and a change of the word, either the program has seen the change, or the thread sees the bit.
//! When the program has set its bit and reads the word:
//!
//! - A thread polls. It stops polling after the program's read, and then reads `pending`, whether it goes to sleep or to work: it sees the
//!   bit if no other thread has taken it. Before a sleep, the thread polls again. Before work, it wakes a sleeper if no other thread polls;
//!   if there is no sleeper, all threads work, and each polls when it is done.
//! - No thread polls, one sleeps. The program rings. The byte wakes a sleeper, or is there when a thread begins to sleep: `epoll` reports it
//!   once, to one thread, which then polls.
//! - All threads work. Each counts itself as a poller after its work, which is after the program's read, and then reads `pending`.
//!
//! **No reply is lost.** The state of a slot is one word. The program adds `SLEEPS` atomically, and sleeps only on a word with `SLEEPS` and
//! without `ANSWERED`. The thread replaces the word by `ANSWERED` atomically, and wakes the program if the old word had `SLEEPS`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use tameike_io::os::arena::Notice;

use super::THREADS;

/// Offset of the word in the notice.
pub(crate) const WATCH: usize = 0;

const POLLER: u32 = 1;
const SLEEPER: u32 = 1 << 16;
const POLLERS: u32 = SLEEPER - 1;

const _: () = assert!(THREADS < POLLERS as usize);

/// Returns true if a program must ring after a request.
pub(crate) fn wants_ring(word: u32) -> bool {
    word & POLLERS == 0 && word >= SLEEPER
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

    /// A thread begins to poll after work; returns true if another one already polls.
    pub fn poll(&self) -> bool {
        self.change(POLLER, 0) & POLLERS > 0
    }

    /// A thread that polled begins to work. Returns true if no thread polls now and one sleeps: if there are requests, the caller must wake
    /// one.
    pub fn work(&self) -> bool {
        wants_ring(self.change(0, POLLER) - POLLER)
    }

    /// A thread that polled begins to sleep, unless a check of all arenas finds a request.
    pub fn sleep(&self) {
        self.change(SLEEPER, POLLER);
    }

    /// A thread that slept begins to work.
    pub fn rise(&self) {
        self.change(0, SLEEPER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_rings_if_all_idle_threads_sleep() {
        let watch = Watch::new(Arc::new(Notice::create("test", 4096).expect("memory")));
        let wants_ring = || wants_ring(watch.word().load(Ordering::Relaxed));
        assert!(!wants_ring(), "all threads work");
        assert!(!watch.poll());
        assert!(watch.poll(), "another polls");
        assert!(!wants_ring());
        watch.sleep();
        assert!(!wants_ring(), "one thread still polls");
        assert!(watch.work(), "the last that polled");
        assert!(wants_ring());
        watch.rise();
        assert!(!wants_ring());
        assert!(!watch.poll() && !watch.work(), "no thread sleeps");
        assert_eq!(watch.word().load(Ordering::Relaxed), 0);
    }
}
