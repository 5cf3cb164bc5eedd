//! Memory that a queue shares with the kernel for one request: its header and its payload.
//!
//! The payload of the initial entries of a queue is a frame, so that their memory is reserved in the slab. Entries that are added
//! under load have anonymous mappings, which take memory as they are used.

use crate::abi::{HEADER_SIZE, OUT_HEADER_SIZE};
use rustix::mm::{Advice, madvise};
use std::cell::UnsafeCell;
use std::io;
use std::ptr::NonNull;
use tameike_io::os::mapping::Mapping;
use tameike_io::slab::Frame;

/// Size of the header of a request (`struct fuse_uring_req_header`).
const RING_HEADER_SIZE: usize = 288;
/// Offset of the fixed arguments in the header.
const FIXED_START: usize = 128;
const FIXED_SIZE: usize = 128;
const COMMIT_START: usize = 264;
const SIZE_START: usize = 272;

pub(super) struct Memory {
    header: Box<UnsafeCell<[u8; RING_HEADER_SIZE]>>,
    payload: NonNull<u8>,
    payload_size: usize,
    /// The addresses of both for the kernel.
    vectors: [libc::iovec; 2],
    /// Keeps the memory of the payload.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the memory is bound to no thread; each access states who may use it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A copy of a request's header as the kernel has written it.
pub(super) struct RingHeader {
    pub(super) message: [u8; HEADER_SIZE],
    pub(super) fixed: [u8; FIXED_SIZE],
    pub(super) commit: u64,
    pub(super) size: usize,
}

impl Memory {
    /// Memory whose payload is in a frame.
    pub(super) fn in_frame(mut frame: Frame, payload_size: usize) -> Self {
        assert!(payload_size <= frame.len(), "a payload fits in a frame");
        // From now on only this pointer accesses the bytes.
        let start = NonNull::from(&mut *frame).cast();
        Self::new(start, payload_size, Box::new(frame))
    }

    /// Memory with a mapped payload of `payload_size` bytes, whole pages.
    pub(super) fn mapped(payload_size: usize) -> io::Result<Self> {
        let mapping = Mapping::private(payload_size)?;
        let start = mapping.start();
        // Avoids allocating 2 MiB for mostly small payloads. A kernel without huge pages refuses the advice.
        // SAFETY: the advice is about pages of the new mapping, and changes no bytes.
        let _ = unsafe { madvise(start.as_ptr().cast(), payload_size, Advice::LinuxNoHugepage) };
        Ok(Self::new(start, payload_size, Box::new(mapping)))
    }

    fn new(payload: NonNull<u8>, payload_size: usize, owner: Box<dyn Send + Sync>) -> Self {
        let header = Box::new(UnsafeCell::new([0; RING_HEADER_SIZE]));
        let vector = |base: *mut u8, iov_len| libc::iovec { iov_base: base.cast(), iov_len };
        let vectors = [vector(header.get().cast(), RING_HEADER_SIZE), vector(payload.as_ptr(), payload_size)];
        Self { header, payload, payload_size, vectors, _owner: owner }
    }

    pub(super) fn payload_size(&self) -> usize {
        self.payload_size
    }

    /// The addresses for the kernel.
    pub(super) fn vectors(&self) -> &[libc::iovec; 2] {
        &self.vectors
    }

    /// # Safety
    /// The kernel has handed the memory over, and no reply has been written.
    pub(super) unsafe fn take_header(&self) -> RingHeader {
        // SAFETY: no writes, by the contract above.
        let bytes = unsafe { &*self.header.get() };
        let mut message = [0; HEADER_SIZE];
        message.copy_from_slice(&bytes[..HEADER_SIZE]);
        let mut fixed = [0; FIXED_SIZE];
        fixed.copy_from_slice(&bytes[FIXED_START..FIXED_START + FIXED_SIZE]);
        let commit = u64::from_ne_bytes(*bytes[COMMIT_START..].first_chunk().expect("the header is longer"));
        let size = u32::from_ne_bytes(*bytes[SIZE_START..].first_chunk().expect("the header is longer"));
        RingHeader { message, fixed, commit, size: (size as usize).min(self.payload_size) }
    }

    /// The payload of a request.
    ///
    /// # Safety
    /// While the slice lives, the caller owns the memory, and nothing writes to it.
    pub(super) unsafe fn carried(&self, size: usize) -> &[u8] {
        assert!(size <= self.payload_size, "the payload fits");
        // SAFETY: mapped, and no writes, by the contract above.
        unsafe { std::slice::from_raw_parts(self.payload.as_ptr(), size) }
    }

    /// Writes the payload of a reply.
    ///
    /// # Safety
    /// The caller owns the memory, and no slice of it lives.
    pub(super) unsafe fn put(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.payload_size, "the payload fits");
        // SAFETY: mapped; `bytes` lies elsewhere, as no slice of it lives, by the contract above.
        unsafe { self.payload.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Writes the header of a reply with a payload of `size` bytes.
    ///
    /// # Safety
    /// The caller owns the memory, and no slice of it lives.
    pub(super) unsafe fn put_header(&self, header: &[u8; OUT_HEADER_SIZE], size: usize) {
        // SAFETY: exclusive, by the contract above.
        let bytes = unsafe { &mut *self.header.get() };
        bytes[..OUT_HEADER_SIZE].copy_from_slice(header);
        bytes[SIZE_START..SIZE_START + 4].copy_from_slice(&(size as u32).to_ne_bytes());
    }
}
