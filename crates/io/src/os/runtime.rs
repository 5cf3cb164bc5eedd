//! Time, randomness and tasks as parameters.
//!
//! [`Runtime`] is what product code holds. A real agent builds it on the reactor; a simulated cluster
//! builds it on simulated time and one seed. Futures are `Send`, and no lock is held across an `await`.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tameike_core::Timestamp;

/// Reads clocks.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start; never goes back.
    fn monotonic(&self) -> Duration;
    /// Time of day.
    fn wall(&self) -> Timestamp;
}

/// Draws random bytes.
pub trait Random: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// Runs tasks.
pub trait Executor: Send + Sync {
    /// Runs `task` to its end. It is polled for the first time before this returns, on the calling thread,
    /// so that work which need not wait meets no hop between threads.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Ends after `time`.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
    /// Runs `job`, which may block, where it holds up nothing else.
    fn block(&self, job: Box<dyn FnOnce() + Send>);
}

/// Clock, randomness and executor together.
#[derive(Clone)]
pub struct Runtime {
    /// Reads clocks.
    pub clock: Arc<dyn Clock>,
    /// Draws random bytes.
    pub random: Arc<dyn Random>,
    /// Runs tasks.
    pub executor: Arc<dyn Executor>,
}

impl Runtime {
    /// Runs `task` to its end; it is polled for the first time at once.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.executor.spawn(Box::pin(task));
    }

    /// Ends after `time`.
    pub fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.executor.sleep(time)
    }

    /// Time of day.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// A random number.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Runs `job`, which may block, apart, and waits for its result.
    pub fn block<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Promise<T> {
        let (resolver, promise) = promise();
        self.executor.block(Box::new(move || resolver.resolve(job())));
        promise
    }

    /// Ends with the result of `future`, or with `None` when `time` passes first; `future` is then dropped.
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

/// A value that comes later, from any thread.
pub struct Promise<T>(Arc<Mutex<Shared<T>>>);

/// The other end of a [`Promise`]. Dropped without a value, it leaves the promise waiting for ever; whoever
/// waits on something that can die sets a time limit.
pub struct Resolver<T>(Arc<Mutex<Shared<T>>>);

/// A promise and its resolver.
pub fn promise<T>() -> (Resolver<T>, Promise<T>) {
    let shared = Arc::new(Mutex::new(Shared { value: None, waker: None }));
    (Resolver(shared.clone()), Promise(shared))
}

impl<T> Resolver<T> {
    /// Gives the value and wakes who waits.
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

/// Lets other tasks run before this one goes on.
pub async fn give_way() {
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
