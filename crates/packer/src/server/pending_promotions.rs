//! The external files that this job promotes, recorded on the packer's device: other jobs leave them alone. After a failure of this job,
//! `recover` promotes them.

use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::{Errno, Result};
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// The numbers, 8 bytes each, little-endian. The last one may be incomplete.
pub const NAME: &[u8] = b"packed.out";
const NUMBER_SIZE: usize = size_of::<u64>();

/// The numbers of the external files to promote.
pub struct PendingPromotions {
    file: Arc<dyn SharedFile>,
    numbers: BTreeSet<u64>,
    /// Bytes of the file.
    size: u64,
    /// Some are not durable.
    is_unsafe: bool,
}

impl PendingPromotions {
    /// Those in a directory of the device.
    pub fn open(dir: &dyn SharedFs) -> Result<Self> {
        let file = match dir.open(NAME, Access::Write) {
            Err(fault) if fault.errno == Errno::ENOENT => dir.create(NAME, 0o600)?,
            opened => opened?,
        };
        let numbers = read(&*file)?;
        let size = (numbers.len() * NUMBER_SIZE) as u64;
        Ok(Self { file, numbers: numbers.into_iter().collect(), size, is_unsafe: true })
    }

    /// Adds an external file.
    pub fn add(&mut self, number: u64) -> Result<()> {
        if !self.numbers.contains(&number) {
            self.file.write_at(&number.to_le_bytes(), self.size)?;
            self.size += NUMBER_SIZE as u64;
            self.numbers.insert(number);
            self.is_unsafe = true;
        }
        Ok(())
    }

    /// The file to sync, if it has changes.
    pub fn begin_sync(&mut self) -> Option<Arc<dyn SharedFile>> {
        std::mem::take(&mut self.is_unsafe).then(|| self.file.clone())
    }

    /// All numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.numbers.iter().copied()
    }

    /// Whether an external file is one of them.
    pub fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// Removes all.
    pub fn clear(&mut self) -> Result<()> {
        self.numbers.clear();
        self.size = 0;
        self.file.truncate(0)
    }
}

/// The count of pending promotions in a directory of a device.
pub fn count_pending_promotions(dir: &dyn SharedFs) -> Result<u64> {
    match dir.open(NAME, Access::Read) {
        Err(fault) if fault.errno == Errno::ENOENT => Ok(0),
        opened => Ok(read(&*opened?)?.len() as u64),
    }
}

fn read(file: &dyn SharedFile) -> Result<Vec<u64>> {
    let mut bytes = vec![0; file.stat()?.size as usize];
    let count = file.read_at(&mut bytes, 0)?;
    let (numbers, _) = bytes[..count].as_chunks::<NUMBER_SIZE>();
    Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}
