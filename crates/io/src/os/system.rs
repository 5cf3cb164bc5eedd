//! The real runtime: the system's clocks and randomness, one reactor thread, and a pool for blocking calls.

use super::inline_blocking;
use super::pool::{self, BlockingPool};
use super::process;
use super::reactor::task::Task;
use super::reactor::{Reactor, Sleep};
use super::runtime::{Clock, Executor, Random, Runtime};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_core::Timestamp;

/// The kernel's clocks and its source of random bytes.
struct Kernel;

impl Clock for Kernel {
    fn monotonic(&self) -> Duration {
        process::monotonic()
    }

    fn wall(&self) -> Timestamp {
        process::wall()
    }
}

impl Random for Kernel {
    #[expect(clippy::disallowed_methods, reason = "this is the parameter's real side")]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the kernel returns random bytes after boot");
    }
}

struct SystemExecutor {
    reactor: Arc<Reactor>,
    pool: BlockingPool,
}

impl Executor for SystemExecutor {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        inline_blocking::first_poll(|| Task::spawn(&self.reactor, task));
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep::new(self.reactor.clone(), time))
    }

    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        if inline_blocking::is_taken() { pool::run_job(job) } else { self.pool.run(job) }
    }
}

/// Owns the threads of the real runtime. Its drop stops them.
pub struct System {
    executor: Arc<SystemExecutor>,
    runtime: Runtime,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl System {
    /// Starts the reactor's thread. Blocking calls start up to `blocking_threads_max` more.
    pub fn start(blocking_threads_max: usize) -> std::io::Result<Self> {
        let reactor = Reactor::new()?;
        let pool = BlockingPool::new(blocking_threads_max);
        let executor = Arc::new(SystemExecutor { reactor: reactor.clone(), pool });
        let runtime =
            Runtime { clock: Arc::new(Kernel), random: Arc::new(Kernel), executor: executor.clone() };
        let thread =
            std::thread::Builder::new().name("tameike-reactor".into()).spawn(move || reactor.run())?;
        Ok(Self { executor, runtime, thread: Mutex::new(Some(thread)) })
    }

    /// Clock, randomness and executor.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The reactor, for the registration of descriptors.
    pub fn reactor(&self) -> &Arc<Reactor> {
        &self.executor.reactor
    }

    /// Runs the queued blocking calls, ends all threads and joins them. Tasks are not polled any more.
    pub fn stop(&self) {
        self.executor.pool.stop();
        self.executor.reactor.stop();
        let Some(thread) = self.thread.lock().take() else { return };
        // A task may itself stop the system; a thread cannot join itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("the reactor's thread ended in a panic");
        }
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.stop();
    }
}
