//! Update: brings pages that others have changed up to date.
//!
//! - A valid page is dropped: the next access fetches it.
//! - A written page is merged, because processes may be writing to it: the bytes that differ between its home and its twin are those
//!   that others have changed. They are stored one by one; all other bytes are left alone.

use super::flush::Page;
use super::memory::{Memory, add_page};
use crate::replies::unexpected_reply;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::Result;
use tameike_core::patch::Difference;
use tameike_core::ranges::RangeSet;
use tameike_core::region::Tracking;
use tameike_core::wire::region::{Changes, RegionReply, RegionRequest};
use tameike_dsm::control::{Counter, PAGE_SIZE, PageState, UNIT_PAGES};

/// Pause before another look at pages that processes have claimed.
const CLAIM_PAUSE: Duration = Duration::from_micros(20);

/// Pages that an update cannot drop.
#[derive(Default)]
struct Sorted {
    /// Runs of written pages, each of one unit.
    written: Vec<Range<u32>>,
    /// Pages of which a process makes the twin.
    claimed: RangeSet,
}

impl Memory {
    /// Asks the coordinator for changes of others, and applies them. Returns true if a process of the region has ended without
    /// detaching.
    pub async fn update(self: &Arc<Self>) -> Result<bool> {
        let (region, after) = (self.file.inode, self.sequence());
        match self.parts.ask(region, RegionRequest::Changes { region, after }).await? {
            RegionReply::Changes { sequence, changes, failed } => {
                self.apply(&changes, sequence).await.map(|()| failed)
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Applies changes of others; afterwards all changes up to `sequence` are here. After an error, they are not: the next update
    /// tries again.
    pub async fn apply(self: &Arc<Self>, changes: &Changes, sequence: u64) -> Result<()> {
        let mut pages: RangeSet = match changes {
            Changes::Any => RangeSet::from(0..self.control().pages()),
            Changes::Pages(all) => {
                let others = all.iter().filter(|change| change.writer != self.writer);
                others.flat_map(|change| change.pages.iter()).collect()
            }
        };
        let _only = self.syncing.lock().await;
        let stale = std::mem::take(&mut self.added.lock().stale);
        pages.insert_all(&stale);
        let applied = match self.tracking {
            Tracking::Twins | Tracking::OwnTwins => self.bring_up_to_date(pages).await,
            Tracking::WrittenPages => self.refresh(&pages).await,
        };
        match &applied {
            Ok(()) => self.updated(sequence),
            // The coordinator does not list them for this memory.
            Err(_) => self.added.lock().stale.insert_all(&stale),
        }
        applied
    }

    async fn bring_up_to_date(&self, mut pages: RangeSet) -> Result<()> {
        loop {
            let Sorted { written, claimed } = self.drop_valid(&pages)?;
            for unit_pages in written {
                self.merge(unit_pages).await?;
            }
            if claimed.is_empty() {
                return Ok(());
            }
            // A process is making twins. It may be stopped, or have been killed.
            self.parts.runtime.sleep(CLAIM_PAUSE).await;
            pages = claimed;
        }
    }

    /// Drops the valid pages of a set, and returns the others that are not absent.
    fn drop_valid(&self, pages: &RangeSet) -> Result<Sorted> {
        let mut epoch = self.epoch.write();
        *epoch += 1;
        let control = self.control();
        let (mut sorted, mut dropped) = (Sorted::default(), Vec::new());
        for page in pages.iter().flatten().filter(|&page| page < control.pages()) {
            let word = control.load(page);
            match word.state() {
                PageState::Absent => {}
                PageState::Written | PageState::Opening => add_page(&mut sorted.written, page),
                PageState::Valid if control.replace(page, word, word.dropped()) => {
                    add_page(&mut dropped, page)
                }
                PageState::Valid | PageState::Claimed => sorted.claimed.insert(page..page + 1),
            }
        }
        control.count(Counter::PagesDropped, dropped.iter().map(|run| run.len() as u64).sum());
        // A process that has the memory alone removes its pages by itself.
        if self.tracking != Tracking::OwnTwins {
            self.remove(&dropped)?;
        }
        Ok(sorted)
    }

    /// Merges changes of others into written pages of a unit.
    async fn merge(&self, pages: Range<u32>) -> Result<()> {
        let bytes = self.read_home(pages.start / UNIT_PAGES, &pages).await?;
        let mut twin: Page = [0; PAGE_SIZE];
        for (number, home) in pages.clone().zip(bytes.as_chunks::<PAGE_SIZE>().0) {
            self.memory.read_twins(number..number + 1, &mut twin);
            let changed = Difference::between(&twin, home);
            if changed.is_empty() {
                continue;
            }
            // A byte that a process of this node has stored as well is a data race: either value may remain.
            self.store_changes(number, &changed, home);
            let start = u64::from(number) * PAGE_SIZE as u64;
            for run in changed.runs() {
                self.memory
                    .write_twins(start + u64::from(run.start), &home[run.start.into()..run.end.into()]);
            }
            self.control().count(Counter::PagesMerged, 1);
        }
        Ok(())
    }
}
