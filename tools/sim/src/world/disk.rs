//! The disks of a node: media in memory with injected faults.

use super::disk_faults::{Control, DiskCanary, DiskFaults, injected};
use super::table::FaultyTable;
use crate::countdown::{Countdown, FaultKind};
use futures_util::future::{BoxFuture, FutureExt};
use std::ops::Range;
use std::sync::Arc;
use tameike_agent::check::{Device, StoppedMedia};
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::{NodeId, Result};
use tameike_io::disk::memory::{Faults, MemoryDisk, MemoryLog};
use tameike_io::disk::{AppendFile, Disk};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload};
use tameike_store::ledger::kv::{Kv, MemoryKv};

const LOG_NAMES: [&str; 2] = ["log.0", "log.1"];

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The polynomial G(x) of the checksums, bit 32 first. Blocks that differ by a multiple of it have the same checksum; so do blocks
/// that differ by G(x)^8 = G(x^8), which flips one bit in each byte that belongs to a set bit of G.
const CRC32C: u64 = 0x1_1EDC_6F41;

/// All media of a node's store.
pub(super) struct Disks {
    control: Arc<Control>,
    disk: MemoryDisk,
    logs: [MemoryLog; 2],
    kv: MemoryKv,
}

impl Disks {
    pub fn new(
        node: NodeId,
        simulation: &Simulation,
        countdown: &Countdown,
        size: u64,
        canary: DiskCanary,
    ) -> Self {
        let control = Control::new(node, simulation, countdown, canary);
        let none = Faults::default;
        Self {
            control: Arc::new(control),
            disk: MemoryDisk::new(size as usize, none()),
            logs: [MemoryLog::new(none()), MemoryLog::new(none())],
            kv: MemoryKv::new(none()),
        }
    }

    pub fn set_faults(&self, faults: DiskFaults) {
        self.control.set_faults(faults);
    }

    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(FaultyDisk { inner: self.disk.clone(), control: self.control.clone() })
    }

    pub fn logs(&self) -> [Arc<dyn AppendFile>; 2] {
        let log = |number: usize| FaultyLog {
            name: LOG_NAMES[number],
            inner: self.logs[number].clone(),
            control: self.control.clone(),
        };
        [Arc::new(log(0)), Arc::new(log(1))]
    }

    pub fn table(&self) -> Arc<dyn Kv> {
        Arc::new(FaultyTable { inner: self.kv.clone(), control: self.control.clone() })
    }

    /// Returns the current media, for a check without faults.
    pub fn stopped(&self) -> StoppedMedia {
        StoppedMedia {
            kv: Arc::new(self.kv.clone()),
            logs: self.logs.clone().map(|log| log.content()),
            device_size: self.disk.size(),
            device: Box::new(StoppedDisk(self.disk.clone())),
        }
    }

    /// Drops a random part of the unsynced data.
    pub fn lose_power(&self) {
        let survives = || self.control.draw(2) == 0;
        self.disk.lose_power(survives);
        self.logs.iter().for_each(|log| log.lose_power(survives));
    }

    /// Flips a bit of a recently written block.
    pub fn rot(&self) {
        let Some(range) = self.control.recent_write() else { return };
        let draw = |below: u64| self.control.draw(below);
        let block = range.start + BLOCK * draw((range.end - range.start).div_ceil(BLOCK));
        if !self.control.canary().hides_rot {
            let place = block + draw(BLOCK);
            log::trace!("a bit of byte {place} flips");
            return self.disk.damage(place as usize);
        }
        let place = block + draw(BLOCK - 32);
        let turned = (0..=32).filter(|power| CRC32C >> (32 - power) & 1 == 1);
        turned.for_each(|power| self.disk.damage((place + power) as usize));
    }
}

struct FaultyDisk {
    inner: MemoryDisk,
    control: Arc<Control>,
}

impl Disk for FaultyDisk {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_new(&self) -> bool {
        self.inner.is_new()
    }

    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)> {
        if self.control.fails_read("disk", "read") {
            let fault = injected("read");
            return async move { (frame, Err(fault)) }.boxed();
        }
        self.inner.read(offset, frame, range)
    }

    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        if let Some(fault) = self.control.fails_write("disk", "write") {
            let failed = self.control.failed("write");
            if fault == FaultKind::Fails {
                return async move { failed }.boxed();
            }
            let half = self.inner.write_half(offset, payload);
            return async move {
                half.await;
                failed
            }
            .boxed();
        }
        let earlier = self.control.record_write(offset..offset + payload.len() as u64);
        let write = self.inner.write(offset, payload.clone());
        let Some(earlier) =
            earlier.filter(|_| self.control.canary().shares_blocks && self.control.draw(4) == 0)
        else {
            return write;
        };
        let length = payload.len().min((earlier.end - earlier.start) as usize) as u32;
        let again = self.inner.write(earlier.start, payload.slice(0..length));
        async move { again.await.and(write.await) }.boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.control.sync("disk", || self.inner.lose_power(|| false), || self.inner.sync())
    }

    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.control.checked("disk", "allocate", || self.inner.allocate(range))
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.control.checked("disk", "discard", || self.inner.discard(range))
    }
}

struct FaultyLog {
    name: &'static str,
    inner: MemoryLog,
    control: Arc<Control>,
}

impl AppendFile for FaultyLog {
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>> {
        if let Some(fault) = self.control.fails_write(self.name, "append") {
            let failed = self.control.failed("append");
            if fault == FaultKind::Fails {
                return async move { failed }.boxed();
            }
            let half = self.inner.append(bytes[..bytes.len() / 2].to_vec());
            return async move { half.await.and(failed) }.boxed();
        }
        self.inner.append(bytes)
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.control.sync(self.name, || self.inner.lose_power(|| false), || self.inner.sync())
    }

    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>> {
        self.control.checked(self.name, "read_all", || self.inner.read_all())
    }

    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>> {
        self.control.checked(self.name, "truncate", || self.inner.truncate(size))
    }
}

struct StoppedDisk(MemoryDisk);

impl Device for StoppedDisk {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.0.look(offset, bytes);
        Ok(())
    }
}
