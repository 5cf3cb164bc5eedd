//! The runtime of one incarnation of an agent: clock, tasks and delays.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::Timestamp;
use tameike_io::Runtime;
use tameike_io::os::runtime::{Clock, Executor};
use tameike_io::os::simulated::Simulation;

pub(super) struct Machine {
    simulation: Simulation,
    inner: Runtime,
    alive: AtomicBool,
    slowness: Mutex<Duration>,
    skew: Duration,
}

impl Machine {
    pub fn new(simulation: &Simulation, incarnation: usize, slowness: Duration, skew: Duration) -> Arc<Self> {
        Arc::new(Self {
            simulation: simulation.clone(),
            inner: simulation.runtime_of(incarnation),
            alive: AtomicBool::new(true),
            slowness: Mutex::new(slowness),
            skew,
        })
    }

    pub fn runtime(self: &Arc<Self>) -> Runtime {
        Runtime { clock: self.clone(), random: self.inner.random.clone(), executor: self.clone() }
    }

    pub fn set_slowness(&self, slowness: Duration) {
        *self.slowness.lock() = slowness;
    }

    /// Drops all later tasks.
    pub fn stop(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }
}

impl Clock for Machine {
    fn monotonic(&self) -> Duration {
        self.inner.clock.monotonic()
    }

    fn wall(&self) -> Timestamp {
        let now = self.inner.clock.wall();
        let nanoseconds = now.nanoseconds + self.skew.subsec_nanos();
        let seconds = now.seconds + self.skew.as_secs() as i64 + i64::from(nanoseconds / 1_000_000_000);
        Timestamp { seconds, nanoseconds: nanoseconds % 1_000_000_000 }
    }
}

impl Executor for Machine {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if self.alive.load(Ordering::SeqCst) {
            self.inner.executor.spawn(task);
        }
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.inner.executor.sleep(time)
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        let slowness = self.slowness.lock().as_nanos() as u64;
        if slowness == 0 {
            return self.inner.executor.block(job);
        }
        let waited = self.inner.sleep(Duration::from_nanos(self.simulation.draw(slowness)));
        self.spawn(Box::pin(async move {
            waited.await;
            job();
        }));
    }
}
