//! A deterministic runtime on simulated time: one thread and one seed.
//!
//! Tasks run in the order of their wake-ups, or in an order that the seed determines ([`Simulation::shuffled`]). Time stands
//! still while anything can run, and then jumps to the next timer. Several nodes can be simulated at once, and each can be killed
//! with its tasks. Tests and the simulated cluster run on it.

use super::runtime::{Clock, Executor, Random, Runtime};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tameike_core::Timestamp;

/// Time of day at the start of every simulation: 2020-01-01 UTC.
const WALL_START_SECONDS: i64 = 1_577_836_800;
/// Steps of one run after which the awaited event counts as impossible.
const STEPS_MAX: u64 = 10_000_000;

type Job = Box<dyn FnOnce() + Send>;

enum Ready {
    /// A task by its number.
    Task(u64),
    /// The future of [`Simulation::run`], by its flag.
    Awaited(Arc<AtomicBool>),
    /// A blocking job of a node.
    Job(usize, Job),
}

struct Task {
    node: usize,
    /// Removed while it runs.
    future: Option<BoxFuture<'static, ()>>,
}

#[derive(Default)]
struct State {
    shuffled: bool,
    now: Duration,
    ready: VecDeque<Ready>,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    sleepers: BTreeMap<(Duration, u64), Waker>,
    next_sleeper: u64,
    random: u64,
    /// Killed nodes whose tasks still exist.
    killed: Vec<usize>,
    /// Nodes whose tasks do not run, and what they would run.
    stopped: BTreeMap<usize, Vec<Ready>>,
}

impl State {
    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// The next thing to run of a node that is not stopped.
    fn next_ready(&mut self) -> Option<Ready> {
        loop {
            let ready = self.next_of_all()?;
            let node = match &ready {
                Ready::Task(id) => self.tasks.get(id).map(|task| task.node),
                Ready::Job(node, _) => Some(*node),
                Ready::Awaited(_) => None,
            };
            match node.and_then(|node| self.stopped.get_mut(&node)) {
                Some(waiting) => waiting.push(ready),
                None => return Some(ready),
            }
        }
    }

    fn next_of_all(&mut self) -> Option<Ready> {
        if self.shuffled && self.ready.len() > 1 {
            let turn = self.random() % self.ready.len() as u64;
            return self.ready.swap_remove_back(turn as usize);
        }
        self.ready.pop_front()
    }
}

/// The simulation, with a [`Runtime`] for each node.
#[derive(Clone, Default)]
pub struct Simulation(Arc<Mutex<State>>);

impl Simulation {
    /// A simulation whose random numbers follow from `seed`. Blocking jobs run at once.
    pub fn new(seed: u64) -> Self {
        let simulation = Self::default();
        simulation.0.lock().random = seed;
        simulation
    }

    /// A simulation in which `seed` also determines the order of tasks. Blocking jobs are scheduled like tasks.
    pub fn shuffled(seed: u64) -> Self {
        let simulation = Self::new(seed);
        simulation.0.lock().shuffled = true;
        simulation
    }

    /// The runtime of node 0, for product code.
    pub fn runtime(&self) -> Runtime {
        self.runtime_of(0)
    }

    /// The runtime of a node. Its tasks end with the node.
    pub fn runtime_of(&self, node: usize) -> Runtime {
        let parts = Arc::new(self.clone());
        let executor = Arc::new(Node { simulation: self.clone(), node });
        Runtime { clock: parts.clone(), random: parts, executor }
    }

    /// Draws a random number below `bound`.
    pub fn draw(&self, bound: u64) -> u64 {
        (self.0.lock().random() >> 11) % bound
    }

    /// Runs until `future` completes.
    ///
    /// # Panics
    /// On a deadlock (nothing can run, no timer is set), or if the future does not complete in [`STEPS_MAX`] steps.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let flag = Arc::new(AtomicBool::new(true));
        let waker = Waker::from(Arc::new(AwaitedWaker { simulation: self.clone(), flag: flag.clone() }));
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < STEPS_MAX, "no result after {STEPS_MAX} steps");
            if flag.swap(false, Ordering::SeqCst) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return output;
                }
            } else {
                assert!(self.step(), "deadlock: nothing can run and no timer is set");
            }
        }
    }

    /// Completes after `time`.
    pub fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let until = self.0.lock().now + time;
        Box::pin(Sleep { simulation: self.clone(), until, place: None })
    }

    /// Advances the time, and runs everything that happens meanwhile.
    pub fn rest(&self, time: Duration) {
        self.run(self.sleep(time));
    }

    /// Runs until nothing can run without advancing the time.
    pub fn settle(&self) {
        while self.run_one() {}
    }

    /// Runs until no task is left.
    ///
    /// # Panics
    /// If tasks wait or run forever.
    pub fn finish(&self) {
        for steps in 0_u64.. {
            assert!(steps < STEPS_MAX, "tasks run forever");
            self.bury();
            if self.0.lock().tasks.is_empty() {
                return;
            }
            assert!(self.step(), "tasks wait forever");
        }
    }

    /// Runs one task, or advances the time to the next timer. False if neither exists.
    pub fn step(&self) -> bool {
        self.run_one() || self.wake_next()
    }

    /// Runs up to `count` steps without advancing the time. True if there was nothing left to run.
    pub fn steps(&self, count: u64) -> bool {
        !(0..count).all(|_| self.run_one())
    }

    /// Ends all tasks and jobs. A running task ends at its next wait.
    pub fn kill(&self) {
        let mut state = self.0.lock();
        let ended = (std::mem::take(&mut state.tasks), std::mem::take(&mut state.ready));
        drop(state);
        drop(ended);
    }

    /// Ends the tasks and jobs of a node before anything else runs.
    pub fn kill_node(&self, node: usize) {
        self.0.lock().killed.push(node);
    }

    /// Stops the tasks and jobs of a node, as SIGSTOP does, until [`Self::continue_node`].
    pub fn stop_node(&self, node: usize) {
        self.0.lock().stopped.entry(node).or_default();
    }

    /// Continues a stopped node.
    pub fn continue_node(&self, node: usize) {
        let mut state = self.0.lock();
        let waiting = state.stopped.remove(&node).unwrap_or_default();
        state.ready.extend(waiting);
    }

    /// Drops the tasks and jobs of killed nodes.
    pub fn bury(&self) {
        let mut state = self.0.lock();
        let killed = std::mem::take(&mut state.killed);
        if killed.is_empty() {
            return;
        }
        let (dead, alive): (BTreeMap<_, _>, _) =
            std::mem::take(&mut state.tasks).into_iter().partition(|(_, task)| killed.contains(&task.node));
        state.tasks = alive;
        let is_dead = |ready: &Ready| matches!(ready, Ready::Job(node, _) if killed.contains(node));
        let (jobs, ready): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.ready).into_iter().partition(is_dead);
        state.ready = ready;
        state.stopped.retain(|node, _| !killed.contains(node));
        drop(state);
        // Their drop may wake other tasks.
        drop((dead, jobs));
    }

    fn run_one(&self) -> bool {
        self.bury();
        let ready = self.0.lock().next_ready();
        match ready {
            None => return false,
            Some(Ready::Task(id)) => self.poll(id),
            Some(Ready::Awaited(flag)) => flag.store(true, Ordering::SeqCst),
            Some(Ready::Job(_, job)) => job(),
        }
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
        // The future is out of the table while it runs, so that it may spawn and wake tasks.
        let future = self.0.lock().tasks.get_mut(&id).and_then(|task| task.future.take());
        let Some(mut future) = future else { return };
        let waker = Waker::from(Arc::new(TaskWaker { simulation: self.clone(), id }));
        let ended = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.0.lock();
        if ended {
            state.tasks.remove(&id);
        } else if let Some(task) = state.tasks.get_mut(&id) {
            task.future = Some(future);
            return;
        }
        drop(state);
        drop(future);
    }
}

struct TaskWaker {
    simulation: Simulation,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut state = self.simulation.0.lock();
        if !state.ready.iter().any(|ready| matches!(ready, Ready::Task(id) if *id == self.id)) {
            state.ready.push_back(Ready::Task(self.id));
        }
    }
}

struct AwaitedWaker {
    simulation: Simulation,
    flag: Arc<AtomicBool>,
}

impl Wake for AwaitedWaker {
    fn wake(self: Arc<Self>) {
        let mut state = self.simulation.0.lock();
        let is_this = |ready: &Ready| matches!(ready, Ready::Awaited(flag) if Arc::ptr_eq(flag, &self.flag));
        if !state.ready.iter().any(is_this) {
            state.ready.push_back(Ready::Awaited(self.flag.clone()));
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
        bytes.iter_mut().for_each(|byte| *byte = state.random() as u8);
    }
}

struct Node {
    simulation: Simulation,
    node: usize,
}

impl Executor for Node {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let id = {
            let mut state = self.simulation.0.lock();
            let id = state.next_task;
            state.next_task += 1;
            state.tasks.insert(id, Task { node: self.node, future: Some(task) });
            if let Some(waiting) = state.stopped.get_mut(&self.node) {
                waiting.push(Ready::Task(id));
                return;
            }
            id
        };
        self.simulation.poll(id);
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.simulation.sleep(time)
    }

    fn block(&self, job: Job) {
        {
            let mut state = self.simulation.0.lock();
            if state.shuffled || state.stopped.contains_key(&self.node) {
                state.ready.push_back(Ready::Job(self.node, job));
                return;
            }
        }
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
    fn a_timeout_ends_a_pending_future() {
        let simulation = Simulation::new(1);
        let runtime = simulation.runtime();
        let outcome = simulation
            .run(async move { runtime.timeout(Duration::from_secs(1), std::future::pending::<()>()).await });
        assert_eq!(outcome, None);
    }

    #[test]
    fn a_seed_determines_the_order_and_a_node_ends_with_its_tasks() {
        let run = |seed| {
            let simulation = Simulation::shuffled(seed);
            let log = Arc::new(Mutex::new(Vec::new()));
            for number in 0..6 {
                let (runtime, log) = (simulation.runtime_of(number % 2), log.clone());
                runtime.clone().spawn(async move {
                    runtime.sleep(Duration::from_secs(number as u64 / 4)).await;
                    let number = runtime.block(move || number).await;
                    log.lock().push(number);
                });
            }
            simulation.rest(Duration::from_millis(1));
            simulation.kill_node(1);
            simulation.finish();
            std::mem::take(&mut *log.lock())
        };
        let orders: std::collections::BTreeSet<_> = (0..50).map(run).collect();
        assert_eq!(run(7), run(7));
        assert!(orders.len() > 5, "{orders:?}");
        for order in orders {
            assert!(order.contains(&4) && !order.contains(&5), "node 1 was killed before: {order:?}");
        }
    }
}
