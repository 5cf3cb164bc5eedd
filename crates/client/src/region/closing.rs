//! Closing of written pages: the next store to them faults again, and they lose their twins.
//!
//! The agent claims the pages, protects them in all processes, and compares them once more: then their homes have all stores. An eviction
//! drops them afterwards. Pages that several flushes in a row have found unchanged become valid, so that later flushes need not compare
//! them. The memory of a single process, which changes its protections by itself, keeps its written pages.

use super::flush::Differences;
use super::memory::{Memory, add_page};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::ranges::RangeSet;
use tameike_core::region::Tracking;
use tameike_core::{Errno, Fault, Result};
use tameike_dsm::control::{PAGE_SIZE, PageState};

/// Owner of pages that the agent has claimed.
const AGENT: u16 = 0;

impl Memory {
    /// Claims written pages of some runs, each of one unit, for the agent, and sends their changes. No process can store to them until
    /// their state changes again. Returns the claimed pages.
    ///
    /// # Errors
    /// Those of a flush; the pages are as before then.
    pub async fn close(
        self: &Arc<Self>,
        runs: &[Range<u32>],
        changed: &mut RangeSet,
    ) -> Result<Vec<Range<u32>>> {
        let claimed = self.claim_written(runs);
        if claimed.is_empty() {
            return Ok(claimed);
        }
        let sent = match self.protect_again(&claimed) {
            Ok(()) => self.send_changes(|| Differences::claimed(self, &claimed), changed).await.map(drop),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = sent {
            // A process that stores to one opens it again.
            self.set_claimed(&claimed, PageState::Written);
            return Err(fault);
        }
        Ok(claimed)
    }

    /// Makes written pages valid that flushes have found unchanged.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub async fn close_unchanged(
        self: &Arc<Self>,
        runs: &[Range<u32>],
        changed: &mut RangeSet,
    ) -> Result<()> {
        if self.tracking == Tracking::OwnTwins {
            return Ok(());
        }
        let closed = self.close(runs, changed).await?;
        // Before a process can make a twin again.
        let freed = closed.iter().try_for_each(|run| self.memory.punch_twins(run.clone()));
        self.set_claimed(&closed, PageState::Valid);
        freed.map_err(|error| Fault::from_os("freeing twins of a region", &error))
    }

    /// Claims written pages for the agent. Processes that have opened them can still store to them.
    fn claim_written(&self, runs: &[Range<u32>]) -> Vec<Range<u32>> {
        let control = self.control();
        let mut claimed = Vec::new();
        for page in runs.iter().cloned().flatten() {
            let word = control.load(page);
            let is_written = word.state() == PageState::Written;
            if is_written && control.replace(page, word, word.with(PageState::Claimed, AGENT)) {
                add_page(&mut claimed, page);
            }
        }
        claimed
    }

    /// Moves claimed pages to another state.
    fn set_claimed(&self, runs: &[Range<u32>], state: PageState) {
        let control = self.control();
        for page in runs.iter().cloned().flatten() {
            control.store(page, control.load(page).with(state, 0));
        }
    }

    /// Protects pages against stores, in all processes.
    fn protect_again(&self, runs: &[Range<u32>]) -> Result<()> {
        for process in self.mappings() {
            let Some(mapping) = process.get() else { continue };
            for run in runs {
                let bytes = u64::from(run.start) * PAGE_SIZE as u64..u64::from(run.end) * PAGE_SIZE as u64;
                let protected = mapping.userfault.protect(bytes);
                match protected.map_err(|error| Fault::from_os("protecting pages of a region", &error)) {
                    // The process has ended, or has removed its mapping.
                    Err(fault) if [Errno::ESRCH, Errno::ENOENT].contains(&fault.errno) => break,
                    protected => protected?,
                }
            }
        }
        Ok(())
    }
}
