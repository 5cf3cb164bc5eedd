//! Shared memory regions.

use super::call::NoReply;
use super::received::NoFiles;
use super::{Answer, Client, done};
use crate::layout::{REGION_FILES, SLOTS};
use crate::message::{Reply, Request};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use tameike_core::region::Terms;
use tameike_io::os::socket::send_files;

/// Slots that calls leave free, if they wait for other processes or nodes.
pub(super) const LEFT_BY_LONG_CALLS: usize = SLOTS / 2;

/// The same for waits for locks: the owner of a lock, which may be a thread of this process, must be able to flush and to release it.
const LEFT_BY_LOCKS: usize = SLOTS - SLOTS / 4;

/// The same for barriers, so that a process can flush and detach while threads are in barriers.
pub(crate) const LEFT_BY_BARRIERS: usize = SLOTS - SLOTS / 2 + SLOTS / 8;

/// The number of a reply.
fn number(reply: Reply) -> Option<u64> {
    match reply {
        Reply::Offset(number) => Some(number),
        _ => None,
    }
}

/// A region to which the process is attached.
#[derive(Debug)]
pub struct Region {
    /// Number for later calls of this process.
    pub number: u64,
    /// The node's number of this process, by which it claims pages.
    pub owner: u16,
    /// Number of pages.
    pub pages: u32,
    /// The region's memory: data, twins and control memory.
    pub memory: [OwnedFd; REGION_FILES],
}

impl Client {
    /// Attaches to the region of a file that is open for reading and writing. With `reserve`, the agent reserves space for the file first.
    /// Only one thread at a time may call it, and no signal handler.
    pub fn open_region(&self, handle: u64, terms: Terms, reserve: bool) -> Answer<Region> {
        self.has_regions.store(true, Ordering::Relaxed);
        self.received.region.expect();
        let reply = self.by_long_call(&Request::RegionOpen { handle, terms, reserve });
        let attached = self.take(reply, |reply| match reply {
            Reply::Region { number, owner, pages } => Some((number, owner, pages)),
            _ => None,
        });
        let (number, owner, pages) = match attached {
            Answer::Done(attached) => attached,
            Answer::Failed(errno) => return Answer::Failed(errno),
            Answer::Declined => return Answer::Declined,
            Answer::Broken => return Answer::Broken,
        };
        match self.take_region_files() {
            Ok(memory) => Answer::Done(Region { number, owner, pages, memory }),
            Err(NoFiles::Lacking) => {
                // The open fails in any case.
                let _: Answer<()> = self.close_region(number);
                Answer::Failed(Errno::MFILE.raw_os_error())
            }
            Err(NoFiles::Unsent) => self.give_up().into(),
        }
    }

    /// Passes the userfaultfd of a region, mapped at `address`, to the agent, and the page table if there is one to pass. Only one thread at
    /// a time may call it.
    pub fn map_region(&self, region: u64, descriptors: &[BorrowedFd<'_>], address: u64) -> Answer<()> {
        if self.is_broken() {
            return Answer::Broken;
        }
        if send_files(&self.socket, descriptors).is_err() {
            return self.give_up().into();
        }
        self.take(self.by_long_call(&Request::RegionMapped { region, address }), done)
    }

    /// Has the agent fetch an absent page, and pages after it that are likely to be used next. Returns their number. Never declined for lack
    /// of a slot, also in signal handlers of threads that hold one.
    pub fn fetch_page(&self, region: u64, page: u32, write: bool) -> Answer<u32> {
        let claim = self.claim_of(&self.slots, 0, false);
        let request = Request::RegionFetch { region, page, write };
        let reply = claim.and_then(|claim| self.ask_at(&self.fault_pace, &claim, &request));
        self.take(reply, |reply| match reply {
            Reply::Count(count) => Some(count),
            _ => None,
        })
    }

    /// Sends changed bytes of a region to the homes.
    pub fn flush_region(&self, region: u64) -> Answer<()> {
        self.take(self.by_long_call(&Request::RegionFlush { region }), done)
    }

    /// Makes flushed changes of other nodes visible.
    pub fn update_region(&self, region: u64) -> Answer<()> {
        self.take(self.by_long_call(&Request::RegionUpdate { region }), done)
    }

    /// Waits for all processes of a region.
    pub fn wait_for_region(&self, region: u64) -> Answer<()> {
        self.take(self.by_waiting_call(LEFT_BY_BARRIERS, &Request::RegionBarrier { region }), done)
    }

    /// Takes a lock of a region. Returns true if a process of the region has ended without detaching.
    pub fn lock_region(&self, region: u64, lock: u32) -> Answer<bool> {
        let reply = self.by_waiting_call(LEFT_BY_LOCKS, &Request::RegionLock { region, lock });
        self.take(reply, |reply| match reply {
            Reply::Count(failed) => Some(failed != 0),
            _ => None,
        })
    }

    /// Sends changed bytes of a region to the homes, and releases a lock.
    pub fn unlock_region(&self, region: u64, lock: u32) -> Answer<()> {
        self.take(self.by_long_call(&Request::RegionUnlock { region, lock }), done)
    }

    /// Adds to a number in a region, and returns the number before.
    pub fn add_in_region(&self, region: u64, offset: u64, addend: u64) -> Answer<u64> {
        self.take(self.by_long_call(&Request::RegionFetchAdd { region, offset, addend }), number)
    }

    /// Allocates a block of a region, and returns its offset.
    pub fn allocate_in_region(&self, region: u64, bytes: u64, alignment: u64) -> Answer<u64> {
        self.take(self.by_long_call(&Request::RegionAllocate { region, bytes, alignment }), number)
    }

    /// Frees an allocated block of a region.
    pub fn free_in_region(&self, region: u64, offset: u64) -> Answer<()> {
        self.take(self.by_long_call(&Request::RegionFree { region, offset }), done)
    }

    /// Detaches from a region. The number is invalid afterwards in any case.
    pub fn close_region(&self, region: u64) -> Answer<()> {
        self.take(self.by_long_call(&Request::RegionClose { region }), done)
    }

    /// Slots reserved for page faults of regions: a call that holds a slot may need a page of its program's memory.
    pub(super) fn fault_slots(&self) -> usize {
        usize::from(self.has_regions.load(Ordering::Relaxed))
    }

    /// Asks with one of the slots for long calls, however long it takes to get one.
    pub(super) fn by_long_call(&self, request: &Request) -> Result<Reply, NoReply> {
        self.by_waiting_call(LEFT_BY_LONG_CALLS, request)
    }

    fn by_waiting_call(&self, left: usize, request: &Request) -> Result<Reply, NoReply> {
        let _long = self.claim_of(&self.long_calls, left, false)?;
        let claim = self.claim_of(&self.slots, self.fault_slots(), false)?;
        self.ask_long(&claim, request)
    }
}
