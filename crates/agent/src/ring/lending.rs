//! Frames of the node's views, lent to programs by the ring's table.

use std::ops::Range;
use std::sync::Arc;
use tameike_client::data::{FrameLender, LendingKey};
use tameike_ring::frames::FrameTable;

/// The table, as the views know it.
pub(crate) struct RingLender(pub Arc<FrameTable>);

impl FrameLender for RingLender {
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
