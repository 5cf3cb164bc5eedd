//! The memory mapping of the slab.

use crate::os::mapping::Mapping;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags, madvise};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use tameike_core::limits::UNIT_SIZE;

/// Size of the huge pages, in bytes.
const HUGE_PAGE_SIZE: usize = 2 << 20;

/// Anonymous memory, accessed through frames, each of which has one owner. Holders of its descriptor can read it.
pub(super) struct Map {
    /// `size` rounded up to whole pages.
    mapping: Mapping,
    size: usize,
    memory: OwnedFd,
    /// True if no other process can write to it.
    is_sealed: bool,
}

impl Map {
    /// Maps reserved huge pages if available, which relieve the TLB and devices; ordinary pages otherwise.
    pub(super) fn new(size: usize) -> std::io::Result<Self> {
        Self::in_reserved_pages(size).or_else(|_| Self::in_pages(size))
    }

    /// Maps huge pages that the administrator reserved. All are allocated now, because the lack of one later would kill the
    /// process.
    pub(super) fn in_reserved_pages(size: usize) -> std::io::Result<Self> {
        let (mapped, flags) =
            (size.next_multiple_of(HUGE_PAGE_SIZE), MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
        let map = Self::create(size, mapped, flags)?;
        // SAFETY: the mapping is owned here, and keeps its content.
        unsafe { madvise(map.mapping.start().as_ptr().cast(), mapped, Advice::LinuxPopulateWrite)? };
        Ok(map)
    }

    fn in_pages(size: usize) -> std::io::Result<Self> {
        let map = Self::create(size, size, MemfdFlags::empty())?;
        // A hint: use transparent huge pages if the system permits them for shared memory.
        // SAFETY: the mapping is owned here, and keeps its content.
        let _ = unsafe { madvise(map.mapping.start().as_ptr().cast(), size, Advice::LinuxHugepage) };
        Ok(map)
    }

    fn create(size: usize, mapped: usize, flags: MemfdFlags) -> std::io::Result<Self> {
        let memory = memfd_create("tameike-slab", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
        ftruncate(&memory, mapped as u64)?;
        let map_writable = || Mapping::shared(&memory, mapped, ProtFlags::READ | ProtFlags::WRITE);
        let mapping = map_writable()?;
        // No other process can shrink the memory or write to it.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let is_sealed = match fcntl_add_seals(&memory, seals | SealFlags::FUTURE_WRITE) {
            // Tests the seal, since some kernels enforce it for ordinary pages only.
            Ok(()) => map_writable().is_err(),
            // Linux before 5.1 lacks `FUTURE_WRITE`.
            Err(Errno::INVAL) => {
                fcntl_add_seals(&memory, seals)?;
                false
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { mapping, size, memory, is_sealed })
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
            let start = unsafe { self.mapping.start().add(offset) };
            (start, size.min(self.size - offset))
        })
    }

    pub(super) fn region(&self) -> (NonNull<u8>, usize) {
        (self.mapping.start(), self.size)
    }

    fn address(&self, index: u32) -> *mut u8 {
        let offset = index as usize * UNIT_SIZE;
        assert!(offset + UNIT_SIZE <= self.size, "frame {index} lies in the slab");
        self.mapping.address(offset, UNIT_SIZE)
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
