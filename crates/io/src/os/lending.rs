//! Threads that lend themselves: blocking calls of a task that they begin run on them, not on a thread of the pool.
//!
//! A door has several threads that do nothing but read requests. When one of them makes the calls of its request
//! itself, the request meets no hop between threads; on a busy machine each hop is a wait for a core. But calls to
//! a shared file system may take their time: only some of a door's threads are held up so at once, and the calls of
//! the requests that the others read go to the pool.
//!
//! Only the task itself uses the thread, and only until it first waits for something else; tasks that it spawns are
//! on their own.

use super::runtime::Runtime;
use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loan {
    /// The thread is not to be held up.
    None,
    /// The next task that is spawned here may hold it up.
    Offered,
    /// The task that is polled here may hold it up.
    Taken,
}

thread_local! {
    static LOAN: Cell<Loan> = const { Cell::new(Loan::None) };
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// The loan of this thread, until dropped; then it is as before.
struct Standing(Loan);

impl Standing {
    fn begin(loan: Loan) -> Self {
        Self(LOAN.replace(loan))
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        LOAN.set(self.0);
    }
}

/// No other thread reads what this one reads: from now on it lends itself to nobody.
pub fn keep_thread() {
    IS_ALONE.set(true);
}

/// Whether a blocking call may run on this thread.
pub(crate) fn is_taken() -> bool {
    LOAN.get() == Loan::Taken
}

/// Polls a task for the first time: it takes what is on offer.
pub(super) fn first_poll<T>(poll: impl FnOnce() -> T) -> T {
    let _standing = Standing::begin(if LOAN.get() == Loan::Offered { Loan::Taken } else { Loan::None });
    poll()
}

/// Begins tasks on threads of which some lend themselves.
pub struct Lender {
    runtime: Runtime,
    lent: AtomicUsize,
    lent_max: usize,
}

/// A place among the threads that may be held up.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lender {
    /// At most `lent_max` threads are held up at the same time.
    pub fn new(runtime: Runtime, lent_max: usize) -> Self {
        Self { runtime, lent: AtomicUsize::new(0), lent_max }
    }

    /// Runs `task` to its end; it is polled for the first time at once, on this thread, which lends itself if not
    /// too many others do.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let place = Place(&self.lent);
        let is_one_too_many = self.lent.fetch_add(1, Ordering::AcqRel) >= self.lent_max;
        let loan = if is_one_too_many || IS_ALONE.get() { Loan::None } else { Loan::Offered };
        let standing = Standing::begin(loan);
        self.runtime.spawn(task);
        drop(standing);
        drop(place);
    }

    /// Runs `wait`, which holds this thread up whatever it does: blocking calls on the way run here, too.
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _standing = Standing::begin(Loan::Taken);
        wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::process::start_thread;
    use crate::os::system::System;
    use std::sync::mpsc;
    use std::thread::ThreadId;

    fn here() -> ThreadId {
        std::thread::current().id()
    }

    #[test]
    fn the_first_blocking_calls_of_a_task_run_on_the_thread_that_lends_itself() {
        let system = System::start(2).expect("a system");
        let runtime = system.runtime().clone();
        let lender = Lender::new(runtime.clone(), 1);
        let (tell, told) = mpsc::channel();
        lender.spawn(async move {
            let (inner, nested) = (runtime.clone(), tell.clone());
            runtime.spawn(async move {
                nested.send(("nested", inner.block(here).await)).expect("it waits");
            });
            tell.send(("first", runtime.block(here).await)).expect("it waits");
            tell.send(("second", runtime.block(here).await)).expect("it waits");
            runtime.sleep(std::time::Duration::from_millis(1)).await;
            tell.send(("later", runtime.block(here).await)).expect("it waits");
        });
        let mut threads: Vec<_> = told.iter().collect();
        threads.sort_unstable_by_key(|(call, _)| *call);
        let lent: Vec<_> = threads.iter().map(|&(call, thread)| (call, thread == here())).collect();
        assert_eq!(lent, [("first", true), ("later", false), ("nested", false), ("second", true)]);
        assert!(!is_taken());
        assert_eq!(lender.lent.load(Ordering::Acquire), 0);
    }

    #[test]
    fn when_enough_threads_are_held_up_calls_go_to_the_pool() {
        let system = System::start(2).expect("a system");
        let runtime = system.runtime().clone();
        let lender = std::sync::Arc::new(Lender::new(runtime.clone(), 1));
        let (begun, begins) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let (first, first_runtime) = (lender.clone(), runtime.clone());
        let hold_up = move || {
            first.spawn(async move {
                let wait = move || {
                    begun.send(here()).expect("it waits");
                    ended.recv().expect("an end");
                };
                first_runtime.block(wait).await;
            });
        };
        let held_up = start_thread("held up", hold_up).expect("a thread");
        assert_eq!(begins.recv(), Ok(held_up.thread().id()));
        let (tell, told) = mpsc::channel();
        let other = runtime.clone();
        lender.spawn(async move { tell.send(other.block(here).await).expect("it waits") });
        assert_ne!(told.recv(), Ok(here()));
        end.send(()).expect("it waits");
        held_up.join().expect("an end");
        // Who waits in any case makes the calls itself.
        let (tell, told) = mpsc::channel();
        lender.wait(|| runtime.spawn(async move { tell.send(is_taken()).expect("it waits") }));
        assert_eq!(told.recv(), Ok(false), "a task spawned meanwhile is on its own");
        assert!(lender.wait(is_taken) && !is_taken());
    }
}
