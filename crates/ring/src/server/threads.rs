//! The serving threads: they find requests, and sleep if there are none.

use super::{Handler, Inner};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::{Call, Connection};

/// Maximum number of events per round; requests are checked after each round.
const EVENTS_PER_ROUND: usize = 16;

/// Work of a thread.
pub(super) enum Work<H: Handler> {
    Call(Call<H>),
    /// Closes left handles.
    Left(Arc<Connection<H>>),
}

impl<H: Handler> Inner<H> {
    /// Main loop of a serving thread.
    pub(super) fn serve(self: &Arc<Self>) {
        let mut events = Vec::with_capacity(EVENTS_PER_ROUND);
        let mut is_second = self.watch.poll();
        while !self.stopping.load(Ordering::SeqCst) {
            if let Some(work) = self.find() {
                self.work(work);
                is_second = self.watch.poll();
                continue;
            }
            // One polling thread suffices.
            let polled = if is_second { None } else { Some(self.spin.poll(|| self.is_pending())) };
            let wait = match polled {
                Some(Ok(())) => continue,
                Some(Err(wait)) => Some(wait),
                None => None,
            };
            self.watch.sleep();
            if !self.is_pending() && !self.stopping.load(Ordering::SeqCst) {
                events.clear();
                match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => log::error!("cannot wait for requests of programs: {error}"),
                }
            }
            self.watch.rise();
            events.drain(..).for_each(|event: epoll::Event| self.handle_event(event.data.u64()));
            if let Some(wait) = wait {
                self.spin.slept(&wait);
            }
            is_second = self.watch.poll();
        }
        self.watch.work();
        // Each thread that ends wakes the next.
        self.wake();
    }

    fn is_pending(&self) -> bool {
        self.connections.read().iter().any(|connection| connection.is_pending())
    }

    /// Takes a request, round-robin over the programs; if there is none, left handles.
    fn find(&self) -> Option<Work<H>> {
        let connections = self.connections.read();
        let count = connections.len();
        let first = self.next.load(Ordering::Relaxed);
        let in_turn = || (0..count).map(|place| (first + place) % count);
        let call = in_turn().find_map(|place| {
            let call = connections[place].take()?;
            self.next.store(place + 1, Ordering::Relaxed);
            Some(Work::Call(call))
        });
        let left = || in_turn().map(|place| &connections[place]).find(|connection| connection.has_left());
        call.or_else(|| left().map(|connection| Work::Left(connection.clone())))
    }

    fn work(self: &Arc<Self>, work: Work<H>) {
        if self.watch.work() && self.is_pending() {
            self.wake();
        }
        if let Work::Call(call) = &work {
            self.pin_server(call.connection());
        }
        self.run(work);
    }

    pub(super) fn run(&self, work: Work<H>) {
        let serve = || match work {
            Work::Call(call) => self.handler.serve(call),
            Work::Left(connection) => connection.take_left(),
        };
        if catch_unwind(AssertUnwindSafe(serve)).is_err() {
            log::error!("serving a request of a program panicked; the program gets EIO");
        }
    }
}
