//! A machine of one thread: tasks, blocking calls and timers, in an order that one seed decides.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tameike_core::Timestamp;
use tameike_io::Runtime;
use tameike_io::os::runtime::{Clock, Executor, Random, promise};

/// Steps after which whatever is waited for will never come.
const STEPS_MAX: u64 = 300_000;

enum Ready {
    Task(Arc<Task>),
    Job(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct State {
    ready: Vec<Ready>,
    timers: BTreeMap<(Duration, u64), Waker>,
    tasks: Vec<Weak<Task>>,
    now: Duration,
    chance: u64,
    timer_count: u64,
}

struct Task {
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    queued: AtomicBool,
    machine: Machine,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.machine.0.lock().ready.push(Ready::Task(self.clone()));
        }
    }
}

impl Task {
    fn poll(self: Arc<Self>) {
        self.queued.store(false, Ordering::SeqCst);
        let waker = Waker::from(self.clone());
        let mut place = self.future.lock();
        if let Some(future) = place.as_mut()
            && future.poll_unpin(&mut Context::from_waker(&waker)).is_ready()
        {
            *place = None;
        }
    }
}

#[derive(Clone)]
pub(super) struct Machine(Arc<Mutex<State>>);

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { chance: seed.wrapping_mul(2) | 1, ..State::default() })))
    }

    pub(super) fn runtime(&self) -> Runtime {
        Runtime {
            clock: Arc::new(self.clone()),
            random: Arc::new(self.clone()),
            executor: Arc::new(self.clone()),
        }
    }

    /// A number below `bound`.
    pub(super) fn draw(&self, bound: u64) -> u64 {
        let mut state = self.0.lock();
        state.chance ^= state.chance << 13;
        state.chance ^= state.chance >> 7;
        state.chance ^= state.chance << 17;
        (state.chance >> 11) % bound
    }

    fn step(&self) {
        let ready = {
            let count = self.0.lock().ready.len() as u64;
            if count == 0 { None } else { Some(self.draw(count) as usize) }
        };
        let Some(turn) = ready else { return self.pass_time() };
        let ready = self.0.lock().ready.swap_remove(turn);
        match ready {
            Ready::Task(task) => task.poll(),
            Ready::Job(job) => job(),
        }
    }

    fn pass_time(&self) {
        let waker = {
            let mut state = self.0.lock();
            let ((time, _), waker) = state.timers.pop_first().expect("everybody waits for ever");
            state.now = state.now.max(time);
            waker
        };
        waker.wake();
    }

    /// Runs everything until `future` ends.
    pub(super) fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        self.spawn(Box::pin(async move { *place.lock() = Some(future.await) }));
        for _ in 0..STEPS_MAX {
            if let Some(value) = result.lock().take() {
                return value;
            }
            self.step();
        }
        panic!("nothing comes of {STEPS_MAX} steps");
    }

    /// Lets time pass, with everything that happens in it.
    pub(super) fn rest(&self, time: Duration) {
        self.run(self.sleep(time));
    }

    /// Ends all tasks and calls where they are.
    pub(super) fn kill(&self) {
        let (ready, timers, tasks) = {
            let mut state = self.0.lock();
            let ready = std::mem::take(&mut state.ready);
            (ready, std::mem::take(&mut state.timers), std::mem::take(&mut state.tasks))
        };
        for task in tasks.iter().filter_map(Weak::upgrade) {
            let future = task.future.lock().take();
            drop(future);
        }
        drop((ready, timers));
    }

    /// Runs so many steps, or as many as there are; whether there were no more.
    pub(super) fn steps(&self, count: u64) -> bool {
        for _ in 0..count {
            if self.0.lock().ready.is_empty() {
                return true;
            }
            self.step();
        }
        false
    }

    /// Runs a random number of steps, at most `bound`.
    pub(super) fn some_steps(&self, bound: u64) {
        self.steps(self.draw(bound));
    }
}

impl Clock for Machine {
    fn monotonic(&self) -> Duration {
        self.0.lock().now
    }
    fn wall(&self) -> Timestamp {
        let now = self.monotonic();
        Timestamp { seconds: 1_700_000_000 + now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
    }
}

impl Random for Machine {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.draw(256) as u8);
    }
}

struct Sleep {
    machine: Machine,
    end: Duration,
    key: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> std::task::Poll<()> {
        let machine = self.machine.clone();
        let mut state = machine.0.lock();
        if state.now >= self.end {
            return std::task::Poll::Ready(());
        }
        state.timer_count += 1;
        let key = self.key.unwrap_or((self.end, state.timer_count));
        self.key = Some(key);
        state.timers.insert(key, context.waker().clone());
        std::task::Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.key.and_then(|key| self.machine.0.lock().timers.remove(&key));
        drop(waker);
    }
}

impl Executor for Machine {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let task = Arc::new(Task {
            future: Mutex::new(Some(task)),
            queued: AtomicBool::new(false),
            machine: self.clone(),
        });
        {
            let mut state = self.0.lock();
            state.tasks.retain(|task| task.strong_count() > 0);
            state.tasks.push(Arc::downgrade(&task));
        }
        task.poll();
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { machine: self.clone(), end: self.monotonic() + time, key: None })
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.lock().ready.push(Ready::Job(job));
    }
}

#[test]
fn tasks_calls_and_timers_all_run() {
    let machine = Machine::new(7);
    let runtime = machine.runtime();
    let (resolver, promise) = promise();
    let inner = runtime.clone();
    runtime.spawn(async move {
        inner.sleep(Duration::from_secs(3)).await;
        resolver.resolve(inner.block(|| 5).await);
    });
    assert_eq!(machine.run(promise), 5);
    assert_eq!(machine.monotonic(), Duration::from_secs(3));
}
