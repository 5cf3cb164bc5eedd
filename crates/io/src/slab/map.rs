//! The memory mapping of the slab.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use tameike_core::limits::UNIT_SIZE;

/// Size of the huge pages, in bytes.
const HUGE_PAGE_SIZE: usize = 2 << 20;

/// Anonymous memory, unmapped on drop. Holders of its descriptor can read it.
pub(super) struct Map {
    start: NonNull<c_void>,
    size: usize,
    /// `size` rounded up to whole pages.
    mapped: usize,
    memory: OwnedFd,
    /// True if no other process can write to it.
    is_sealed: bool,
}

// SAFETY: the memory is bound to no thread, and is accessed only through frames, each of which has one owner.
unsafe impl Send for Map {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps reserved huge pages if available, which relieve the TLB and devices; ordinary pages otherwise.
    pub(super) fn new(size: usize) -> std::io::Result<Self> {
        Self::in_reserved_pages(size).or_else(|_| Self::in_pages(size))
    }

    /// Maps huge pages that the administrator reserved. All are allocated now, because the lack of one later would kill the
    /// process.
    pub(super) fn in_reserved_pages(size: usize) -> std::io::Result<Self> {
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let map = Self::create(size, size.next_multiple_of(HUGE_PAGE_SIZE), flags)?;
        // SAFETY: the mapping is owned here, and keeps its content.
        unsafe { madvise(map.start.as_ptr(), map.mapped, Advice::LinuxPopulateWrite)? };
        Ok(map)
    }

    fn in_pages(size: usize) -> std::io::Result<Self> {
        let map = Self::create(size, size, MemfdFlags::empty())?;
        // A hint: use transparent huge pages if the system permits them for shared memory.
        // SAFETY: the mapping is owned here, and keeps its content.
        let _ = unsafe { madvise(map.start.as_ptr(), map.mapped, Advice::LinuxHugepage) };
        Ok(map)
    }

    fn create(size: usize, mapped: usize, flags: MemfdFlags) -> std::io::Result<Self> {
        let memory = memfd_create("tameike-slab", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
        ftruncate(&memory, mapped as u64)?;
        let start = map_writable(&memory, mapped)?;
        let mut map = Self { start, size, mapped, memory, is_sealed: false };
        // No other process can shrink the memory or write to it.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match fcntl_add_seals(&map.memory, seals | SealFlags::FUTURE_WRITE) {
            Ok(()) => map.is_sealed = map.refuses_writers(),
            // Linux before 5.1 lacks `FUTURE_WRITE`.
            Err(Errno::INVAL) => fcntl_add_seals(&map.memory, seals)?,
            Err(error) => return Err(error.into()),
        }
        Ok(map)
    }

    /// Tests the seal, since some kernels enforce it for ordinary pages only.
    fn refuses_writers(&self) -> bool {
        match map_writable(&self.memory, self.mapped) {
            Ok(start) => {
                // SAFETY: the mapping was just created, and has no references.
                let unmapped = unsafe { munmap(start.as_ptr(), self.mapped) };
                debug_assert!(unmapped.is_ok());
                false
            }
            Err(_) => true,
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The pieces of `size` bytes, and the rest.
    pub(super) fn pieces(&self, size: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        (0..self.size).step_by(size).map(move |offset| {
            // SAFETY: the offset lies in the mapping.
            let start = unsafe { self.start.cast::<u8>().add(offset) };
            (start, size.min(self.size - offset))
        })
    }

    pub(super) fn region(&self) -> (NonNull<u8>, usize) {
        (self.start.cast(), self.size)
    }

    fn address(&self, index: u32) -> *mut u8 {
        let offset = index as usize * UNIT_SIZE;
        assert!(offset + UNIT_SIZE <= self.size, "frame {index} lies in the slab");
        // SAFETY: the offset lies in the mapping, as just checked.
        unsafe { self.start.as_ptr().cast::<u8>().add(offset) }
    }

    pub(super) fn frame(&self, index: u32) -> &[u8] {
        // SAFETY: the region is mapped and initialised (zeros at first). A frame number has one owner
        // at a time, and a `&Frame` excludes a `&mut Frame`. Other processes of the host only read it.
        unsafe { std::slice::from_raw_parts(self.address(index), UNIT_SIZE) }
    }

    /// # Safety
    /// The caller is the only owner of this frame number, and holds it exclusively while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the exclusive borrow is that of the frame, not of the map")]
    pub(super) unsafe fn frame_mut(&self, index: u32) -> &mut [u8] {
        // SAFETY: mapped and initialised as in `frame`; exclusive by the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.address(index), UNIT_SIZE) }
    }
}

fn map_writable(memory: &OwnedFd, size: usize) -> std::io::Result<NonNull<c_void>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { mmap(null_mut(), size, protection, MapFlags::SHARED, memory, 0)? };
    NonNull::new(start).ok_or_else(|| std::io::Error::other("mapping at address 0"))
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned here, and no frame outlives the slab that owns this map.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}
