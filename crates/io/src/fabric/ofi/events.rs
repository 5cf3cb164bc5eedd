//! What is asked of an endpoint, and what has become of it: told when no lock is held.

use super::endpoint::MemoryKey;
use super::operations::RouteId;
use crate::os::runtime::Resolver;
use crate::slab::Frame;
use tameike_core::{Errno, Fault, Result};

pub(super) type Done = Resolver<Result<()>>;
pub(super) type Filled = Resolver<(Frame, Result<()>)>;

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
