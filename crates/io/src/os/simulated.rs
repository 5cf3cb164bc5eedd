//! A runtime on simulated time: one thread, one seed, the same run every time.
//!
//! Tasks run in the order in which they were woken. Time stands still while anything can run, and then jumps
//! to the next sleeper. Blocking jobs run at once. It is what tests and the simulated cluster run on.

use super::runtime::{Clock, Executor, Random, Runtime};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tameike_core::Timestamp;

/// Time of day at the start of every simulation: 2020-01-01 UTC.
const WALL_START_SECONDS: i64 = 1_577_836_800;

#[derive(Default)]
struct State {
    now: Duration,
    ready: VecDeque<u64>,
    tasks: BTreeMap<u64, BoxFuture<'static, ()>>,
    next_task: u64,
    sleepers: BTreeMap<(Duration, u64), Waker>,
    next_sleeper: u64,
    random: u64,
}

/// The simulated machine behind a [`Runtime`].
#[derive(Clone, Default)]
pub struct Simulation(Arc<Mutex<State>>);

impl Simulation {
    /// A simulation whose random numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let simulation = Self::default();
        simulation.0.lock().random = seed;
        simulation
    }

    /// The runtime for product code.
    pub fn runtime(&self) -> Runtime {
        let parts = Arc::new(self.clone());
        Runtime { clock: parts.clone(), random: parts.clone(), executor: parts }
    }

    /// Runs until `future` ends.
    ///
    /// # Panics
    /// When nothing can run, nobody sleeps, and the future has not ended: a deadlock.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        self.spawn(Box::pin(async move {
            let output = future.await;
            *slot.lock() = Some(output);
        }));
        loop {
            if let Some(output) = result.lock().take() {
                return output;
            }
            assert!(self.step(), "nothing can run and nobody sleeps, but the future has not ended");
        }
    }

    /// Runs until nothing can run any more without time going on.
    pub fn settle(&self) {
        while self.run_one() {}
    }

    /// Runs one task, or lets time go on to the next sleeper; `false` when there is neither.
    pub fn step(&self) -> bool {
        self.run_one() || self.wake_next()
    }

    fn run_one(&self) -> bool {
        let Some(id) = self.0.lock().ready.pop_front() else { return false };
        self.poll(id);
        true
    }

    fn wake_next(&self) -> bool {
        let waker = {
            let mut state = self.0.lock();
            let Some(((time, _), waker)) = state.sleepers.pop_first() else { return false };
            state.now = state.now.max(time);
            waker
        };
        waker.wake();
        true
    }

    fn poll(&self, id: u64) {
        // The task is out of the table while it runs, so that it may spawn and wake others.
        let Some(mut task) = self.0.lock().tasks.remove(&id) else { return };
        let waker = Waker::from(Arc::new(TaskWaker { simulation: self.clone(), id }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.0.lock().tasks.insert(id, task);
        }
    }
}

struct TaskWaker {
    simulation: Simulation,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut state = self.simulation.0.lock();
        if !state.ready.contains(&self.id) {
            state.ready.push_back(self.id);
        }
    }
}

impl Clock for Simulation {
    fn monotonic(&self) -> Duration {
        self.0.lock().now
    }

    fn wall(&self) -> Timestamp {
        let now = self.0.lock().now;
        Timestamp { seconds: WALL_START_SECONDS + now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
    }
}

impl Random for Simulation {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock();
        for byte in bytes {
            // SplitMix64 (Steele, Lea, Flood 2014).
            state.random = state.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = state.random;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            *byte = (mixed ^ (mixed >> 31)) as u8;
        }
    }
}

impl Executor for Simulation {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let id = {
            let mut state = self.0.lock();
            let id = state.next_task;
            state.next_task += 1;
            state.tasks.insert(id, task);
            id
        };
        self.poll(id);
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let until = self.0.lock().now + time;
        Box::pin(Sleep { simulation: self.clone(), until, place: None })
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

struct Sleep {
    simulation: Simulation,
    until: Duration,
    place: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let simulation = self.simulation.clone();
        let mut state = simulation.0.lock();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        let place = *self.place.get_or_insert_with(|| {
            state.next_sleeper += 1;
            state.next_sleeper
        });
        state.sleepers.insert((self.until, place), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.simulation.0.lock().sleepers.remove(&(self.until, place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_jumps_to_the_next_sleeper_and_order_is_kept() {
        let run = || {
            let simulation = Simulation::new(1);
            let (runtime, log) = (simulation.runtime(), Arc::new(Mutex::new(Vec::new())));
            for (name, seconds) in [("a", 3), ("b", 1), ("c", 2)] {
                let (sleep, log) = (runtime.sleep(Duration::from_secs(seconds)), log.clone());
                runtime.spawn(async move {
                    sleep.await;
                    log.lock().push(name);
                });
            }
            let clock = runtime.clone();
            let end = simulation.run(async move {
                clock.sleep(Duration::from_secs(5)).await;
                clock.clock.monotonic()
            });
            assert_eq!(end, Duration::from_secs(5));
            let order = log.lock().clone();
            (order, runtime.random_u64())
        };
        assert_eq!(run(), run());
        assert_eq!(run().0, ["b", "c", "a"]);
    }

    #[test]
    fn a_timeout_ends_what_does_not_end_by_itself() {
        let simulation = Simulation::new(1);
        let runtime = simulation.runtime();
        let outcome = simulation
            .run(async move { runtime.timeout(Duration::from_secs(1), std::future::pending::<()>()).await });
        assert_eq!(outcome, None);
    }
}
