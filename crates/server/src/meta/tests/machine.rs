//! A cluster's machines on one thread: tasks by node, simulated time, chance from one seed.

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tameike_core::Timestamp;
use tameike_io::Runtime;
use tameike_io::os::runtime::{Clock, Executor, Random};

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Task = (usize, BoxFuture<'static, ()>);

#[derive(Default)]
struct Shared {
    tasks: Mutex<Vec<Task>>,
    doomed: Mutex<Vec<usize>>,
    woken: Arc<Woken>,
    now: Mutex<Duration>,
    timers: Mutex<Vec<Duration>>,
    chance: Mutex<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Machine(Arc<Shared>);

/// The machine as one node sees it.
struct Seen(Machine, usize);

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        let machine = Self::default();
        *machine.0.chance.lock() = seed | 1;
        machine
    }

    pub(super) fn runtime(&self, node: usize) -> Runtime {
        let seen = Arc::new(Seen(self.clone(), node));
        Runtime { clock: seen.clone(), random: seen.clone(), executor: seen }
    }

    pub(super) fn draw(&self, bound: u64) -> u64 {
        let chance = &mut *self.0.chance.lock();
        *chance ^= *chance << 13;
        *chance ^= *chance >> 7;
        *chance ^= *chance << 17;
        *chance % bound
    }

    /// Ends all tasks of a node where they are; its own running task ends at its next wait.
    pub(super) fn kill(&self, node: usize) {
        self.0.doomed.lock().push(node);
        self.0.woken.0.store(true, Ordering::SeqCst);
    }

    /// Takes the killed away.
    pub(super) fn bury(&self) {
        let doomed = std::mem::take(&mut *self.0.doomed.lock());
        let (dead, alive) = std::mem::take(&mut *self.0.tasks.lock())
            .into_iter()
            .partition(|(node, _)| doomed.contains(node));
        self.0.tasks.lock().extend::<Vec<Task>>(alive);
        drop::<Vec<Task>>(dead);
    }

    fn poll_tasks(&self) {
        self.bury();
        let mut tasks = std::mem::take(&mut *self.0.tasks.lock());
        if tasks.len() > 1 {
            let turn = self.draw(tasks.len() as u64) as usize;
            tasks.rotate_left(turn);
        }
        let waker = Waker::from(self.0.woken.clone());
        let mut alive = Vec::new();
        for (node, mut task) in tasks {
            let doomed = self.0.doomed.lock().contains(&node);
            if !doomed && task.poll_unpin(&mut Context::from_waker(&waker)).is_pending() {
                alive.push((node, task));
            }
        }
        self.0.tasks.lock().append(&mut alive);
        self.bury();
    }

    fn pass_time(&self) -> bool {
        let timers = &mut *self.0.timers.lock();
        let Some(next) = timers.iter().min().copied() else { return false };
        timers.retain(|time| *time > next);
        *self.0.now.lock() = next;
        true
    }

    /// Runs `future` and all tasks until it ends.
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = Waker::from(self.0.woken.clone());
        loop {
            self.0.woken.0.store(false, Ordering::SeqCst);
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            self.poll_tasks();
            let idle = !self.0.woken.0.load(Ordering::SeqCst);
            assert!(!idle || self.pass_time(), "everybody waits for ever");
        }
    }

    /// Runs the tasks until all are done.
    pub(super) fn settle(&self) {
        let mut rounds = 0;
        while !self.0.tasks.lock().is_empty() {
            self.0.woken.0.store(false, Ordering::SeqCst);
            self.poll_tasks();
            let idle = !self.0.woken.0.load(Ordering::SeqCst);
            if idle && !self.0.tasks.lock().is_empty() {
                assert!(self.pass_time(), "tasks wait for ever");
            }
            rounds += 1;
            assert!(rounds < 1_000_000, "tasks go on for ever");
        }
    }
}

impl Clock for Seen {
    fn monotonic(&self) -> Duration {
        *self.0.0.now.lock()
    }

    fn wall(&self) -> Timestamp {
        let now = self.monotonic();
        Timestamp { seconds: 1_000_000 + now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
    }
}

impl Random for Seen {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.draw(256) as u8);
    }
}

impl Executor for Seen {
    fn spawn(&self, mut task: BoxFuture<'static, ()>) {
        let waker = Waker::from(self.0.0.woken.clone());
        if task.poll_unpin(&mut Context::from_waker(&waker)).is_pending() {
            self.0.0.tasks.lock().push((self.1, task));
        }
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let machine = self.0.clone();
        let end = *machine.0.now.lock() + time;
        machine.0.timers.lock().push(end);
        std::future::poll_fn(
            move |_| if *machine.0.now.lock() >= end { Poll::Ready(()) } else { Poll::Pending },
        )
        .boxed()
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}
