//! Page faults of one process on a region.
//!
//! Two mechanisms report them: userfaultfd, with which the processes of a node share one memory, and `mprotect`, with memory of the
//! process alone. [`MappedRegion::serve`] is the same for both: it brings the page into a state that allows the access. If the kernel
//! records written pages, only accesses to absent pages are reported.

use crate::control::{Counter, PAGE_SIZE, PageState, UNIT_PAGES};
use crate::memory::RegionMemory;
use rustix::mm::{MprotectFlags, ProtFlags};
use rustix::thread::sched_yield;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use tameike_core::region::Tracking;
use tameike_io::os::fault_signal::{FaultHandler, PageFault};
use tameike_io::os::mapping::Mapping;
use tameike_io::os::pagemap::Pagemap;
use tameike_io::os::userfault::{Reports, Userfault};

/// Largest number of pages that one fault makes writable, if writes are sequential.
const WRITE_AHEAD_MAX: u32 = 64;
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
/// Largest number of faults in a row that need no change: the access fails for another reason.
const IDLE_FAULTS_MAX: u32 = 100_000;

/// The agent of the node, as a process sees it.
pub trait PageSource: Send + Sync {
    /// Has the agent fetch an absent page, and pages after it that are likely to be used next. Returns the number of pages
    /// from this one on that are no longer absent. Called in a signal handler: must be async-signal-safe.
    ///
    /// # Errors
    /// The errno of the fetch.
    fn fetch(&self, page: u32, write: bool) -> Result<u32, i32>;
}

/// How faults are reported, and access is allowed.
#[derive(Debug)]
pub enum Mechanism {
    /// By userfaultfd.
    Userfault(Userfault),
    /// By userfaultfd for absent pages. The kernel records which pages are written to.
    WrittenPages(Userfault, Pagemap),
    /// By the protection of pages.
    Protection(Protections),
    /// Not at all: each access follows [`MappedRegion::advance`], in simulated programs.
    None,
}

/// Protections of the pages of a mapping.
#[derive(Debug)]
pub struct Protections {
    /// By page: 0 for no access, 1 for reads, 2 for writes.
    pages: Box<[AtomicU8]>,
}

const NO_ACCESS: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// A region in the address space of a process.
pub struct MappedRegion {
    memory: RegionMemory,
    mapping: Mapping,
    mechanism: Mechanism,
    source: Box<dyn PageSource>,
    /// The agent's number of this process.
    owner: u16,
    /// The page after the last one that a write fault has opened, and how many it opened.
    next_write: AtomicU32,
    ahead: AtomicU32,
    idle_faults: AtomicU32,
}

/// What a page needs before an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the access is allowed.
    Done,
    /// Another step, after another thread or process has ended its own.
    Again,
    /// A fetch by the agent, then another step.
    Fetch,
}

/// Maps the data of a region, without access to any page, and prepares for its faults.
///
/// # Errors
/// Those of mmap(2); those of [`Userfault::register`]; `Unsupported` or `ENOTTY` if the kernel does not report written pages.
pub fn map(memory: &RegionMemory, tracking: Tracking) -> std::io::Result<(Mapping, Mechanism)> {
    let size = memory.pages() as usize * PAGE_SIZE;
    let access = match tracking {
        Tracking::OwnTwins => ProtFlags::empty(),
        Tracking::Twins | Tracking::WrittenPages => ProtFlags::READ | ProtFlags::WRITE,
    };
    let mapping = Mapping::shared(memory.data(), size, access)?;
    mapping.keep_from_children()?;
    let mechanism = match tracking {
        Tracking::Twins => Mechanism::Userfault(Userfault::register(&mapping, Reports::MissingAndWrites)?),
        Tracking::OwnTwins => {
            let pages = (0..memory.pages()).map(|_| AtomicU8::new(NO_ACCESS)).collect();
            Mechanism::Protection(Protections { pages })
        }
        Tracking::WrittenPages => {
            let userfault = Userfault::register(&mapping, Reports::Missing)?;
            Mechanism::WrittenPages(userfault, Pagemap::open()?)
        }
    };
    Ok((mapping, mechanism))
}

/// Returns true if this kernel has what a tracking needs.
pub fn has(tracking: Tracking) -> bool {
    try_out(tracking).is_ok()
}

/// As [`has`], with the reason if not.
///
/// # Errors
/// Those of [`map`].
pub fn try_out(tracking: Tracking) -> std::io::Result<()> {
    match map(&RegionMemory::create(1)?, tracking)? {
        (_, Mechanism::WrittenPages(userfault, pagemap)) => {
            pagemap.take_written(&userfault, 0..PAGE_SIZE as u64, |_| ())
        }
        _ => Ok(()),
    }
}

impl MappedRegion {
    /// A region of this process. `owner` is the number that the agent has given it.
    pub fn new(
        memory: RegionMemory,
        (mapping, mechanism): (Mapping, Mechanism),
        source: Box<dyn PageSource>,
        owner: u16,
    ) -> Self {
        let (next_write, ahead, idle_faults) = Default::default();
        Self { memory, mapping, mechanism, source, owner, next_write, ahead, idle_faults }
    }

    /// The memory of the node.
    pub fn memory(&self) -> &RegionMemory {
        &self.memory
    }

    /// Addresses of the region.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.mapping.start().as_ptr() as usize;
        start..start + self.mapping.size()
    }

    /// Brings pages into a state that allows reads, or writes, so that system calls can access them.
    ///
    /// # Errors
    /// The errno of a fetch; `EIO` if the access cannot be allowed.
    pub fn touch(&self, pages: Range<u32>, write: bool) -> Result<(), i32> {
        for page in pages {
            self.bring_page(page, write)?;
            if !write {
                // Another thread may have fetched it, and not have allowed reads yet.
                self.allow(page..page + 1, false)?;
            }
        }
        Ok(())
    }

    /// Takes steps until an access is allowed.
    fn bring_page(&self, page: u32, write: bool) -> Result<(), i32> {
        loop {
            match self.advance(page, write)? {
                Step::Done => return Ok(()),
                Step::Again => sched_yield(),
                Step::Fetch => {
                    let control = &self.memory.control;
                    control.count(Counter::ReadFaults, 1);
                    self.idle_faults.store(0, Ordering::Relaxed);
                    let count = self.source.fetch(page, write)?.clamp(1, control.pages() - page);
                    self.allow(control.run(page..page + count, PageState::Valid), false)?;
                    if !write || !self.has_twins() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Adapts the protections of this process to the states of pages, after a call that has dropped pages. With userfaultfd, the agent
    /// has done that.
    ///
    /// # Errors
    /// `EIO` if a protection cannot be changed.
    pub fn adapt_protections(&self) -> Result<(), i32> {
        let Mechanism::Protection(protections) = &self.mechanism else { return Ok(()) };
        for (page, protection) in protections.pages.iter().enumerate() {
            let page = page as u32;
            if protection.load(Ordering::Acquire) == NO_ACCESS {
                continue;
            }
            if self.memory.control.load(page).state() == PageState::Absent {
                self.protect(protections, page..page + 1, NO_ACCESS).map_err(|_| EIO)?;
            }
        }
        Ok(())
    }

    /// Takes one step of a page towards an access, without waiting.
    ///
    /// # Errors
    /// `EIO` if the access cannot be allowed.
    pub fn advance(&self, page: u32, write: bool) -> Result<Step, i32> {
        let control = &self.memory.control;
        match control.load(page).state() {
            PageState::Absent => Ok(Step::Fetch),
            PageState::Claimed | PageState::Opening => Ok(Step::Again),
            PageState::Valid if write && self.has_twins() => self.begin_writes(page),
            PageState::Valid => {
                self.allow(page..page + 1, false)?;
                self.idle()
            }
            PageState::Written => {
                let end = control.pages_of(page / UNIT_PAGES).end;
                let claimed = self.claim(control.run(page..end, PageState::Written), PageState::Opening);
                if claimed.is_empty() {
                    return Ok(Step::Again);
                }
                self.open(claimed)?;
                self.idle()
            }
        }
    }

    /// Whether the process makes twins before it writes.
    fn has_twins(&self) -> bool {
        !matches!(self.mechanism, Mechanism::WrittenPages(..))
    }

    /// Moves pages from the start of a range to a state in which other processes and the agent leave them alone, as far as they are
    /// in the state of the first one.
    fn claim(&self, pages: Range<u32>, state: PageState) -> Range<u32> {
        let control = &self.memory.control;
        let before = if state == PageState::Opening { PageState::Written } else { PageState::Valid };
        let claim = |page: &u32| {
            let word = control.load(*page);
            word.state() == before && control.replace(*page, word, word.with(state, self.owner))
        };
        pages.start..pages.start + pages.take_while(claim).count() as u32
    }

    fn set(&self, pages: Range<u32>, state: PageState) {
        let control = &self.memory.control;
        let owner = if state == PageState::Opening { self.owner } else { 0 };
        pages.for_each(|page| control.store(page, control.load(page).with(state, owner)));
    }

    /// Allows writes to opening pages.
    fn open(&self, pages: Range<u32>) -> Result<(), i32> {
        let opened = self.allow(pages.clone(), true);
        self.set(pages, PageState::Written);
        opened
    }

    /// Another thread may have served the fault; but not forever.
    fn idle(&self) -> Result<Step, i32> {
        let count = self.idle_faults.fetch_add(1, Ordering::Relaxed);
        if count > IDLE_FAULTS_MAX { Err(EIO) } else { Ok(Step::Done) }
    }

    /// Makes twins of a page and, if writes are sequential, of pages after it, and allows writes to them.
    fn begin_writes(&self, page: u32) -> Result<Step, i32> {
        let control = &self.memory.control;
        control.count(Counter::WriteFaults, 1);
        let is_sequential = self.next_write.load(Ordering::Relaxed) == page && page > 0;
        let ahead =
            if is_sequential { self.ahead.load(Ordering::Relaxed).clamp(1, WRITE_AHEAD_MAX) } else { 1 };
        let unit = page / UNIT_PAGES;
        let end = control.pages_of(unit).end.min(page.saturating_add(ahead));
        // Before the first claim: the agent finds claims of ended processes by this.
        control.note_written(unit);
        let claimed = self.claim(page..end, PageState::Claimed);
        if claimed.is_empty() {
            return Ok(Step::Again);
        }
        if let Err(error) = self.memory.make_twins(claimed.clone()) {
            self.set(claimed, PageState::Valid);
            return Err(error.raw_os_error().unwrap_or(EIO));
        }
        self.set(claimed.clone(), PageState::Opening);
        self.next_write.store(claimed.end, Ordering::Relaxed);
        self.ahead.store(ahead * 2, Ordering::Relaxed);
        self.idle_faults.store(0, Ordering::Relaxed);
        self.open(claimed)?;
        Ok(Step::Done)
    }

    /// Allows access to pages that are in a state for it.
    fn allow(&self, pages: Range<u32>, write: bool) -> Result<(), i32> {
        let allowed = match &self.mechanism {
            Mechanism::Userfault(userfault) if write => {
                let size = PAGE_SIZE as u64;
                userfault.unprotect(u64::from(pages.start) * size..u64::from(pages.end) * size)
            }
            // The agent has mapped the pages, or the kernel does it at the next access.
            Mechanism::Userfault(_) | Mechanism::WrittenPages(..) | Mechanism::None => Ok(()),
            Mechanism::Protection(protections) => {
                self.protect(protections, pages, if write { WRITE } else { READ })
            }
        };
        allowed.map_err(|error| error.raw_os_error().unwrap_or(EIO))
    }

    fn protect(&self, protections: &Protections, pages: Range<u32>, access: u8) -> std::io::Result<()> {
        let flags = match access {
            NO_ACCESS => MprotectFlags::empty(),
            READ => MprotectFlags::READ,
            _ => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        let (at, size) = (pages.start as usize * PAGE_SIZE, pages.len() * PAGE_SIZE);
        // Before the access is possible, so that no open page is overlooked later.
        let mark = || {
            let all = &protections.pages[pages.start as usize..pages.end as usize];
            all.iter().for_each(|page| page.store(access, Ordering::Release));
        };
        if access != NO_ACCESS {
            mark();
        }
        self.mapping.protect(at, size, flags)?;
        if access == NO_ACCESS {
            mark();
        }
        Ok(())
    }
}

impl FaultHandler for MappedRegion {
    fn serve(&self, fault: PageFault) -> bool {
        let page = ((fault.address - self.addresses().start) / PAGE_SIZE) as u32;
        self.bring_page(page, fault.write).is_ok()
    }

    fn bring(&self, addresses: Range<usize>, write: bool) {
        let start = self.addresses().start;
        let pages = (addresses.start - start) / PAGE_SIZE..(addresses.end - start).div_ceil(PAGE_SIZE);
        // The system call fails with `EFAULT` if this does.
        let _ = self.touch(pages.start as u32..pages.end as u32, write);
    }
}
