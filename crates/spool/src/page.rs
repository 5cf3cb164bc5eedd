//! The shared page: numbers of [`Page`] that the packer publishes in a file, which programs map.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tameike_core::spool::protocol::{PAGE, Page};
use tameike_core::{Fault, Result};

const EPOCH: u64 = std::mem::offset_of!(Page, epoch) as u64;
const CHANGES: u64 = std::mem::offset_of!(Page, changes) as u64;
/// A page of memory: programs map all of it.
const SIZE: u64 = 4096;

/// The mapped file. Only the packer writes to it, while it holds the lock of names.
pub struct SharedPage(File);

impl SharedPage {
    /// Opens the page of a spool, and extends it to its full size before any program maps it.
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
        page.map(Self).map_err(|error| Fault::from_os("creating the spool's page", &error))
    }

    /// The epoch, as [`Page::epoch`] returns it to programs.
    pub fn epoch(&self) -> Result<u64> {
        self.read(EPOCH)
    }

    /// Sets [`Page::epoch`].
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        self.write(EPOCH, epoch)
    }

    /// Runs `change`, during which [`Page::changes`] is odd: programs that read the tree meanwhile repeat their lookups.
    pub fn while_changing<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let odd = self.read(CHANGES)? | 1;
        self.write(CHANGES, odd)?;
        let changed = change();
        self.write(CHANGES, odd.wrapping_add(1))?;
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
