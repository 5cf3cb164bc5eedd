//! Pinned ring servers: threads that serve one program each, on the core where it calls.
//!
//! Where there are more programs than spare cores, a side that polls for a request or a reply keeps the other side from its core, and a
//! side that sleeps is woken on another core, which takes tens of microseconds on a virtual machine. So a program that has polled in
//! vain publishes the core on which it calls, and gets a pinned server there: each side sleeps while the other works, and they take
//! turns within a few microseconds.
//!
//! Only the pinned server serves the requests that a program hands to it: no other thread finds them. So a program hands it nothing
//! while another of its calls is in flight, in which the server may be busy for long.
//!
//! No request is overlooked. The server announces in the word `near` that it sleeps, and sleeps only while the word holds nothing else. A
//! program that has set its bit there sees the announcement and wakes the server, or the server sees the bit. Before it ends, the server
//! announces that, and takes the requests that are there; a program that sets its bit later sees that, and withdraws it. The program can
//! write the word, too: one that writes something else may keep its server asleep, even after its own end until another one starts, and
//! harms itself alone.

use super::connection::Connection;
use super::threads::Work;
use super::{Handler, Inner};
use crate::layout::{ACCOMPANIED, ALL_SLOTS, LEFT, RESTS, SLOTS, core, near};
use rustix::thread::{CpuSet, futex, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_io::os::process::start_thread;

/// Maximum number of pinned servers; further programs are served by the common threads.
const PINNED_SERVERS_MAX: usize = 64;
/// Consecutive requests from one other core after which the server moves there.
const FOLLOWS_AFTER: u32 = 4;
/// Pause between two attempts to end a server.
const NUDGE: Duration = Duration::from_millis(1);

/// One pinned server, until it is joined.
pub(super) struct PinnedServer<H: Handler> {
    connection: Weak<Connection<H>>,
    thread: JoinHandle<()>,
}

impl<H: Handler> PinnedServer<H> {
    /// Wakes a server that is to end and has not noticed.
    fn nudge(&self) {
        let ended = |connection: &Arc<Connection<H>>| connection.pinned.is_ending();
        if let Some(connection) = self.connection.upgrade().filter(ended) {
            connection.pinned.end(&connection.arena);
        }
    }
}

impl<H: Handler> Connection<H> {
    /// The core on which the program calls, while it wants a pinned server.
    fn core(&self) -> Option<usize> {
        let core = core(&self.arena).load(Ordering::Relaxed).checked_sub(1)? as usize;
        (core < CpuSet::MAX_CPU).then_some(core)
    }

    /// Work that the program has handed to its pinned server.
    fn near_work(self: &Arc<Self>) -> Option<Work<H>> {
        let word = near(&self.arena);
        let left = || (word.load(Ordering::Relaxed) & LEFT != 0).then(|| Work::Left(self.clone()));
        self.take_of(word).map(Work::Call).or_else(left)
    }

    /// Sleeps until the program hands over a request, or has ended.
    fn rest(&self) {
        let word = near(&self.arena);
        let seen = word.fetch_or(RESTS, Ordering::SeqCst);
        if seen & (ALL_SLOTS | LEFT) == 0 && !self.pinned.is_ending() {
            // Changed or interrupted: the caller checks again.
            let _ = futex::wait(word, futex::Flags::empty(), seen | RESTS, None);
        }
        word.fetch_and(!RESTS, Ordering::SeqCst);
    }
}

/// The core of a pinned server.
struct Pinning {
    /// Cores on which it may run.
    allowed: CpuSet,
    here: Option<usize>,
    /// Another core on which the program calls, and how often it did in a row.
    elsewhere: (usize, u32),
}

impl Pinning {
    /// Moves to a program that calls on `core`; false if the server may not run there.
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
    /// Starts a pinned server for a program that wants one, if it had none and may have one.
    pub(super) fn pin_server(self: &Arc<Self>, connection: &Arc<Connection<H>>) {
        let Some(core) = connection.core() else { return };
        if !connection.pinned.claim() {
            return;
        }
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut all = self.pinned_servers.lock();
        all.retain(|served| !served.thread.is_finished());
        all.iter().for_each(PinnedServer::nudge);
        // An agent that is bound to cores does not use those of programs.
        if !allowed.is_set(core) || all.len() >= PINNED_SERVERS_MAX {
            return;
        }
        let (inner, served) = (self.clone(), connection.clone());
        match start_thread("tameike-near", move || inner.run_pinned_server(&served, allowed)) {
            Ok(thread) => all.push(PinnedServer { connection: Arc::downgrade(connection), thread }),
            Err(fault) => log::info!("cannot start a pinned ring server: {fault}"),
        }
    }

    fn run_pinned_server(&self, connection: &Arc<Connection<H>>, allowed: CpuSet) {
        let mut pinning = Pinning { allowed, here: None, elsewhere: (0, 0) };
        let word = near(&connection.arena);
        word.fetch_or(ACCOMPANIED, Ordering::SeqCst);
        let mut stays = true;
        while stays && !connection.pinned.is_ending() {
            match connection.near_work() {
                Some(work) => {
                    stays = connection.core().is_none_or(|core| pinning.follow(core));
                    self.run(work);
                }
                None => connection.rest(),
            }
        }
        word.fetch_and(!ACCOMPANIED, Ordering::SeqCst);
        // At most one per slot, whatever the program writes.
        (0..=SLOTS).map_while(|_| connection.near_work()).for_each(|work| self.run(work));
        connection.pinned.ended();
    }

    /// Waits for the end of all pinned servers, whose connections are closed.
    pub(super) fn end_pinned_servers(&self) {
        let all = std::mem::take(&mut *self.pinned_servers.lock());
        for PinnedServer { connection, thread } in all {
            while let Some(connection) = connection.upgrade().filter(|_| !thread.is_finished()) {
                connection.pinned.end(&connection.arena);
                if connection.pinned.wait_ended(NUDGE) {
                    break;
                }
            }
            if thread.join().is_err() {
                log::error!("a pinned ring server panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_server_moves_to_the_core_of_several_consecutive_calls() {
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
            let mut pinning = Pinning { allowed, here: None, elsewhere: (0, 0) };
            assert!(pinning.follow(first) && runs_on() == only(first));
            for _ in 0..2 * FOLLOWS_AFTER {
                assert!(pinning.follow(last) && runs_on() == only(first), "once there, once here");
                assert!(pinning.follow(first));
            }
            assert!((0..FOLLOWS_AFTER).all(|_| pinning.follow(last)) && runs_on() == only(last));
            let none = CpuSet::MAX_CPU - 1;
            assert!(allowed.is_set(none) || !(0..FOLLOWS_AFTER).all(|_| pinning.follow(none)));
        });
        followed.expect("a thread").join().expect("no panic");
    }
}
