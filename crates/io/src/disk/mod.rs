//! Disks: numbered bytes that survive the agent.
//!
//! A disk does not check content; what is written through it carries its own checksums.

pub mod file;
pub mod memory;
#[cfg(test)]
mod tests;

use crate::slab::{Frame, Payload};
use futures_util::future::BoxFuture;
use std::ops::Range;
use tameike_core::Result;

/// A file or device of fixed size.
///
/// Ranges must lie within it. A call whose future is dropped may still take effect, at any time.
///
/// Reads and writes of the same bytes at the same time have no order. A write is safe against power loss only
/// after a later [`Disk::sync`]; against the death of the agent it is safe once acknowledged.
pub trait Disk: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Reads into `range` of `frame` from byte `offset` of the disk, and gives the frame back.
    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)>;
    /// Writes all of `payload` at byte `offset` of the disk.
    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>>;
    /// Makes all acknowledged writes safe against power loss.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
    /// Gives the space of `range` back to whatever is below; its content is then unspecified.
    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>>;
}

/// A file that only grows at its end, until it is begun anew: the log's.
pub trait AppendFile: Send + Sync {
    /// Appends at the end; when it returns, the bytes survive the death of the agent. An append that failed may
    /// have left a part of the bytes: cut the file before the next one. Appends do not overlap.
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>>;
    /// Makes all acknowledged appends safe against power loss.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
    /// The whole content.
    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>>;
    /// Cuts the file to `size` bytes.
    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>>;
}
