//! One process that has attached to a region.

use super::barrier::NodeBarrier;
use super::lock::HeldLocks;
use super::memory::{MappingSlot, Memory, ProcessMapping};
use super::window::AttachedWindow;
use super::{Regions, ended};
use crate::replies::unexpected_reply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::region::Tracking;
use tameike_core::wire::region::{RegionReply, RegionRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Result, UnitId};
use tameike_dsm::control::{PAGE_SIZE, UNIT_PAGES};
use tameike_dsm::memory::RegionMemory;

/// A process that has attached to a region.
pub struct Attachment {
    regions: Arc<Regions>,
    memory: Arc<Memory>,
    barrier: Arc<NodeBarrier>,
    owner: u16,
    locks: HeldLocks,
    window: Option<AttachedWindow>,
    mapping: MappingSlot,
    detached: AtomicBool,
}

impl Attachment {
    pub(super) fn new(
        regions: Arc<Regions>,
        memory: Arc<Memory>,
        barrier: Arc<NodeBarrier>,
        rank: Option<u32>,
    ) -> Result<Arc<Self>> {
        let Some((owner, mapping)) = memory.add_owner() else {
            let why = "too many processes of this node have attached to the region";
            let fault = Fault::new(Errno::EMFILE, why);
            barrier.left(&memory, true, fault.clone());
            return Err(fault);
        };
        let detached = AtomicBool::new(false);
        let locks = HeldLocks::new(&regions.parts);
        let window = barrier.window().zip(rank).map(|(window, rank)| window.attach(rank));
        Ok(Arc::new(Self { regions, memory, barrier, owner, locks, window, mapping, detached }))
    }

    /// The memory, to be passed to the process.
    pub fn memory(&self) -> &RegionMemory {
        &self.memory.memory
    }

    /// The window, if the process has attached to one.
    pub fn window(&self) -> Option<&AttachedWindow> {
        self.window.as_ref()
    }

    /// The number of the process in the words of pages.
    pub fn owner(&self) -> u16 {
        self.owner
    }

    /// Whether the kernel records the pages to which the process stores: it passes its page table then.
    pub fn tracks_written_pages(&self) -> bool {
        self.memory.tracking == Tracking::WrittenPages
    }

    /// The process has mapped the memory.
    pub fn mapped(&self, mapping: ProcessMapping) {
        // A process maps the memory once; it harms only itself otherwise.
        let _ = self.mapping.set(mapping);
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
        self.memory.fetch(page, self.mapping.get().map(|mapping| &mapping.userfault)).await
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

    /// Takes a lock of the region, and updates: all stores before its last release are visible then. Returns true if a process of the
    /// region has ended without detaching, perhaps while it held the lock: what the lock protects may be inconsistent.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the coordinator or a home has failed; `ENOLCK` if there are too many locks. The lock is not taken then.
    pub async fn lock(&self, number: u32) -> Result<bool> {
        let region = self.memory.file.inode;
        let owner = self.locks.take(&self.regions.parts, region, number).await?;
        let updated = self.memory.update().await;
        if updated.is_ok() {
            self.locks.holds(number, owner);
            if !self.detached.load(Ordering::Acquire) {
                return updated;
            }
            // Its detach may have released the locks before it had this one.
            self.locks.remove(number);
        }
        // A failed release is logged.
        let _ = self.locks.release(region, number, owner).await;
        updated.and(Err(Fault::new(Errno::EBADF, "the process has detached from the region")))
    }

    /// Flushes, then releases a lock that this process holds.
    ///
    /// # Errors
    /// `EPERM` if the process does not hold it; those of [`Self::flush`], with the lock released.
    pub async fn unlock(&self, number: u32) -> Result<()> {
        let not_held = || Fault::new(Errno::EPERM, format!("the process does not hold lock {number}"));
        let owner = self.locks.remove(number).ok_or_else(not_held)?;
        let flushed = self.memory.publish().await;
        self.locks.release(self.memory.file.inode, number, owner).await?;
        flushed
    }

    /// Adds to the 64-bit number at a byte of the region, at its home, and returns the number before. Loads see the sum after an update.
    ///
    /// # Errors
    /// `EINVAL` if the offset is no multiple of 8 in the region; `EHOSTDOWN`, `ENOSPC`.
    pub async fn fetch_add(&self, offset: u64, addend: u64) -> Result<u64> {
        let memory = &self.memory;
        let page = offset / PAGE_SIZE as u64;
        if !offset.is_multiple_of(8) || page >= u64::from(memory.file.pages) {
            let why = format!("byte {offset} is not the place of a number in the region");
            return Err(Fault::new(Errno::EINVAL, why));
        }
        let unit = UnitId { inode: memory.file.inode, index: page / u64::from(UNIT_PAGES) };
        let home = memory.parts.cluster.unit_home(memory.file.layout, unit);
        let offset = (offset % UNIT_SIZE as u64) as u32;
        let request = Request::Unit(UnitRequest::FetchAdd { unit, offset, addend });
        let answer = memory.parts.call(home, request, None).await;
        {
            // After an error too: the home may have added.
            let page = page as u32;
            let mut added = memory.added.lock();
            added.unannounced.insert(page..page + 1);
            added.stale.insert(page..page + 1);
        }
        match answer?.reply {
            Reply::Unit(UnitReply::Previous(number)) => Ok(number),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Allocates a block of `bytes` bytes of the region, at an offset that is a multiple of `alignment`. Returns its offset. All processes
    /// allocate from the same bytes.
    ///
    /// # Errors
    /// `EINVAL` if the size is 0 or the alignment no power of two; `ENOMEM` if there is no free block; `EHOSTDOWN`.
    pub async fn allocate(&self, bytes: u64, alignment: u64) -> Result<u64> {
        let (region, pages) = (self.memory.file.inode, self.memory.file.pages);
        let request = RegionRequest::Allocate { region, pages, bytes, alignment };
        match self.memory.parts.ask(region, request).await? {
            RegionReply::Allocated(offset) => Ok(offset),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Frees an allocated block.
    ///
    /// # Errors
    /// `EINVAL` if none begins at the offset; `EHOSTDOWN`.
    pub async fn free(&self, offset: u64) -> Result<()> {
        let region = self.memory.file.inode;
        match self.memory.parts.ask(region, RegionRequest::Free { region, offset }).await? {
            RegionReply::Done => Ok(()),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Detaches the process, with a flush. `failed`: it has ended without detaching. Does nothing the second time.
    ///
    /// # Errors
    /// Those of [`Self::flush`].
    pub async fn detach(&self, failed: bool) -> Result<()> {
        if self.detached.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(window) = &self.window {
            window.left();
        }
        // Its page table is not known afterwards.
        let collected = self.memory.collect_written().await;
        // First, so that no claim of the process is in the way of the flush.
        let was_last = self.memory.remove_owner(self.owner);
        let published = collected.and(self.memory.publish().await);
        // The coordinator notifies other nodes only.
        self.barrier.left(&self.memory, was_last, ended(failed));
        let region = self.memory.file.inode;
        self.regions.remove_unused(region);
        let left = self.regions.parts.ask(region, RegionRequest::Detach { region, failed }).await;
        // Afterwards, so that the next owner of a lock learns that this one has failed.
        self.locks.release_all(region).await;
        match left {
            Ok(RegionReply::Done) => published,
            Ok(other) => Err(unexpected_reply(&other)),
            Err(fault) => published.and(Err(fault)),
        }
    }
}
