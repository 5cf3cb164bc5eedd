//! Fault injection for the media of a node.

use crate::countdown::{Countdown, FaultKind, Medium};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::ops::Range;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::simulated::Simulation;

/// Bit rot hits one of this many recent writes, whose blocks are most likely still in use.
const RECENT: u64 = 8;

/// Failures per thousand calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// `EIO` of reads.
    pub reads: u32,
    /// `EIO` of writes, with partial effect.
    pub writes: u32,
    /// `EIO` of syncs.
    pub syncs: u32,
}

/// Injected bugs of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskCanary {
    /// Syncs succeed without effect.
    pub forgets_syncs: bool,
    /// Some writes also overwrite the blocks of an earlier write, as if two extents shared them.
    pub shares_blocks: bool,
    /// Failed calls return success.
    pub hides_failures: bool,
    /// Bit rot preserves checksums.
    pub hides_rot: bool,
}

/// Selects the calls that fail, for all media of a node.
pub(super) struct Control {
    node: NodeId,
    simulation: Simulation,
    countdown: Countdown,
    faults: Mutex<DiskFaults>,
    canary: DiskCanary,
    /// Ranges of all writes, as targets of bit rot.
    written: Mutex<Vec<Range<u64>>>,
}

impl Control {
    pub(super) fn new(
        node: NodeId,
        simulation: &Simulation,
        countdown: &Countdown,
        canary: DiskCanary,
    ) -> Self {
        Self {
            node,
            simulation: simulation.clone(),
            countdown: countdown.clone(),
            faults: Mutex::default(),
            canary,
            written: Mutex::default(),
        }
    }

    pub(super) fn set_faults(&self, faults: DiskFaults) {
        *self.faults.lock() = faults;
    }

    pub(super) fn canary(&self) -> DiskCanary {
        self.canary
    }

    pub(super) fn draw(&self, below: u64) -> u64 {
        self.simulation.draw(below)
    }

    fn happens(&self, of_a_thousand: u32) -> bool {
        of_a_thousand > 0 && self.draw(1000) < u64::from(of_a_thousand)
    }

    fn faults(&self) -> DiskFaults {
        *self.faults.lock()
    }

    /// Registers a call that only a countdown can fail, and returns the fault.
    pub(super) fn register(&self, what: &str, call: &str, faults: &'static [FaultKind]) -> Option<FaultKind> {
        self.countdown.register(Medium::Disk(self.node), faults, || format!("{what} {call}"))
    }

    /// Fails a call that a countdown hits.
    pub(super) fn check(&self, what: &str, call: &str) -> Result<()> {
        let hit = self.register(what, call, &[FaultKind::Fails]);
        hit.map_or(Ok(()), |_| Err(injected(call)))
    }

    /// Runs a call, unless a countdown hits it.
    pub(super) fn checked<T: Send + 'static>(
        &self,
        what: &str,
        call: &str,
        run: impl FnOnce() -> BoxFuture<'static, Result<T>>,
    ) -> BoxFuture<'static, Result<T>> {
        match self.check(what, call) {
            Ok(()) => run(),
            Err(fault) => async { Err(fault) }.boxed(),
        }
    }

    /// Runs a sync, unless a fault hits it; `forget` drops what is not durable.
    pub(super) fn sync(
        &self,
        what: &str,
        forget: impl FnOnce(),
        run: impl FnOnce() -> BoxFuture<'static, Result<()>>,
    ) -> BoxFuture<'static, Result<()>> {
        if self.canary.forgets_syncs {
            return async { Ok(()) }.boxed();
        }
        let hit = self.register(what, "sync", &[FaultKind::Fails, FaultKind::Forgotten]);
        match hit.or_else(|| self.happens(self.faults().syncs).then_some(FaultKind::Fails)) {
            Some(FaultKind::Forgotten) => forget(),
            Some(_) => {}
            None => return run(),
        }
        async { Err(injected("sync")) }.boxed()
    }

    pub(super) fn fails_read(&self, what: &str, call: &str) -> bool {
        let hit = self.register(what, call, &[FaultKind::Fails]);
        hit.is_some() || self.happens(self.faults().reads)
    }

    pub(super) fn fails_write(&self, what: &str, call: &str) -> Option<FaultKind> {
        let hit = self.register(what, call, &[FaultKind::Fails, FaultKind::Torn]);
        hit.or_else(|| self.happens(self.faults().writes).then_some(FaultKind::Torn))
    }

    pub(super) fn failed(&self, call: &str) -> Result<()> {
        if self.canary.hides_failures { Ok(()) } else { Err(injected(call)) }
    }

    /// Records a write. Returns the range of the previous one.
    pub(super) fn record_write(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut written = self.written.lock();
        let earlier = written.last().cloned();
        written.push(range);
        earlier
    }

    /// Returns a random recent write.
    pub(super) fn recent_write(&self) -> Option<Range<u64>> {
        let written = self.written.lock();
        let last = written.len().checked_sub(1)?;
        let back = self.draw((written.len() as u64).min(RECENT));
        Some(written[last - back as usize].clone())
    }
}

pub(super) fn injected(what: &str) -> Fault {
    log::trace!("a disk fails a {what}");
    Fault::new(Errno::EIO, format!("injected fault of a {what}"))
}
