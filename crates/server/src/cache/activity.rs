//! Tracks foreground requests, so that background work runs only while the node is idle.
//!
//! Background work runs only after a quiet period without foreground requests. A task that waits for it does not poll: the end of
//! the last request wakes it.

use event_listener::Event;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::wire::unit::UnitRequest;
use tameike_io::Runtime;

struct Load {
    in_flight: u32,
    ended: Duration,
}

/// Foreground requests in flight on this node, and bytes that it flushed.
pub struct Activity {
    runtime: Runtime,
    quiet: Duration,
    load: Mutex<Load>,
    idle: Event,
    flushed_bytes: AtomicU64,
}

/// A foreground request in flight, until dropped.
pub struct Foreground(Arc<Activity>);

impl Activity {
    /// Creates an idle node. Background work waits until `quiet` has passed without a foreground request.
    pub fn new(runtime: Runtime, quiet: Duration) -> Arc<Self> {
        let load = Mutex::new(Load { in_flight: 0, ended: runtime.clock.monotonic() });
        Arc::new(Self { runtime, quiet, load, idle: Event::new(), flushed_bytes: AtomicU64::new(0) })
    }

    /// Counts a foreground request as in flight until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> Foreground {
        self.load.lock().in_flight += 1;
        Foreground(self.clone())
    }

    /// Counts `request` as in flight if a program waits for it.
    pub fn of_request(self: &Arc<Self>, request: &Request) -> Option<Foreground> {
        let background = match request {
            Request::Admin(_)
            | Request::Client(_)
            | Request::Lock(_)
            | Request::Pack(_)
            | Request::Region(_)
            | Request::Replica(_)
            | Request::Reclaim(_) => true,
            Request::Unit(request) => matches!(
                request,
                UnitRequest::Flush { .. }
                    | UnitRequest::Save { .. }
                    | UnitRequest::MarkClean { .. }
                    | UnitRequest::Digest { .. }
                    | UnitRequest::DirtyInodes { .. }
                    | UnitRequest::Load { .. }
            ),
            Request::Cache(request) => matches!(
                request,
                CacheRequest::Writeback { .. }
                    | CacheRequest::Progress
                    | CacheRequest::Open { holds: false, .. }
            ),
            Request::Meta(_) => false,
        };
        (!background).then(|| self.begin())
    }

    /// Time until background work may run; `None` while a request is in flight.
    fn quiet_in(&self) -> Option<Duration> {
        let load = self.load.lock();
        let since = self.runtime.clock.monotonic().saturating_sub(load.ended);
        (load.in_flight == 0).then(|| self.quiet.saturating_sub(since))
    }

    /// Returns true if background work may run now.
    pub fn is_quiet(&self) -> bool {
        self.quiet_in() == Some(Duration::ZERO)
    }

    /// Waits until background work may run.
    pub async fn until_quiet(&self) {
        loop {
            let listener = self.idle.listen();
            match self.quiet_in() {
                Some(Duration::ZERO) => return,
                Some(rest) => self.runtime.sleep(rest).await,
                None => listener.await,
            }
        }
    }

    /// Counts bytes that this node wrote to the shared file system.
    pub fn add_flushed(&self, bytes: u64) {
        self.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that this node has written to the shared file system since it started.
    pub fn flushed_bytes(&self) -> u64 {
        self.flushed_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let ended = self.0.runtime.clock.monotonic();
        let mut load = self.0.load.lock();
        load.in_flight -= 1;
        load.ended = ended;
        let last = load.in_flight == 0;
        drop(load);
        if last {
            self.0.idle.notify(usize::MAX);
        }
    }
}
