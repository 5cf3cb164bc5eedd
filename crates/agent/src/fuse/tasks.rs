//! Runs the requests of a frontend, and counts them as foreground activity.
//!
//! Background work of the node waits while a program waits. Services count the requests that reach them. Calls that pass through to
//! the shared file system reach no service, and are counted here.

use event_listener::{Event, listener};
use futures_util::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_io::Runtime;
use tameike_io::os::inline_blocking::InlineSpawner;
use tameike_server::cache::Activity;

/// Runs the requests of one frontend. Their futures take kilobytes: an `async` block around one would hold it twice (before its
/// first poll and after), and copy it.
pub struct Tasks {
    runtime: Runtime,
    spawner: InlineSpawner,
    activity: Option<Arc<Activity>>,
    /// Counts requests in flight, if someone waits for their end.
    in_flight: Option<Arc<InFlight>>,
}

impl Tasks {
    /// Requests count as foreground requests in `activity`, if given. Their calls may block at most `blocked_max` threads of the
    /// frontend at the same time.
    pub fn new(runtime: Runtime, activity: Option<Arc<Activity>>, blocked_max: usize) -> Self {
        let spawner = InlineSpawner::new(runtime.clone(), blocked_max);
        Self { runtime, spawner, activity, in_flight: None }
    }

    /// Counts requests from now on.
    pub(crate) fn count(&mut self) -> Arc<InFlight> {
        self.in_flight.get_or_insert_default().clone()
    }

    fn begin(&self) -> Option<Counted> {
        self.in_flight.as_ref().map(|in_flight| in_flight.begin())
    }

    /// Runtime for requests that wait for other programs, which do not count.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs a request to its end; see [`InlineSpawner::spawn`].
    pub fn spawn(&self, request: impl Future<Output = ()> + Send + 'static) {
        let foreground = self.activity.as_ref().map(Activity::begin);
        let counted = self.begin();
        self.spawner.spawn(request.map(move |()| drop((foreground, counted))));
    }

    /// Runs a request that may wait for other programs, and does not count as foreground.
    pub(crate) fn spawn_in_background(&self, request: impl Future<Output = ()> + Send + 'static) {
        let counted = self.begin();
        self.runtime.spawn(request.map(move |()| drop(counted)));
    }

    /// Runs a request to its end from a thread that must not block.
    pub(crate) fn spawn_apart(&self, request: impl Future<Output = ()> + Send + 'static) {
        let foreground = self.activity.as_ref().map(Activity::begin);
        self.runtime.spawn(request.map(move |()| drop(foreground)));
    }

    /// Runs a request that blocks this thread; see [`InlineSpawner::wait`].
    pub fn wait<T>(&self, request: impl FnOnce() -> T) -> T {
        let _foreground = self.activity.as_ref().map(Activity::begin);
        self.spawner.wait(request)
    }
}

/// Number of requests in flight.
#[derive(Default)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    over: Event,
}

/// A request in flight, until dropped.
struct Counted(Arc<InFlight>);

impl InFlight {
    fn begin(self: &Arc<Self>) -> Counted {
        self.count.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }

    /// Waits until no request is in flight.
    pub(crate) async fn ended(&self) {
        loop {
            listener!(self.over => over);
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            over.await;
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.over.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tameike_io::os::runtime::promise;
    use tameike_io::os::system::System;

    /// The flusher took the node for idle while a program waited for the shared file system.
    #[test]
    fn the_node_is_not_idle_during_a_request() {
        let system = System::start(1).expect("a system");
        let activity = Activity::new(system.runtime().clone(), Duration::ZERO);
        let tasks = Tasks::new(system.runtime().clone(), Some(activity.clone()), 1);
        assert!(activity.is_quiet());
        let (answer, waits) = promise();
        tasks.spawn(waits);
        assert!(!activity.is_quiet(), "a request waits");
        answer.resolve(());
        pollster::block_on(activity.until_quiet());
        assert!(!tasks.wait(|| activity.is_quiet()), "a write is in progress");
        assert!(activity.is_quiet());
    }
}
