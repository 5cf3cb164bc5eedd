//! Grants frames of the views to programs, through the ring's frame table.

use std::ops::Range;
use std::sync::Arc;
use tameike_client::data::{FrameLender, LendingKey};
use tameike_ring::frames::FrameTable;

/// Adapter of the table to the views' trait.
pub(crate) struct RingFrameGrants(pub Arc<FrameTable>);

impl FrameLender for RingFrameGrants {
    fn open(&self) -> Option<LendingKey> {
        self.0.open()
    }

    fn close(&self, key: LendingKey) {
        self.0.close(key);
    }

    fn lend(&self, frame: u32, key: LendingKey, unit: u64, bytes: &Range<u32>) {
        self.0.lend(frame, key, unit, bytes);
    }

    fn renew(&self, frame: u32, key: LendingKey, unit: u64) {
        self.0.renew(frame, key, unit);
    }

    fn recall(&self, frame: u32) {
        self.0.recall(frame);
    }

    fn recall_all(&self, key: LendingKey) {
        self.0.recall_all(key);
    }

    fn tell_end(&self, key: LendingKey, size: u64) {
        self.0.tell_end(key, size);
    }

    fn recall_end(&self, key: LendingKey) {
        self.0.recall_end(key);
    }
}
