//! A machine of one thread for tests: tasks, timers and chance from one seed, and a death at will.

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

pub(crate) struct Machine {
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
    woken: Arc<Woken>,
    now: Mutex<Duration>,
    timers: Mutex<Vec<Duration>>,
    chance: Mutex<u64>,
}

#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Arc<Machine>);

impl Handle {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Machine {
            tasks: Mutex::default(),
            woken: Arc::default(),
            now: Mutex::default(),
            timers: Mutex::default(),
            chance: Mutex::new(seed | 1),
        }))
    }

    pub(crate) fn runtime(&self) -> Runtime {
        Runtime {
            clock: Arc::new(self.clone()),
            random: Arc::new(self.clone()),
            executor: Arc::new(self.clone()),
        }
    }

    /// A number below `bound`.
    pub(crate) fn draw(&self, bound: u64) -> u64 {
        let chance = &mut *self.0.chance.lock();
        *chance ^= *chance << 13;
        *chance ^= *chance >> 7;
        *chance ^= *chance << 17;
        *chance % bound
    }

    fn waker(&self) -> Waker {
        Waker::from(self.0.woken.clone())
    }

    fn poll_tasks(&self) {
        let mut tasks = std::mem::take(&mut *self.0.tasks.lock());
        if tasks.len() > 1 {
            let turn = self.draw(tasks.len() as u64) as usize;
            tasks.rotate_left(turn);
        }
        let waker = self.waker();
        tasks.retain_mut(|task| task.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        self.0.tasks.lock().append(&mut tasks);
    }

    /// Goes on to the next timer; false when there is none.
    fn pass_time(&self) -> bool {
        let timers = &mut *self.0.timers.lock();
        let Some(next) = timers.iter().min().copied() else { return false };
        timers.retain(|time| *time > next);
        *self.0.now.lock() = next;
        true
    }

    /// Runs `future` and the tasks until it ends.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = self.waker();
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

    /// Runs the tasks for some simulated time.
    pub(crate) fn rest(&self, time: Duration) {
        self.run(self.runtime().sleep(time));
    }

    /// Ends all tasks where they are.
    pub(crate) fn kill(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.lock());
        drop(tasks);
        self.0.timers.lock().clear();
    }
}

impl Clock for Handle {
    fn monotonic(&self) -> Duration {
        *self.0.now.lock()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }
}

impl Random for Handle {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.draw(256) as u8);
    }
}

impl Executor for Handle {
    fn spawn(&self, mut task: BoxFuture<'static, ()>) {
        if task.poll_unpin(&mut Context::from_waker(&self.waker())).is_pending() {
            self.0.tasks.lock().push(task);
        }
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let machine = self.0.clone();
        let end = *machine.now.lock() + time;
        machine.timers.lock().push(end);
        std::future::poll_fn(
            move |_| if *machine.now.lock() >= end { Poll::Ready(()) } else { Poll::Pending },
        )
        .boxed()
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}
