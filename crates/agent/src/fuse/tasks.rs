//! Requests of a door on their way: where they run, and that they are seen.
//!
//! Background work of the node waits while a program waits. Services see the requests that reach them; calls that
//! pass through to the shared file system reach none, and are seen here.

use futures_util::FutureExt;
use std::sync::Arc;
use tameike_io::Runtime;
use tameike_io::os::lending::Lender;
use tameike_server::cache::Activity;

/// Runs the requests of one door. Their futures have kilobytes: an `async` block around one would hold it twice, before its
/// first poll and after, and copy it in between.
pub struct Tasks {
    runtime: Runtime,
    lender: Lender,
    activity: Option<Arc<Activity>>,
}

impl Tasks {
    /// Requests count as foreground requests in `activity`, if there is one; at most `lent_max` threads of the door are
    /// held up by their calls at the same time.
    pub fn new(runtime: Runtime, activity: Option<Arc<Activity>>, lent_max: usize) -> Self {
        let lender = Lender::new(runtime.clone(), lent_max);
        Self { runtime, lender, activity }
    }

    /// For requests that wait for other programs, which do not count.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs a request to its end; see [`Lender::spawn`].
    pub fn spawn(&self, request: impl Future<Output = ()> + Send + 'static) {
        let foreground = self.activity.as_ref().map(Activity::begin);
        self.lender.spawn(request.map(move |()| drop(foreground)));
    }

    /// Runs a request to its end, on a thread that must not be held up.
    pub(crate) fn spawn_apart(&self, request: impl Future<Output = ()> + Send + 'static) {
        let foreground = self.activity.as_ref().map(Activity::begin);
        self.runtime.spawn(request.map(move |()| drop(foreground)));
    }

    /// Runs a request that holds this thread up; see [`Lender::wait`].
    pub fn wait<T>(&self, request: impl FnOnce() -> T) -> T {
        let _foreground = self.activity.as_ref().map(Activity::begin);
        self.lender.wait(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tameike_io::os::runtime::promise;
    use tameike_io::os::system::System;

    /// A program that waited for the shared file system alone was not seen: the flusher took the node for quiet.
    #[test]
    fn a_request_keeps_the_node_from_being_quiet_until_it_ends() {
        let system = System::start(1).expect("a system");
        let activity = Activity::new(system.runtime().clone(), Duration::ZERO);
        let tasks = Tasks::new(system.runtime().clone(), Some(activity.clone()), 1);
        assert!(activity.is_quiet());
        let (answer, waits) = promise();
        tasks.spawn(waits);
        assert!(!activity.is_quiet(), "a request waits");
        answer.resolve(());
        pollster::block_on(activity.until_quiet());
        assert!(!tasks.wait(|| activity.is_quiet()), "a write is on its way");
        assert!(activity.is_quiet());
    }
}
