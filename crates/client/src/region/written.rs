//! Pages that the kernel has recorded as written, in regions in which two nodes never store to the same page at the same time.
//!
//! A flush sends them as a whole. An update stores the bytes that others have changed into the pages that this node has: it never drops a
//! page, because no state of a page keeps processes from storing to it.

use super::flush::Page;
use super::memory::{Memory, add_page};
use std::ops::Range;
use tameike_core::patch::Difference;
use tameike_core::ranges::RangeSet;
use tameike_core::region::Tracking;
use tameike_core::{Errno, Fault, Result};
use tameike_dsm::control::{Counter, PAGE_SIZE, PageState, UNIT_PAGES};

const SIZE: u64 = PAGE_SIZE as u64;

impl Memory {
    /// Adds the pages to [`Memory::written`] to which processes have stored, for a process that is about to end.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub async fn collect_written(&self) -> Result<()> {
        if self.tracking == Tracking::WrittenPages {
            // With twins, its owner may wait for the process that ends.
            let _only = self.syncing.lock().await;
            self.scan_written(0..self.control().pages())?;
        }
        Ok(())
    }

    /// As [`Self::collect_written`] in some of the pages, during a flush or update.
    pub(super) fn scan_written(&self, pages: Range<u32>) -> Result<()> {
        if self.tracking != Tracking::WrittenPages {
            return Ok(());
        }
        let control = self.control();
        let mut written = self.written.lock();
        let page = |at: u64| (at / SIZE) as u32;
        let bytes = u64::from(pages.start) * SIZE..u64::from(pages.end) * SIZE;
        for process in self.mappings() {
            let Some(mapping) = process.get() else { continue };
            let Some(pagemap) = &mapping.pagemap else { continue };
            let report = |bytes: Range<u64>| {
                let is_here = |page: &u32| control.load(*page).state() != PageState::Absent;
                (page(bytes.start)..page(bytes.end))
                    .filter(is_here)
                    .for_each(|page| written.insert(page..page + 1));
            };
            let taken = pagemap.take_written(&mapping.userfault, bytes.clone(), report);
            match taken.map_err(|error| Fault::from_os("asking for written pages of a region", &error)) {
                // The process has ended, or has removed its mapping.
                Err(fault) if [Errno::ESRCH, Errno::EPERM].contains(&fault.errno) => {}
                taken => taken?,
            }
        }
        Ok(())
    }

    /// The pages to send, in runs that are each of one unit.
    pub(super) fn written_runs(&self) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        self.written.lock().iter().flatten().for_each(|page| add_page(&mut runs, page));
        runs
    }

    /// Stores the bytes that others have changed at the homes into pages that are here.
    pub(super) async fn refresh(&self, pages: &RangeSet) -> Result<()> {
        // Fetches in flight may have read older bytes.
        *self.epoch.write() += 1;
        let control = self.control();
        let mut runs = Vec::new();
        for page in pages.iter().flatten().filter(|&page| page < control.pages()) {
            if control.load(page).state() != PageState::Absent {
                add_page(&mut runs, page);
            }
        }
        for run in runs {
            self.refresh_run(run).await?;
        }
        Ok(())
    }

    async fn refresh_run(&self, run: Range<u32>) -> Result<()> {
        let mut before = vec![0; run.len() * PAGE_SIZE];
        self.memory.read(run.clone(), &mut before);
        // Afterwards: `before` has no store to pages that are not written.
        self.scan_written(run.clone())?;
        let home = self.read_home(run.start / UNIT_PAGES, &run).await?;
        let pages = before.as_chunks::<PAGE_SIZE>().0.iter().zip(home.as_chunks::<PAGE_SIZE>().0);
        for (page, (before, home)) in run.zip(pages) {
            // By contract, others have not changed what this node has.
            if self.written.lock().contains(&(page..page + 1)) {
                continue;
            }
            let changed = Difference::between(before, home);
            if !changed.is_empty() {
                self.store_changes(page, &changed, home);
                self.control().count(Counter::PagesMerged, 1);
            }
        }
        Ok(())
    }

    /// Stores changed bytes of a page, and no others.
    pub(super) fn store_changes(&self, page: u32, changed: &Difference, bytes: &Page) {
        for run in changed.runs() {
            let at = u64::from(page) * SIZE + u64::from(run.start);
            self.memory.write(at, &bytes[run.start.into()..run.end.into()]);
        }
    }
}
