//! Raw access to the data of a stopped store.

use super::super::record::{self, BLOCK, UnitRecord};
use crate::check::Copy;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tameike_core::{Fault, Result};

const SIZE: u64 = BLOCK as u64;

/// The medium of the data: a file, or its simulated counterpart.
pub trait Device {
    /// Fills `bytes` from byte `offset` on.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()>;
}

impl Device for File {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.read_exact_at(bytes, offset)
    }
}

/// The extents file of a store, if it has one.
pub(crate) struct Extents {
    device: Option<Box<dyn Device>>,
    size: u64,
}

impl Extents {
    /// Opens the file for reading. A missing file has no bytes.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |error| Fault::from_os(format!("open {}", path.display()), &error);
        match File::open(path) {
            Ok(file) => {
                let size = file.metadata().map_err(failed)?.len();
                Ok(Self::on(Box::new(file), size))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self { device: None, size: 0 }),
            Err(error) => Err(failed(error)),
        }
    }

    pub(crate) fn on(device: Box<dyn Device>, size: u64) -> Self {
        Self { device: Some(device), size }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.size / SIZE
    }

    /// Reads these blocks, up to the end of the file. Unreadable blocks are zero-filled.
    pub(super) fn read(&self, blocks: &Range<u64>) -> Result<Vec<u8>> {
        let start = blocks.start.saturating_mul(SIZE).min(self.size);
        let end = blocks.end.saturating_mul(SIZE).min(self.size);
        let mut bytes = vec![0; (end - start) as usize];
        let Some(device) = &self.device else { return Ok(bytes) };
        if device.read(start, &mut bytes).is_ok() {
            return Ok(bytes);
        }
        // Block by block, so that one bad block does not hide its neighbours.
        for (number, block) in bytes.chunks_mut(BLOCK as usize).enumerate() {
            if device.read(start + number as u64 * SIZE, block).is_err() {
                block.fill(0);
            }
        }
        Ok(bytes)
    }

    /// Reads bytes of the file; `None` if they are unreadable.
    pub(crate) fn readable(&self, bytes: Range<u64>) -> Option<Vec<u8>> {
        let end = bytes.end.min(self.size);
        let mut found = vec![0; end.checked_sub(bytes.start)? as usize];
        self.device.as_ref()?.read(bytes.start, &mut found).ok()?;
        Some(found)
    }

    /// Returns true if the bytes that a log record names match their checksums.
    pub(crate) fn holds(&self, body: &[u8]) -> Result<bool> {
        let (unit, value) = record::split_body(body)?;
        if value.is_empty() {
            return Ok(true);
        }
        for extent in UnitRecord::decode(unit, value)?.extents {
            if !extent.bad_blocks(&self.read(&extent.device_blocks())?).is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies blocks to free ones of the same file, at `path`, and syncs it.
    pub(crate) fn copy_blocks(&self, path: &Path, copies: &[Copy]) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let failed = |error| Fault::from_os(format!("copy blocks of {}", path.display()), &error);
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        for (from, to) in copies {
            file.write_all_at(&self.read(&(*from..from + 1))?, to * SIZE).map_err(failed)?;
        }
        file.sync_data().map_err(failed)
    }
}
