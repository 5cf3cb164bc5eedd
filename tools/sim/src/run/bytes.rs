//! Compares the bytes of a file on all nodes at a check.

use super::check::CHECK_SLOT;
use super::{Checked, End, Open, Run};
use crate::kernel::Output;
use crate::model::{FileData, ObjectId, Reader};
use crate::op::{Flags, Op};
use crate::world::Flip;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Errno, View};

/// Bits of a file that were flipped in memory of the reading node.
pub(super) struct Flips(Vec<Flip>);

impl Flips {
    /// Returns the bytes of a read with these bits restored where the model does not allow them. A node need not detect flips in its own
    /// memory, but must never send them to another node.
    pub(super) fn reverted(&self, data: &FileData, reader: Reader, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for flip in &self.0 {
            let Some((index, reverted)) = flip.reverted(offset, &bytes) else { continue };
            if data.check(reader, offset + index as u64, 1, &bytes[index..=index]).is_err() {
                bytes[index] = reverted;
            }
        }
        bytes
    }
}

impl Run {
    /// Reads a file on all nodes: the bytes must be equal, and allowed by the model.
    pub(super) async fn compare_bytes(
        &mut self,
        view: View,
        path: &str,
        id: ObjectId,
        size: u64,
    ) -> Checked<Vec<u8>> {
        let mut agreed: Option<Vec<u8>> = None;
        for node in (0..self.world.count()).filter(|&node| self.world.is_up(node)).collect::<Vec<_>>() {
            let open = self.must_open(node, view, path, id, Flags::READ).await?;
            let reader = Reader { node, opened: open.opened, now: open.opened };
            let read = self.read_whole(node, view, &open).await?;
            self.must(node, view, Op::Close { slot: CHECK_SLOT }, Some(open)).await?;
            let Some(bytes) = read else { continue };
            let flips = self.flips(node, view, id);
            let bytes = flips.reverted(&self.model(view).object(id).data, reader, 0, &bytes);
            let wrong = |why| format!("node {node}, {}: {path}: {why}", view.as_str());
            let is_settled = self.model(view).object(id).data.is_settled();
            if bytes.len() as u64 != size && is_settled {
                return Err(wrong(format!("the read returned {} of {size} bytes", bytes.len())));
            }
            let data = &self.model(view).object(id).data;
            data.check(reader, 0, bytes.len() as u64 + 1, &bytes).map_err(wrong)?;
            if let Some(agreed) = &agreed
                && *agreed != bytes
                && is_settled
            {
                let at = agreed.iter().zip(&bytes).position(|(one, other)| one != other);
                return Err(format!(
                    "{}: {path}: nodes 0 and {node} read different bytes at {at:?}",
                    view.as_str()
                ));
            }
            agreed = Some(bytes);
        }
        Ok(agreed.unwrap_or_default())
    }

    /// Returns the flipped bits of a file in memory of a node.
    pub(super) fn flips(&mut self, node: usize, view: View, id: ObjectId) -> Flips {
        let Some(inode) = self.model(view).object(id).inode else { return Flips(Vec::new()) };
        Flips(self.world.flips(node).into_iter().filter(|flip| flip.is_of(view, inode)).collect())
    }

    /// Reads an open file. `None` if a read fails with EIO since a disk lost unsynced bytes, or bytes have rotted.
    async fn read_whole(&mut self, node: usize, view: View, open: &Open) -> Checked<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        loop {
            let offset = bytes.len() as u64;
            let op = Op::Read { slot: CHECK_SLOT, offset, length: UNIT_SIZE as u32 };
            let call = self.one(node, view, op, Some(open.clone())).await?;
            let is_lost = self.has_losses && !self.model(view).object(open.object).data.is_settled();
            match &call.end {
                End::Failed(fault) if fault.errno == Errno::EIO && is_lost => return Ok(None),
                End::Failed(fault) if fault.errno == Errno::EIO && self.may_be_damaged(view, open.object) => {
                    self.damaged.insert((view.index(), open.object));
                    return Ok(None);
                }
                End::Returned(Output::Bytes(part)) => bytes.extend_from_slice(part),
                _ => return Err(call.unexplained_failure()),
            }
            if bytes.len() as u64 - offset < UNIT_SIZE as u64 {
                return Ok(Some(bytes));
            }
        }
    }
}
