//! What the packer tells all programs at once: the numbers of [`Page`], written to the file that programs map.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tameike_core::spool::protocol::{PAGE, Page};
use tameike_core::{Fault, Result};

const EPOCH: u64 = std::mem::offset_of!(Page, epoch) as u64;
const CHANGES: u64 = std::mem::offset_of!(Page, changes) as u64;
/// A page of memory: programs map all of it.
const SIZE: u64 = 4096;

/// The mapped file. One packer at a time writes to it, and only while it holds the lock of names.
pub struct SharedPage(File);

impl SharedPage {
    /// Opens the page of a spool. It is there at its full size before anybody maps it.
    pub fn open(dir: &Path) -> Result<Self> {
        let page = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(dir.join(PAGE))
            .and_then(|page| {
                if page.metadata()?.len() < SIZE {
                    page.set_len(SIZE)?;
                }
                Ok(page)
            });
        page.map(Self).map_err(|error| Fault::from_os("making the spool's page", &error))
    }

    /// [`Page::epoch`].
    pub fn epoch(&self) -> Result<u64> {
        self.read(EPOCH)
    }

    /// Sets it.
    pub fn tell_epoch(&self, epoch: u64) -> Result<()> {
        self.write(EPOCH, epoch)
    }

    /// Runs `change`, of which nobody is to see a part: programs look again.
    pub fn while_changing<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let under_way = self.read(CHANGES)? | 1;
        self.write(CHANGES, under_way)?;
        let changed = change();
        self.write(CHANGES, under_way.wrapping_add(1))?;
        changed
    }

    fn read(&self, at: u64) -> Result<u64> {
        let mut number = [0; 8];
        let read = self.0.read_exact_at(&mut number, at);
        read.map_err(|error| Fault::from_os("reading the spool's page", &error))?;
        Ok(u64::from_ne_bytes(number))
    }

    fn write(&self, at: u64, number: u64) -> Result<()> {
        let written = self.0.write_all_at(&number.to_ne_bytes(), at);
        written.map_err(|error| Fault::from_os("writing the spool's page", &error))
    }
}
