//! Memory that a queue shares with the kernel for one request: a page for its header, and room for what it carries.

use crate::fuse::abi::{HEADER_SIZE, OUT_HEADER_SIZE, PAGE_SIZE};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};

/// Size of the header of a request in a ring (`struct fuse_uring_req_header`).
const RING_HEADER_SIZE: usize = 288;
/// What every request of its kind has.
const FIXED_START: usize = 128;
const FIXED_SIZE: usize = 128;
/// By which a request is answered.
const COMMIT_START: usize = 264;
/// Bytes of what it carries.
const SIZE_START: usize = 272;

/// The memory of one request.
pub(super) struct Memory {
    start: NonNull<u8>,
    payload_size: usize,
}

// SAFETY: the memory belongs to no thread; who may use it is said at each access.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A request's header as the kernel has written it, copied.
pub(super) struct RingHeader {
    pub(super) message: [u8; HEADER_SIZE],
    pub(super) fixed: [u8; FIXED_SIZE],
    pub(super) commit: u64,
    pub(super) size: usize,
}

impl Memory {
    /// For a request that carries at most `payload_size` bytes, whole pages. It is taken from the system as it is used.
    pub(super) fn new(payload_size: usize) -> io::Result<Self> {
        let size = PAGE_SIZE + payload_size;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap_anonymous(null_mut(), size, protection, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapping at address 0"))?;
        Ok(Self { start, payload_size })
    }

    pub(super) fn payload_size(&self) -> usize {
        self.payload_size
    }

    fn header(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: the room follows the page of the header, in the mapping.
        unsafe { self.header().add(PAGE_SIZE) }
    }

    /// Where the kernel finds it.
    pub(super) fn vectors(&self) -> [libc::iovec; 2] {
        let vector = |base: *mut u8, iov_len| libc::iovec { iov_base: base.cast(), iov_len };
        [vector(self.header(), RING_HEADER_SIZE), vector(self.payload(), self.payload_size)]
    }

    /// # Safety
    /// The kernel has handed it over, and nobody answers yet.
    pub(super) unsafe fn take_header(&self) -> RingHeader {
        // SAFETY: the page is mapped; nobody writes to it, by the contract above.
        let bytes = unsafe { std::slice::from_raw_parts(self.header(), RING_HEADER_SIZE) };
        let mut message = [0; HEADER_SIZE];
        message.copy_from_slice(&bytes[..HEADER_SIZE]);
        let mut fixed = [0; FIXED_SIZE];
        fixed.copy_from_slice(&bytes[FIXED_START..FIXED_START + FIXED_SIZE]);
        let commit = u64::from_ne_bytes(*bytes[COMMIT_START..].first_chunk().expect("the header is longer"));
        let size = u32::from_ne_bytes(*bytes[SIZE_START..].first_chunk().expect("the header is longer"));
        RingHeader { message, fixed, commit, size: (size as usize).min(self.payload_size) }
    }

    /// What a request carries.
    ///
    /// # Safety
    /// As long as the slice lives, the memory is the caller's, and nobody writes to it.
    pub(super) unsafe fn carried(&self, size: usize) -> &[u8] {
        assert!(size <= self.payload_size, "a request carries what there is room for");
        // SAFETY: mapped, and nobody writes to it, by the contract above.
        unsafe { std::slice::from_raw_parts(self.payload(), size) }
    }

    /// Puts what an answer carries in its place.
    ///
    /// # Safety
    /// The memory is the caller's, and no slice of it lives.
    pub(super) unsafe fn put(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.payload_size, "an answer carries what there is room for");
        // SAFETY: mapped; `bytes` lies elsewhere, as no slice of it lives, by the contract above.
        unsafe { self.payload().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Puts the header of an answer that carries `size` bytes in its place.
    ///
    /// # Safety
    /// The memory is the caller's, and no slice of it lives.
    pub(super) unsafe fn put_header(&self, header: &[u8; OUT_HEADER_SIZE], size: usize) {
        // SAFETY: as in `take_header`, and exclusive, by the contract above.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.header(), RING_HEADER_SIZE) };
        bytes[..OUT_HEADER_SIZE].copy_from_slice(header);
        bytes[SIZE_START..SIZE_START + 4].copy_from_slice(&(size as u32).to_ne_bytes());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let size = PAGE_SIZE + self.payload_size;
        // SAFETY: the mapping is ours, and no slice of it outlives this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), size) };
        debug_assert!(unmapped.is_ok());
    }
}
