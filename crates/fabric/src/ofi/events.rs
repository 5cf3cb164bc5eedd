//! Results of the operations of an endpoint, delivered while no lock is held.

use super::endpoint::MemoryKey;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::runtime::Resolver;
use tameike_io::slab::Frame;

/// The number of another endpoint's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(super) u64);

pub(super) type Done = Resolver<Result<()>>;
pub(super) type Filled = Resolver<(Frame, Result<()>)>;

/// Receives packets and events. Called without locks, on any thread that drives the endpoint; must not block.
pub(crate) trait Arrivals: Send + Sync {
    /// Handles a packet of any sender.
    fn packet(&self, packet: Vec<u8>);
    /// Called after an operation on the route was posted or is still in flight: the peer may need a doorbell to make progress.
    fn posted(&self, route: RouteId);
    /// Handles the failure of a route.
    fn broken(&self, route: RouteId, why: &str);
    /// Handles the close of the endpoint with all its routes.
    fn closed(&self, why: &str);
}

pub(super) enum Job {
    Send { packet: Vec<u8>, done: Option<Done> },
    Read { frame: Frame, length: u32, from: MemoryKey, filled: Filled },
}

/// Results to deliver once no lock is held.
#[derive(Default)]
pub(super) struct Events {
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) sent: Vec<(Done, Result<()>)>,
    pub(super) filled: Vec<(Filled, Frame, Result<()>)>,
    /// Routes on which a queued operation was posted.
    pub(super) posted: Vec<RouteId>,
    /// Routes that have failed, with the reason.
    pub(super) failed: Vec<(RouteId, String)>,
    /// Set if the endpoint has failed.
    pub(super) broken: Option<String>,
}

pub(super) fn ended() -> Fault {
    Fault::new(Errno::ECONNRESET, "the route through libfabric is closed")
}

pub(super) fn broken(why: &str) -> Fault {
    Fault::new(Errno::ECONNRESET, format!("libfabric: {why}"))
}

impl Events {
    pub(super) fn fail(&mut self, route: RouteId, why: String) -> Fault {
        let fault = broken(&why);
        self.failed.push((route, why));
        fault
    }

    pub(super) fn take(&mut self, job: Job, fault: &Fault) {
        match job {
            Job::Send { done, .. } => self.sent.extend(done.map(|done| (done, Err(fault.clone())))),
            Job::Read { frame, filled, .. } => self.filled.push((filled, frame, Err(fault.clone()))),
        }
    }
}
