//! Grants frames of the views to programs, through the ring's frame table.

use std::ops::Range;
use std::sync::Arc;
use tameike_client::data::{FrameGranter, GrantKey};
use tameike_ring::frames::FrameTable;

/// Adapter of the table to the views' trait.
pub(crate) struct RingFrameGrants(pub Arc<FrameTable>);

impl FrameGranter for RingFrameGrants {
    fn open(&self) -> Option<GrantKey> {
        self.0.open()
    }

    fn close(&self, key: GrantKey) {
        self.0.close(key);
    }

    fn grant(&self, frame: u32, key: GrantKey, unit: u64, bytes: &Range<u32>) {
        self.0.grant(frame, key, unit, bytes);
    }

    fn renew(&self, frame: u32, key: GrantKey, unit: u64) {
        self.0.renew(frame, key, unit);
    }

    fn revoke(&self, frame: u32) {
        self.0.revoke(frame);
    }

    fn revoke_all(&self, key: GrantKey) {
        self.0.revoke_all(key);
    }

    fn publish_end(&self, key: GrantKey, size: u64) {
        self.0.publish_end(key, size);
    }

    fn withdraw_end(&self, key: GrantKey) {
        self.0.withdraw_end(key);
    }
}
