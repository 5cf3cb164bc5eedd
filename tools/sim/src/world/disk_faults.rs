//! Faults of the media of a node: which of its calls fail, and how.

use crate::countdown::{Countdown, Medium, Way};
use parking_lot::Mutex;
use std::ops::Range;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::simulated::Simulation;

/// What was written last is most likely still in use: rot falls on one of so many writes.
const RECENT: u64 = 8;

/// Of a thousand calls, so many fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// `EIO` of reads.
    pub reads: u32,
    /// `EIO` of writes, which then take effect in part.
    pub writes: u32,
    /// `EIO` of syncs.
    pub syncs: u32,
}

/// Bugs that a disk has on purpose, so that its checker reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskCanary {
    /// Syncs do nothing and report success.
    pub forgets_syncs: bool,
    /// Now and then two extents share their blocks: a write also overwrites those of an earlier one.
    pub shares_blocks: bool,
    /// Calls that fail report success.
    pub hides_failures: bool,
    /// Blocks that rot keep their checksum.
    pub hides_rot: bool,
}

/// Decides for all media of a node which calls fail.
pub(super) struct Control {
    node: NodeId,
    simulation: Simulation,
    countdown: Countdown,
    faults: Mutex<DiskFaults>,
    canary: DiskCanary,
    /// Ranges of all writes, among which rot chooses.
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

    /// Draws a number below `below`.
    pub(super) fn draw(&self, below: u64) -> u64 {
        self.simulation.draw(below)
    }

    fn happens(&self, of_a_thousand: u32) -> bool {
        of_a_thousand > 0 && self.draw(1000) < u64::from(of_a_thousand)
    }

    fn faults(&self) -> DiskFaults {
        *self.faults.lock()
    }

    /// One call that only a countdown lets fail: how it fails, if it does.
    pub(super) fn meets(&self, what: &str, call: &str, ways: &'static [Way]) -> Option<Way> {
        self.countdown.meets(Medium::Disk(self.node), ways, || format!("{what} {call}"))
    }

    /// Whether a read fails.
    pub(super) fn fails_read(&self, what: &str, call: &str) -> bool {
        let met = self.meets(what, call, &[Way::Fails]);
        met.is_some() || self.happens(self.faults().reads)
    }

    /// How a write or an append fails, if it does.
    pub(super) fn fails_write(&self, what: &str, call: &str) -> Option<Way> {
        let met = self.meets(what, call, &[Way::Fails, Way::Torn]);
        met.or_else(|| self.happens(self.faults().writes).then_some(Way::Torn))
    }

    /// How a sync fails, if it does.
    pub(super) fn fails_sync(&self, what: &str) -> Option<Way> {
        let met = self.meets(what, "sync", &[Way::Fails, Way::Forgotten]);
        met.or_else(|| self.happens(self.faults().syncs).then_some(Way::Fails))
    }

    /// The result of a write that has failed.
    pub(super) fn failed(&self, call: &str) -> Result<()> {
        if self.canary.hides_failures { Ok(()) } else { Err(injected(call)) }
    }

    /// Records a write; returns the range of the write before it.
    pub(super) fn record_write(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut written = self.written.lock();
        let earlier = written.last().cloned();
        written.push(range);
        earlier
    }

    /// Draws one of the writes that were recorded last.
    pub(super) fn recent_write(&self) -> Option<Range<u64>> {
        let written = self.written.lock();
        if written.is_empty() {
            return None;
        }
        let back = self.draw((written.len() as u64).min(RECENT));
        Some(written[written.len() - 1 - back as usize].clone())
    }
}

/// The error of a call that fails on purpose.
pub(super) fn injected(what: &str) -> Fault {
    log::trace!("a disk fails a {what}");
    Fault::new(Errno::EIO, format!("{what} failed on purpose"))
}
