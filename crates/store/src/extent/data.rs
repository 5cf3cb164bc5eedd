//! The ledger's access to extent data: sync, and verification after a power loss.

use super::record::{self, BLOCK, UnitRecord, bytes_of};
use crate::ledger::{Data, RecordKind};
use futures_util::future::{BoxFuture, FutureExt};
use std::sync::Arc;
use tameike_core::Result;
use tameike_io::Pool;
use tameike_io::disk::Disk;

/// The device of the extents, as [`Data`] of a ledger.
pub struct ExtentData {
    disk: Arc<dyn Disk>,
    scratch: Pool,
}

impl ExtentData {
    /// For the device of the store's extents.
    pub fn new(disk: Arc<dyn Disk>, scratch: Pool) -> Self {
        Self { disk, scratch }
    }
}

async fn is_intact(disk: Arc<dyn Disk>, scratch: Pool, body: Vec<u8>) -> Result<bool> {
    let (unit, value) = record::split_body(&body)?;
    if value.is_empty() {
        return Ok(true);
    }
    let mut frame = scratch.take().await;
    for extent in UnitRecord::decode(unit, value)?.extents {
        let (blocks, device) = (extent.blocks(), extent.device_blocks());
        if device.end * u64::from(BLOCK) > disk.size() {
            return Ok(false);
        }
        let bytes = bytes_of(&blocks);
        let (filled, result) = disk.read(device.start * u64::from(BLOCK), frame, bytes.clone()).await;
        result?;
        frame = filled;
        if extent.mismatch(&blocks, &frame[bytes.start as usize..bytes.end as usize]).is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Data for ExtentData {
    fn settle(&self) -> BoxFuture<'static, Result<()>> {
        self.disk.sync()
    }

    fn holds(&self, kind: RecordKind, body: Vec<u8>) -> BoxFuture<'static, Result<bool>> {
        let (disk, scratch) = (self.disk.clone(), self.scratch.clone());
        async move {
            match kind {
                RecordKind::Extents => is_intact(disk, scratch, body).await,
                RecordKind::Names | RecordKind::Cache | RecordKind::OfHome | RecordKind::Copied => Ok(true),
            }
        }
        .boxed()
    }
}
