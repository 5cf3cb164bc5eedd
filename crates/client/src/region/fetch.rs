//! Fetches of absent pages.

use super::Parts;
use super::memory::Memory;
use crate::replies::unexpected_reply;
use event_listener::listener;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{Backing, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Generation, Result};
use tameike_dsm::control::{Counter, PAGE_SIZE, PageState, UNIT_PAGES};
use tameike_io::Payload;
use tameike_io::os::userfault::Userfault;

impl Memory {
    /// Makes an absent page valid, and pages after it for a sequential reader. `userfault` is that of the faulting process, if the
    /// processes share the memory. Returns the number of pages from this one on that are no longer absent.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the home has failed; `EIO` if the data is damaged; `ENOMEM`.
    pub async fn fetch(self: &Arc<Self>, page: u32, userfault: Option<&Userfault>) -> Result<u32> {
        let unit = page / UNIT_PAGES;
        self.parts.space.evict_to_limit().await;
        loop {
            listener!(self.fetched => ended);
            let control = self.control();
            if control.load(page).state() != PageState::Absent {
                return Ok(1);
            }
            let Some(_fetch) = self.begin_fetch(unit) else {
                ended.await;
                continue;
            };
            let epoch = *self.epoch.read();
            let pages = self.window(page);
            if pages.is_empty() {
                // Another fetch has ended since the look above.
                continue;
            }
            let bytes = self.read_home(unit, &pages).await?;
            // Held until the pages are valid: an update drops them afterwards.
            let now = self.epoch.read();
            if *now == epoch {
                self.parts.space.add_fetched(pages.len() as u32);
                self.install(&pages, &bytes, userfault)?;
                return Ok(pages.len() as u32);
            }
        }
    }

    /// Reads pages of a unit from its home.
    pub(super) async fn read_home(&self, unit: u32, pages: &Range<u32>) -> Result<Payload> {
        let Parts { cluster, .. } = &*self.parts;
        let first = (pages.start % UNIT_PAGES) * PAGE_SIZE as u32;
        let length = pages.len() as u32 * PAGE_SIZE as u32;
        let unit = self.unit(unit);
        let home = cluster.unit_home(self.file.layout, unit);
        let (generation, backing) = (Generation::default(), Backing::Zeros);
        let request = UnitRequest::Read { unit, offset: first, length, generation, backing };
        let answer = self.parts.call(home, Request::Unit(request), None).await?;
        match (answer.reply, answer.payload) {
            (Reply::Unit(UnitReply::Read), Some(bytes)) if bytes.len() == length as usize => Ok(bytes),
            (Reply::Unit(UnitReply::Read), _) => {
                let node = cluster.primary(home);
                let why = format!("{node} sent a wrong number of bytes for a read of {length} bytes");
                Err(Fault::new(Errno::EPROTO, why))
            }
            (other, _) => Err(unexpected_reply(&other)),
        }
    }

    /// Makes absent pages valid with these bytes.
    fn install(&self, pages: &Range<u32>, bytes: &[u8], userfault: Option<&Userfault>) -> Result<()> {
        let failed = |error| Fault::from_os("installing pages of a region", &error);
        let at = u64::from(pages.start) * PAGE_SIZE as u64;
        let installed = match userfault {
            Some(userfault) => userfault.install(at, bytes).map_err(failed)?,
            None => 0,
        };
        // Memory of one process, which cannot access the pages yet; or pages that exist, and thus are in no use.
        self.memory.fill(at + installed as u64, &bytes[installed..]).map_err(failed)?;
        let control = self.control();
        for page in pages.clone() {
            control.store(page, control.load(page).with(PageState::Valid, 0));
        }
        control.count(Counter::PagesFetched, pages.len() as u64);
        Ok(())
    }
}

const _: () = assert!(UNIT_PAGES as usize * PAGE_SIZE == UNIT_SIZE);
