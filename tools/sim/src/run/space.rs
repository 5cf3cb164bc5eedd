//! Checks of capacity: which calls may fail with ENOSPC, and that removed files free their space.

use super::{Call, Checked, Run};
use crate::model::Reader;
use crate::op::{Flags, Op};
use crate::world::AMPLE_CAPACITY;
use std::collections::BTreeSet;
use std::time::Duration;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::{FileKind, View};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Longer than the homes take to free blocks.
const FREED: Duration = Duration::from_secs(90);

impl Run {
    pub(super) fn is_small(&self) -> bool {
        self.world.capacity() < AMPLE_CAPACITY
    }

    /// Records whether the job-shared view may be full after the calls of a step.
    pub(super) fn note_space(&mut self, calls: &[Call]) {
        let lengths = calls.iter().map(|call| match call.op {
            Op::Write { length, .. } => u64::from(length).next_multiple_of(BLOCK) + 2 * BLOCK,
            _ => 0,
        });
        let written: u64 = lengths.sum();
        let used = self.world.space(View::JobShared, |space| space.used);
        let model = self.model(View::JobShared);
        let in_flight: u64 = model.objects_mut().map(|object| object.data.unpublished(BLOCK)).sum();
        self.was_full |= self.is_small() && used.max(self.used) + in_flight + written > self.world.capacity();
        self.used = used;
    }

    /// S19: in a full view, writes fail with ENOSPC at the write or at the close. No node is full while all nodes together hold less
    /// than the capacity of one. The cache view evicts, but cannot hold a unit larger than its capacity.
    pub(super) fn may_be_full(&self, call: &Call) -> bool {
        let takes_space = match &call.op {
            Op::Write { .. } | Op::Space { .. } | Op::Fsync { .. } | Op::Close { .. } => true,
            Op::Truncate { .. } | Op::Open { flags: Flags { truncate: true, .. }, .. } => true,
            op => op.locks(),
        };
        takes_space && self.may_lack_space(call.view)
    }

    pub(super) fn may_lack_space(&self, view: View) -> bool {
        match view {
            View::JobShared => self.was_full,
            _ => self.world.capacity() < UNIT_SIZE as u64,
        }
    }

    /// Checks that removed and truncated files have freed their space.
    pub(super) async fn compare_space(&mut self) -> Checked {
        if !self.is_small() || self.has_orphans || self.has_gone_files || self.log_broken || self.has_losses {
            return Ok(());
        }
        self.world.runtime().sleep(FREED).await;
        let now = self.moment();
        let open = self.slots.iter().filter(|((_, view, _), _)| *view == View::JobShared.index());
        let mut held: BTreeSet<_> = open.map(|(_, open)| open.object).collect();
        let model = self.model(View::JobShared);
        held.extend(model.all().into_values().filter(|&id| model.object(id).kind == FileKind::File));
        let reader = Reader { node: usize::MAX, opened: now, now };
        let sizes = held.into_iter().map(|id| {
            let (_, largest) = model.object(id).data.size(reader);
            largest.checked_next_multiple_of(BLOCK)
        });
        let Some(most) = sizes.sum::<Option<u64>>() else { return Ok(()) };
        let most = most * self.world.replicas();
        let used = self.world.space(View::JobShared, |space| space.used);
        if used > most {
            return Err(format!("shared: the files take at most {most} bytes, and {used} are in use"));
        }
        Ok(())
    }
}
