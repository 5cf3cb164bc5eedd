//! Time, randomness and tasks as parameters.
//!
//! Product code holds a [`Runtime`]. A real agent builds it on the reactor, and a simulated cluster on simulated time and one
//! seed. Futures are `Send`, and no lock is held across an `await`.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tameike_core::Timestamp;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Monotonic time since an arbitrary start.
    fn monotonic(&self) -> Duration;
    /// The current time of day.
    fn wall(&self) -> Timestamp;
}

/// A source of random bytes.
pub trait Random: Send + Sync {
    /// Fills `bytes` with random bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// An executor of tasks.
pub trait Executor: Send + Sync {
    /// Runs `task`. Polls it for the first time before it returns, on the calling thread, so that work without waits needs no
    /// thread switch.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Completes after `time`.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
    /// Runs `job`, which may block, where it delays nothing else.
    fn block(&self, job: Box<dyn FnOnce() + Send>);
}

/// Clock, randomness and executor together.
#[derive(Clone)]
pub struct Runtime {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of random bytes.
    pub random: Arc<dyn Random>,
    /// The executor.
    pub executor: Arc<dyn Executor>,
}

impl Runtime {
    /// Runs `task`, and polls it for the first time at once.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.executor.spawn(Box::pin(task));
    }

    /// Completes after `time`.
    pub fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.executor.sleep(time)
    }

    /// The current time of day.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// A random number.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Runs `job`, which may block, on a thread for blocking calls, and returns its result.
    pub fn block<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Promise<T> {
        let (resolver, promise) = promise();
        self.executor.block(Box::new(move || resolver.resolve(job())));
        promise
    }

    /// Completes with the result of `future`, or drops it and completes with `None` after `time`.
    pub async fn timeout<F: Future + Send>(&self, time: Duration, future: F) -> Option<F::Output> {
        use futures_util::future::{Either, select};
        match select(std::pin::pin!(future), self.sleep(time)).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(((), _)) => None,
        }
    }
}

struct Shared<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A value that another task or thread will provide.
pub struct Promise<T>(Arc<Mutex<Shared<T>>>);

/// The producer of a [`Promise`]. Its drop without a value leaves the promise pending forever, so waits on something that can
/// fail need a time limit.
pub struct Resolver<T>(Arc<Mutex<Shared<T>>>);

/// Creates a promise and its resolver.
pub fn promise<T>() -> (Resolver<T>, Promise<T>) {
    let shared = Arc::new(Mutex::new(Shared { value: None, waker: None }));
    (Resolver(shared.clone()), Promise(shared))
}

impl<T> Resolver<T> {
    /// Sets the value and wakes the waiting task.
    pub fn resolve(self, value: T) {
        let waker = {
            let mut shared = self.0.lock();
            shared.value = Some(value);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Promise<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut shared = self.0.lock();
        match shared.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Yields to other tasks once.
pub async fn yield_now() {
    let mut given = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
