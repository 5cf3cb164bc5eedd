//! Patches of units of job-shared files, and numbers in them.

use super::bed::Bed;
use super::client::Client;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::Reply;
use tameike_core::wire::unit::{Backing, UnitReply, UnitRequest};
use tameike_core::{Errno, Generation, HomeId, InodeId, Layout, NodeId, Result, Slot, UnitId};
use tameike_io::Payload;

const NODE: NodeId = NodeId(0);
/// The home of the units; the only node serves all homes.
const UNITS: HomeId = HomeId(3);

fn region() -> InodeId {
    InodeId::in_slot(Slot(5), 77)
}

/// A record that changes one byte.
fn record(page: u32, place: u16, byte: u8) -> Vec<u8> {
    [&page.to_le_bytes()[..], &[1, 0, 1, 0], &place.to_le_bytes(), &[1, 0, byte]].concat()
}

impl Client {
    async fn patch(&self, inode: InodeId, patch: &[u8]) -> Result<()> {
        let mut frame = self.pool.take().await;
        // Not aligned, as after the header of a message.
        frame[3..3 + patch.len()].copy_from_slice(patch);
        let payload = Payload::new(Arc::new(frame), 3..3 + patch.len() as u32);
        self.unit(NODE, UnitRequest::Patch { inode, layout: Layout::Striped }, Some(payload)).await.map(drop)
    }

    async fn add(&self, unit: UnitId, offset: u32, addend: u64) -> Result<u64> {
        match self.unit(UNITS, UnitRequest::FetchAdd { unit, offset, addend }, None).await?.reply {
            Reply::Unit(UnitReply::Previous(previous)) => Ok(previous),
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of a unit that are not zero, with their places.
    async fn marks(&self, index: u64) -> Vec<(usize, u8)> {
        let request = UnitRequest::Read {
            unit: UnitId { inode: region(), index },
            offset: 0,
            length: UNIT_SIZE as u32,
            generation: Generation(0),
            backing: Backing::Zeros,
        };
        let bytes = self.unit(NODE, request, None).await.expect("a read").payload.expect("bytes");
        bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
    }
}

#[test]
fn a_patch_changes_bytes_of_several_units_or_nothing() {
    let bed = Bed::new(81, 1);
    let client = bed.client(0);
    bed.run(async {
        let patch = [record(0, 9, 1), record(255, 4095, 2), record(256, 0, 3), record(1024, 7, 4)].concat();
        client.patch(region(), &patch).await.expect("a valid patch");
        let malformed = [record(0, 8, 5), record(256, 1, 6), record(256, 2, 7)].concat();
        for (inode, patch) in
            [(region(), &malformed[..]), (region(), &patch[..20]), (InodeId::cached(1, 1), &patch)]
        {
            let refused = client.patch(inode, patch).await.expect_err("an invalid patch");
            assert_eq!(refused.errno, Errno::EINVAL, "{refused}");
        }
        let without =
            client.unit(NODE, UnitRequest::Patch { inode: region(), layout: Layout::Striped }, None).await;
        assert_eq!(without.map(drop).expect_err("no payload").errno, Errno::EINVAL);
        assert_eq!(client.marks(0).await, [(9, 1), (UNIT_SIZE - 1, 2)]);
        assert_eq!(client.marks(1).await, [(0, 3)]);
        assert_eq!(client.marks(4).await, [(7, 4)]);
    });
}

#[test]
fn an_addition_returns_the_number_before() {
    let bed = Bed::new(82, 1);
    let client = bed.client(0);
    bed.run(async {
        let unit = UnitId { inode: region(), index: 1 };
        assert_eq!(client.add(unit, 16, 300).await, Ok(0));
        client.patch(region(), &record(256, 17, 2)).await.expect("a valid patch");
        assert_eq!(client.add(unit, 16, u64::MAX).await, Ok(512 + 44));
        assert_eq!(client.marks(1).await, [(16, 43), (17, 2)]);
        for (unit, offset) in [(unit, 17), (unit, UNIT_SIZE as u32), (unit, u32::MAX - 7)] {
            assert_eq!(client.add(unit, offset, 1).await.expect_err("no such number").errno, Errno::EINVAL);
        }
        let cached = UnitId { inode: InodeId::cached(1, 1), index: 0 };
        assert_eq!(client.add(cached, 0, 1).await.expect_err("a cached file").errno, Errno::EINVAL);
        let beyond = UnitId { index: u64::MAX, ..unit };
        assert_eq!(client.add(beyond, 0, 1).await.expect_err("no such unit").errno, Errno::EFBIG);
    });
}
