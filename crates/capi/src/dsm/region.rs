//! A region in the address space of the process.

use super::attached::{self, Attached};
use crate::file::{Result, RingFile};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ffi::{CString, c_int, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use tameike_core::region::{Terms, Tracking};
use tameike_dsm::control::{Counter, PAGE_SIZE};
use tameike_dsm::fault::{MappedRegion, Mechanism, PageSource, has, map};
use tameike_dsm::memory::RegionMemory;
use tameike_io::os::fault_signal::{self, FaultHandler, PageFault, Watched, watch};
use tameike_io::os::forked::OwnMark;
use tameike_ring::client::{self, Answer, Client};

/// A shared memory region.
pub struct Region {
    /// Ends before the mapping does.
    watched: Watched,
    served: Arc<Served>,
    attached: Attached,
    /// Open as long as the process is attached.
    file: RingFile,
    tracking: Tracking,
    path: CString,
}

/// The mapping, and the process that has it.
struct Served {
    mapped: MappedRegion,
    own: OwnMark,
}

/// The agent, as the source of pages.
struct Agent(Attached);

/// Serializes opens: the ring passes descriptors of one region or window at a time.
pub(crate) static OPENING: Mutex<()> = Mutex::new(());
/// The kernel reports faults by userfaultfd.
static HAS_USERFAULT: OnceLock<bool> = OnceLock::new();
/// The kernel records written pages.
static HAS_WRITTEN_PAGES: OnceLock<bool> = OnceLock::new();

impl PageSource for Agent {
    fn fetch(&self, page: u32, write: bool) -> std::result::Result<u32, i32> {
        match self.0.client.fetch_page(self.0.region, page, write) {
            Answer::Done(count) => Ok(count),
            Answer::Failed(errno) => Err(errno),
            Answer::Declined | Answer::Broken => Err(Errno::IO.raw_os_error()),
        }
    }
}

impl FaultHandler for Served {
    fn serve(&self, fault: PageFault) -> bool {
        // A child does not have the mapping.
        self.own.is_own() && self.mapped.serve(fault)
    }

    fn bring(&self, addresses: Range<usize>, write: bool) {
        if self.own.is_own() {
            self.mapped.bring(addresses, write);
        }
    }
}

/// Makes memory of regions in a range accessible to system calls.
extern "C" fn touch(start: *const c_void, size: usize, write: c_int) {
    let start = start as usize;
    fault_signal::bring(&(start..start.saturating_add(size)), write != 0);
}

/// Has the library for preloaded programs bring the pages of buffers before system calls, if the process has it.
fn touch_before_calls() {
    type Register = extern "C" fn(extern "C" fn(*const c_void, usize, c_int));
    // SAFETY: a name that ends with 0.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"tameike_preload_touch_with".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the function of that name has this type.
        let register: Register = unsafe { std::mem::transmute(found) };
        register(touch);
    }
}

/// The result of a call that only the agent can serve.
pub(crate) fn result_of<T>(answer: Answer<T>) -> Result<T> {
    answer.served().unwrap_or(Err(Errno::OPNOTSUPP))
}

/// How stores of this process are found, by `mprotect` if that is asked for or if the kernel has nothing else.
pub fn choose_tracking(one_writer: bool, by_protections: bool) -> Tracking {
    if by_protections || !HAS_USERFAULT.get_or_init(|| has(Tracking::Twins)) {
        return Tracking::OwnTwins;
    }
    match one_writer && *HAS_WRITTEN_PAGES.get_or_init(|| has(Tracking::WrittenPages)) {
        true => Tracking::WrittenPages,
        false => Tracking::Twins,
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Region {
    /// Attaches to the region of a file. With `reserve`, space for the file is reserved.
    pub fn attach(file: RingFile, path: CString, terms: Terms, reserve: bool) -> Result<Self> {
        let tracking = terms.tracking;
        let _opening = OPENING.lock();
        let client = file.client();
        let opened = result_of(client.open_region(file.handle(), terms, reserve))?;
        let attached = Attached { client, region: opened.number };
        let made = Self::map(client, opened, tracking);
        match made {
            Ok((watched, served)) => {
                attached::add(attached);
                Ok(Self { watched, served, attached, file, tracking, path })
            }
            Err(error) => {
                // The call fails in any case.
                let _: Answer<()> = client.close_region(attached.region);
                Err(error)
            }
        }
    }

    /// Maps the memory, and serves its faults from now on.
    fn map(
        client: &'static Client,
        opened: client::Region,
        tracking: Tracking,
    ) -> Result<(Watched, Arc<Served>)> {
        let own = OwnMark::new().map_err(|error| errno_of(&error))?;
        let memory = RegionMemory::map(opened.memory, opened.pages).map_err(|error| errno_of(&error))?;
        let (mapping, mechanism) = map(&memory, tracking).map_err(|error| errno_of(&error))?;
        let pass = |descriptors: &[BorrowedFd<'_>], start| {
            result_of(client.map_region(opened.number, descriptors, start))
        };
        match &mechanism {
            Mechanism::Userfault(userfault) => pass(&[userfault.descriptor()], userfault.start())?,
            Mechanism::WrittenPages(userfault, pagemap) => {
                pass(&[userfault.descriptor(), pagemap.descriptor()], userfault.start())?;
            }
            Mechanism::Protection(_) | Mechanism::None => {}
        }
        let agent = Box::new(Agent(Attached { client, region: opened.number }));
        let mapped = MappedRegion::new(memory, (mapping, mechanism), agent, opened.owner);
        let served = Arc::new(Served { mapped, own });
        touch_before_calls();
        let watched = watch(served.mapped.addresses(), served.clone()).map_err(|error| errno_of(&error))?;
        Ok((watched, served))
    }

    /// The mapping; `EIO` in a child of the process that attached.
    fn mapped(&self) -> Result<&MappedRegion> {
        if self.served.own.is_own() { Ok(&self.served.mapped) } else { Err(Errno::IO) }
    }

    /// Address of the first byte; `EIO` in a child.
    pub fn address(&self) -> Result<usize> {
        Ok(self.mapped()?.addresses().start)
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.served.mapped.addresses().len() as u64
    }

    /// Path of the file.
    pub fn path(&self) -> &CString {
        &self.path
    }

    /// Sends changed bytes to the homes.
    pub fn flush(&self) -> Result<()> {
        self.call(Client::flush_region)
    }

    /// Makes flushed changes of other nodes visible.
    pub fn update(&self) -> Result<()> {
        self.call(Client::update_region)
    }

    /// Waits for all processes.
    pub fn barrier(&self) -> Result<()> {
        self.call(Client::wait_for_region)
    }

    /// Takes a lock; returns true if a process has ended without detaching.
    pub fn lock(&self, number: u32) -> Result<bool> {
        self.call(|client, region| client.lock_region(region, number))
    }

    /// Flushes, and releases a lock.
    pub fn unlock(&self, number: u32) -> Result<()> {
        self.call(|client, region| client.unlock_region(region, number))
    }

    /// Adds to a number at its home, and returns the number before.
    pub fn fetch_add(&self, offset: u64, addend: u64) -> Result<u64> {
        self.mapped()?;
        result_of(self.attached.client.add_in_region(self.attached.region, offset, addend))
    }

    /// Allocates a block of bytes, and returns its offset.
    pub fn allocate(&self, bytes: u64, alignment: u64) -> Result<u64> {
        self.mapped()?;
        result_of(self.attached.client.allocate_in_region(self.attached.region, bytes, alignment))
    }

    /// Frees an allocated block.
    pub fn free(&self, offset: u64) -> Result<()> {
        self.mapped()?;
        result_of(self.attached.client.free_in_region(self.attached.region, offset))
    }

    fn call<T>(&self, call: impl FnOnce(&Client, u64) -> Answer<T>) -> Result<T> {
        let mapped = self.mapped()?;
        let called = result_of(call(self.attached.client, self.attached.region));
        // A call that has failed may have dropped pages.
        let adapted = mapped.adapt_protections().map_err(Errno::from_raw_os_error);
        called.and_then(|called| adapted.map(|()| called))
    }

    /// Makes bytes accessible to system calls.
    pub fn touch(&self, bytes: Range<u64>, write: bool) -> Result<()> {
        let mapped = self.mapped()?;
        if bytes.end > self.size() {
            return Err(Errno::INVAL);
        }
        let page = |at: u64| (at / PAGE_SIZE as u64) as u32;
        let pages = page(bytes.start)..page(bytes.end.next_multiple_of(PAGE_SIZE as u64));
        mapped.touch(pages, write).map_err(Errno::from_raw_os_error)
    }

    /// Value of a counter of the node.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.served.mapped.memory().control.counted(counter)
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.served.mapped.memory().pages()
    }

    /// How stores of this process are found.
    pub fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// Detaches, and removes the mapping.
    pub fn detach(self) -> Result<()> {
        if !self.served.own.is_own() {
            // The mapping and the region are those of the parent.
            std::mem::forget(self);
            return Err(Errno::IO);
        }
        // At the end of the process, the region may be closed already.
        let detached =
            if attached::remove(self.attached) { result_of(self.attached.close()) } else { Ok(()) };
        let Self { watched, served, file, .. } = self;
        drop(watched);
        drop(served);
        let closed = file.close();
        detached.and(closed)
    }
}
