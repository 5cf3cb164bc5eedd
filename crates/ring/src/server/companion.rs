//! Threads that serve one program each, on the core where it asks.
//!
//! Where there are more programs than cores to spare, whoever looks for a request or an answer keeps the other side from it, and who
//! sleeps is woken on another core, which takes dozens of microseconds on a virtual machine. So a program that has waited in vain
//! says on which core it asks, and gets a companion there: both sleep at once while the other works, and take turns in a few
//! microseconds.
//!
//! What a program hands to its companion, only that one serves: nobody else finds it, and answers from afar. So a program hands it
//! nothing while another of its calls is under way, at which the companion may be for long.
//!
//! No request is overlooked. A companion says in `near` that it sleeps, and does so while the word has nothing else: a program that
//! has put its bit there sees that, and wakes it, or the companion sees the bit. Before it goes it says so, and takes what is there
//! yet: a program that puts its bit there later sees that, and takes it back. The word is the program's, too: one that writes
//! something else there may keep its companion asleep, also after its own end until another gets one, and hurts itself alone.

use super::connection::Connection;
use super::threads::Work;
use super::{Handler, Inner};
use crate::layout::{ACCOMPANIED, ALL_SLOTS, ENDS, LEFT, RESTS, SLOTS, core, near};
use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, futex, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_io::os::process::start_thread;

/// Companions at the same time; programs beyond are served by the threads that serve all.
const COMPANIONS_MAX: usize = 64;
/// Requests that must come from one other core in a row before the companion follows there.
const FOLLOWS_AFTER: u32 = 4;
/// Pause between two attempts to end a companion.
const NUDGE: Duration = Duration::from_millis(1);

/// What a connection knows of its companion.
#[derive(Default)]
pub(super) struct Companion {
    /// There is one, or was.
    asked_for: AtomicBool,
    ended: AtomicBool,
    has_gone: Mutex<bool>,
    goes: Condvar,
}

/// One of them, for who waits for its end.
struct Served<H: Handler> {
    connection: Weak<Connection<H>>,
    thread: JoinHandle<()>,
}

impl<H: Handler> Served<H> {
    /// Wakes a companion that was to end, and has not seen it.
    fn nudge(&self) {
        let ended = |connection: &Arc<Connection<H>>| connection.companion.ended.load(Ordering::SeqCst);
        if let Some(connection) = self.connection.upgrade().filter(ended) {
            connection.end_companion();
        }
    }
}

/// All companions.
pub(super) struct Companions<H: Handler>(Mutex<Vec<Served<H>>>);

impl<H: Handler> Default for Companions<H> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<H: Handler> Connection<H> {
    /// The core where the program asks, while it wants a companion.
    fn core(&self) -> Option<usize> {
        let core = core(&self.arena).load(Ordering::Relaxed).checked_sub(1)? as usize;
        (core < CpuSet::MAX_CPU).then_some(core)
    }

    /// What the companion is asked.
    fn near_work(self: &Arc<Self>) -> Option<Work<H>> {
        let word = near(&self.arena);
        let left = || (word.load(Ordering::Relaxed) & LEFT != 0).then(|| Work::Left(self.clone()));
        self.take_of(word).map(Work::Asked).or_else(left)
    }

    /// Sleeps until something is asked, or the program is gone.
    fn rest(&self) {
        let word = near(&self.arena);
        let seen = word.fetch_or(RESTS, Ordering::SeqCst);
        if seen & (ALL_SLOTS | LEFT) == 0 && !self.companion.ended.load(Ordering::SeqCst) {
            // Changed or interrupted meanwhile: it looks again.
            let _ = futex::wait(word, futex::Flags::empty(), seen | RESTS, None);
        }
        word.fetch_and(!RESTS, Ordering::SeqCst);
    }

    /// The companion is to end.
    pub(super) fn end_companion(&self) {
        self.companion.ended.store(true, Ordering::SeqCst);
        near(&self.arena).fetch_or(ENDS, Ordering::SeqCst);
        let _ = futex::wake(near(&self.arena), futex::Flags::empty(), 1);
    }
}

/// Where a companion runs.
struct Place {
    /// Where it may.
    allowed: CpuSet,
    here: Option<usize>,
    /// Another core where the program asks, and how often it did in a row.
    elsewhere: (usize, u32),
}

impl Place {
    /// Follows a program that asks at `core`, if it may; whether it may.
    fn follow(&mut self, core: usize) -> bool {
        let count = if self.elsewhere.0 == core { self.elsewhere.1.saturating_add(1) } else { 1 };
        self.elsewhere = (core, count);
        if self.here == Some(core) || (count < FOLLOWS_AFTER && self.here.is_some()) {
            return true;
        }
        self.here = Some(core);
        let mut only = CpuSet::new();
        only.set(core);
        self.allowed.is_set(core) && sched_setaffinity(None, &only).is_ok()
    }
}

impl<H: Handler> Inner<H> {
    /// Gives a program that wants one a companion, if it had none and may have one.
    pub(super) fn accompany(self: &Arc<Self>, connection: &Arc<Connection<H>>) {
        let Some(core) = connection.core() else { return };
        let asked_for = &connection.companion.asked_for;
        if asked_for.load(Ordering::Relaxed) || asked_for.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut all = self.companions.0.lock();
        all.retain(|served| !served.thread.is_finished());
        all.iter().for_each(Served::nudge);
        // An agent that keeps to cores of its own does not go to those of programs.
        if !allowed.is_set(core) || all.len() >= COMPANIONS_MAX {
            return;
        }
        let (inner, served) = (self.clone(), connection.clone());
        match start_thread("tameike-near", move || inner.be_companion(&served, allowed)) {
            Ok(thread) => all.push(Served { connection: Arc::downgrade(connection), thread }),
            Err(fault) => log::info!("a program is served from afar: {fault}"),
        }
    }

    fn be_companion(&self, connection: &Arc<Connection<H>>, allowed: CpuSet) {
        let mut place = Place { allowed, here: None, elsewhere: (0, 0) };
        let word = near(&connection.arena);
        word.fetch_or(ACCOMPANIED, Ordering::SeqCst);
        let mut stays = true;
        while stays && !connection.companion.ended.load(Ordering::SeqCst) {
            match connection.near_work() {
                Some(work) => {
                    stays = connection.core().is_none_or(|core| place.follow(core));
                    self.run(work);
                }
                None => connection.rest(),
            }
        }
        word.fetch_and(!ACCOMPANIED, Ordering::SeqCst);
        // No more than can be there, whatever the program does.
        (0..=SLOTS).map_while(|_| connection.near_work()).for_each(|work| self.run(work));
        *connection.companion.has_gone.lock() = true;
        connection.companion.goes.notify_all();
    }

    /// Waits for the end of all companions, whose connections are closed.
    pub(super) fn end_companions(&self) {
        let all = std::mem::take(&mut *self.companions.0.lock());
        for Served { connection, thread } in all {
            while let Some(connection) = connection.upgrade().filter(|_| !thread.is_finished()) {
                connection.end_companion();
                let mut has_gone = connection.companion.has_gone.lock();
                if *has_gone || !connection.companion.goes.wait_for(&mut has_gone, NUDGE).timed_out() {
                    break;
                }
            }
            if thread.join().is_err() {
                log::error!("a companion of a program ended in a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companion_follows_whoever_asks_elsewhere_for_long() {
        let followed = start_thread("test", || {
            let allowed = sched_getaffinity(None).expect("a mask");
            let here = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect::<Vec<_>>();
            let (first, last) = (here[0], here[here.len() - 1]);
            let runs_on = || sched_getaffinity(None).expect("a mask");
            let only = |core| {
                let mut mask = CpuSet::new();
                mask.set(core);
                mask
            };
            let mut place = Place { allowed, here: None, elsewhere: (0, 0) };
            assert!(place.follow(first) && runs_on() == only(first));
            for _ in 0..2 * FOLLOWS_AFTER {
                assert!(place.follow(last) && runs_on() == only(first), "once there, once here");
                assert!(place.follow(first));
            }
            assert!((0..FOLLOWS_AFTER).all(|_| place.follow(last)) && runs_on() == only(last));
            let none = CpuSet::MAX_CPU - 1;
            assert!(allowed.is_set(none) || !(0..FOLLOWS_AFTER).all(|_| place.follow(none)));
        });
        followed.expect("a thread").join().expect("no panic");
    }
}
