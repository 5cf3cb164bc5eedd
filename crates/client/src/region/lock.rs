//! Locks of a region, and numbers that processes add to at their home.
//!
//! A lock is a lock of the region's file behind its largest byte. Each acquisition has an owner of its own, so that threads of a process
//! exclude each other too.

use super::attachment::Attachment;
use super::held_locks::range;
use crate::replies::unexpected_reply;
use std::sync::atomic::Ordering;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::lock::{FileLock, LockKind};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Result, UnitId};
use tameike_dsm::control::{PAGE_SIZE, UNIT_PAGES};

impl Attachment {
    /// Takes a lock of the region, and updates: all stores before its last release are visible then. Returns true if a process of the
    /// region has ended without detaching, perhaps while it held the lock: what the lock protects may be inconsistent.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the coordinator or a home has failed; `ENOLCK` if there are too many locks. The lock is not taken then.
    pub async fn lock(&self, number: u32, pid: u32) -> Result<bool> {
        let (region, held) = (self.memory.file.inode, &self.locks);
        let number_of_owner = self.memory.parts.number();
        let owner = held.locks.owner(number_of_owner);
        let lock = FileLock { owner, range: range(number), kind: LockKind::Exclusive, pid };
        let taken = held.locks.take(region, held.handle, lock, (held.locks.ticket(), true)).await;
        let updated = match taken {
            Ok(()) => self.memory.update().await,
            Err(fault) => {
                held.locks.forget(region, number_of_owner);
                return Err(fault);
            }
        };
        let failed = match updated {
            Ok(failed) => failed,
            Err(fault) => {
                held.release(region, number_of_owner, number).await.ok();
                return Err(fault);
            }
        };
        held.owners.lock().insert(number, number_of_owner);
        if self.detached.load(Ordering::Acquire) {
            // Its detach may have released the locks before it had this one.
            held.owners.lock().remove(&number);
            held.release(region, number_of_owner, number).await.ok();
            return Err(Fault::new(Errno::EBADF, "the process has detached from the region"));
        }
        Ok(failed)
    }

    /// Flushes, then releases a lock that this process holds.
    ///
    /// # Errors
    /// `EPERM` if the process does not hold it; those of [`Self::flush`], with the lock released.
    pub async fn unlock(&self, number: u32) -> Result<()> {
        let held = &self.locks;
        let owner = held.owners.lock().remove(&number);
        let not_held = || Fault::new(Errno::EPERM, format!("the process does not hold lock {number}"));
        let owner = owner.ok_or_else(not_held)?;
        let flushed = self.memory.publish().await;
        held.release(self.memory.file.inode, owner, number).await?;
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
}
