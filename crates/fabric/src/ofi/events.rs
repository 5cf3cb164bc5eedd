//! Operations on an endpoint and their results, which are delivered when no lock is held.

use super::endpoint::MemoryKey;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::runtime::Resolver;
use tameike_io::slab::Frame;

/// The address of another endpoint in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(super) u64);

pub(super) type Done = Resolver<Result<()>>;
pub(super) type Filled = Resolver<(Frame, Result<()>)>;

/// Takes what arrives. Called with no lock held, on whatever thread has moved the endpoint; must not block.
pub(crate) trait Arrivals: Send + Sync {
    /// A packet, from anybody.
    fn packet(&self, packet: Vec<u8>);
    /// Something was posted there, or is still under way: the other end may have to look.
    fn posted(&self, route: RouteId);
    /// What leads there is broken.
    fn broken(&self, route: RouteId, why: &str);
    /// The endpoint is closed, and all routes with it.
    fn closed(&self, why: &str);
}

/// Something to post.
pub(super) enum Job {
    Send { packet: Vec<u8>, done: Option<Done> },
    Read { frame: Frame, length: u32, from: MemoryKey, filled: Filled },
}

/// What is to be told when no lock is held.
#[derive(Default)]
pub(super) struct Events {
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) sent: Vec<(Done, Result<()>)>,
    pub(super) filled: Vec<(Filled, Frame, Result<()>)>,
    /// Routes on which something was posted that had waited.
    pub(super) posted: Vec<RouteId>,
    /// Routes that have failed, and why.
    pub(super) failed: Vec<(RouteId, String)>,
    /// Why the endpoint is of no more use.
    pub(super) broken: Option<String>,
}

pub(super) fn ended() -> Fault {
    Fault::new(Errno::ECONNRESET, "the way through libfabric has ended")
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
