//! One process that has attached to a region.

use super::Regions;
use super::barrier::NodeBarrier;
use super::held_locks::HeldLocks;
use super::memory::Memory;
use crate::replies::unexpected_reply;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tameike_core::wire::region::{RegionReply, RegionRequest};
use tameike_core::{Errno, Fault, Result};
use tameike_dsm::memory::RegionMemory;
use tameike_io::os::userfault::Userfault;

/// A process that has attached to a region.
pub struct Attachment {
    regions: Arc<Regions>,
    pub(super) memory: Arc<Memory>,
    barrier: Arc<NodeBarrier>,
    owner: u16,
    pub(super) locks: HeldLocks,
    userfault: OnceLock<Userfault>,
    pub(super) detached: AtomicBool,
}

impl Attachment {
    pub(super) fn new(
        regions: Arc<Regions>,
        memory: Arc<Memory>,
        barrier: Arc<NodeBarrier>,
    ) -> Result<Arc<Self>> {
        let Some(owner) = memory.add_owner() else {
            let why = "too many processes of this node have attached to the region";
            let fault = Fault::new(Errno::EMFILE, why);
            barrier.left(&memory, true, fault.clone());
            return Err(fault);
        };
        let (userfault, detached) = Default::default();
        let locks = HeldLocks::new(&regions.parts);
        Ok(Arc::new(Self { regions, memory, barrier, owner, locks, userfault, detached }))
    }

    /// The memory, to be passed to the process.
    pub fn memory(&self) -> &RegionMemory {
        &self.memory.memory
    }

    /// The number of the process in the words of pages.
    pub fn owner(&self) -> u16 {
        self.owner
    }

    /// The process has mapped the memory and registered it: `userfault` installs pages in it.
    pub fn mapped(&self, userfault: Userfault) {
        // A process maps the memory once; it harms only itself otherwise.
        let _ = self.userfault.set(userfault);
    }

    /// Makes an absent page valid, and pages after it for a sequential reader. Returns the number of pages from this one on that
    /// are no longer absent.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the home has failed; `EIO` if the data is damaged; `EINVAL` for a page beyond the end; `ENOMEM`.
    pub async fn fetch(&self, page: u32, write: bool) -> Result<u32> {
        // The process makes the twin itself.
        let _ = write;
        if page >= self.memory.file.pages {
            return Err(Errno::EINVAL.into());
        }
        self.memory.fetch(page, self.userfault.get()).await
    }

    /// Sends the stores of this node's processes to the homes, where updates of others find them.
    ///
    /// # Errors
    /// `EHOSTDOWN`, `ENOSPC`: some stores are not at their homes; the next flush sends them.
    pub async fn flush(&self) -> Result<()> {
        self.memory.publish().await
    }

    /// Brings the memory up to date with all flushes that have ended before.
    ///
    /// # Errors
    /// `EHOSTDOWN`: some pages may be older.
    pub async fn update(&self) -> Result<()> {
        self.memory.update().await.map(drop)
    }

    /// Waits until all processes of the region have called it. All stores before are then visible to all of them.
    ///
    /// # Errors
    /// `EPIPE` or `EOWNERDEAD` if a process of the region has ended or detached; `EHOSTDOWN` if a node has failed; those of
    /// [`Self::flush`] and [`Self::update`], after the barrier.
    pub async fn barrier(&self) -> Result<()> {
        self.barrier.wait().await
    }

    /// Detaches the process, with a flush. `failed`: it has ended without detaching. Does nothing the second time.
    ///
    /// # Errors
    /// Those of [`Self::flush`].
    pub async fn detach(&self, failed: bool) -> Result<()> {
        if self.detached.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // First, so that no claim of the process is in the way of the flush.
        let was_last = self.memory.remove_owner(self.owner);
        let published = self.memory.publish().await;
        let fault = match failed {
            true => Fault::new(Errno::EOWNERDEAD, "a process of this node has ended without detaching"),
            false => Fault::new(Errno::EPIPE, "a process of this node has detached"),
        };
        self.barrier.left(&self.memory, was_last, fault);
        let region = self.memory.file.inode;
        self.regions.remove_unused(region);
        let left = self.regions.parts.ask(region, RegionRequest::Detach { region, failed }).await;
        // Afterwards, so that the next owner of a lock learns that this one has failed.
        self.locks.release_all(&self.regions.parts, region).await;
        match left {
            Ok(RegionReply::Done) => published,
            Ok(other) => Err(unexpected_reply(&other)),
            Err(fault) => published.and(Err(fault)),
        }
    }
}
