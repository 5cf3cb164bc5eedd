//! A pool of threads for blocking calls.
//!
//! A job that finds no idle thread starts one, up to a maximum; threads stay and sleep while idle. Jobs run in the order of
//! arrival. None is lost: a stopping pool runs its queue, and later jobs run on the caller's thread.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct BlockingPool {
    shared: Arc<Shared>,
    threads_max: usize,
}

impl BlockingPool {
    pub(super) fn new(threads_max: usize) -> Self {
        let state = State { jobs: VecDeque::new(), idle: 0, threads: Vec::new(), stopping: false };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
        Self { shared: Arc::new(shared), threads_max: threads_max.max(1) }
    }

    pub(super) fn run(&self, job: Job) {
        let mut state = self.shared.state.lock();
        if state.stopping {
            drop(state);
            return run_job(job);
        }
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            self.shared.changed.notify_one();
        } else if state.threads.len() < self.threads_max {
            let shared = self.shared.clone();
            match std::thread::Builder::new().name("tameike-block".into()).spawn(move || work(&shared)) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    log::error!("cannot start a thread for blocking calls: {error}");
                    let job = state.jobs.pop_back();
                    drop(state);
                    job.into_iter().for_each(run_job);
                }
                Err(_) => {} // the existing threads will run it
            }
        }
    }

    /// Runs the queue and ends the threads.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            self.shared.changed.notify_all();
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            // A job may itself stop the pool; a thread cannot join itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                log::error!("a thread for blocking calls ended in a panic");
            }
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            run_job(job);
            state = shared.state.lock();
        } else if state.stopping {
            return;
        } else {
            state.idle += 1;
            shared.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

pub(super) fn run_job(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        log::error!("a blocking call panicked; its caller gets no result");
    }
}
