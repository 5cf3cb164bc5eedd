//! Memory mappings, unmapped on drop.

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::ffi::c_void;
use std::io::Error;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Size of the words of copies in words.
const WORD_SIZE: usize = 8;

/// Mapped memory. Its users state why their accesses are sound.
pub struct Mapping {
    start: NonNull<c_void>,
    size: usize,
}

// SAFETY: the memory is bound to no thread, and is accessed here by atomics and copies only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `memory`, which other processes may share.
    pub fn shared(memory: impl AsFd, size: usize, protection: ProtFlags) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(null_mut(), size, protection, MapFlags::SHARED, memory, 0)? };
        Self::at(start, size)
    }

    /// Maps `size` zero bytes for this process.
    pub fn private(size: usize) -> std::io::Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: as in `shared`.
        let start = unsafe { mmap_anonymous(null_mut(), size, protection, flags)? };
        Self::at(start, size)
    }

    fn at(start: *mut c_void, size: usize) -> std::io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| Error::other("mapping at address 0"))?;
        Ok(Self { start, size })
    }

    /// The address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Changes the protection of pages. The caller's program must expect it.
    ///
    /// # Errors
    /// `ENOMEM` if the process would have too many mappings (`vm.max_map_count`).
    pub fn protect(&self, offset: usize, size: usize, protection: MprotectFlags) -> std::io::Result<()> {
        let address = self.address(offset, size);
        // SAFETY: the range is mapped here; this crate holds no reference to its bytes.
        unsafe { mprotect(address.cast(), size, protection)? };
        Ok(())
    }

    /// Excludes the mapping from children of fork(2), which would share the memory without its page faults.
    pub fn keep_from_children(&self) -> std::io::Result<()> {
        // SAFETY: the range is mapped here, and the advice changes no byte of it.
        unsafe { madvise(self.start.as_ptr(), self.size, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// The address of `size` bytes at `offset`.
    pub(crate) fn address(&self, offset: usize, size: usize) -> *mut u8 {
        let end = offset.checked_add(size);
        assert!(end.is_some_and(|end| end <= self.size), "{size} bytes at {offset} lie in the mapping");
        // SAFETY: the offset lies in the mapping, as just checked.
        unsafe { self.start.as_ptr().cast::<u8>().add(offset) }
    }

    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        let address = self.address(offset, 4).cast::<u32>();
        assert!(address.is_aligned(), "a word at {offset} is aligned");
        // SAFETY: mapped, aligned and initialised (zeros at first) as long as the mapping lives; all access to the word is
        // atomic.
        unsafe { AtomicU32::from_ptr(address) }
    }

    pub(super) fn long(&self, offset: usize) -> &AtomicU64 {
        let address = self.address(offset, 8).cast::<u64>();
        assert!(address.is_aligned(), "a long word at {offset} is aligned");
        // SAFETY: as for words; users of the memory access each location in one size.
        unsafe { AtomicU64::from_ptr(address) }
    }

    pub(super) fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.address(offset, into.len());
        // SAFETY: the source is mapped and initialised, and cannot overlap private memory. No reference to it exists; concurrent
        // writes of the other process make the bytes arbitrary, which `u8` allows.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes from private memory to `offset`; each aligned 8 bytes of the target by one store.
    pub(super) fn copy_in_words(&self, offset: usize, from: &[u8]) {
        let into = self.address(offset, from.len());
        let (head, rest) = from.split_at(into.align_offset(WORD_SIZE).min(from.len()));
        let (words, tail) = rest.as_chunks::<WORD_SIZE>();
        // SAFETY: the target is mapped, as just checked, and no reference to it exists; the same for `tail` below.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), into, head.len()) };
        let first = into.wrapping_add(head.len()).cast::<u64>();
        for (number, word) in words.iter().enumerate() {
            // SAFETY: mapped and aligned, as long as the mapping lives.
            let place = unsafe { AtomicU64::from_ptr(first.wrapping_add(number)) };
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let last = first.wrapping_add(words.len()).cast::<u8>();
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(tail.as_ptr(), last, tail.len()) };
    }

    /// As [`Self::copy_out`]; each aligned 8 bytes of the source by one load.
    pub(super) fn copy_out_words(&self, offset: usize, into: &mut [u8]) {
        let from = self.address(offset, into.len());
        let (head, rest) = into.split_at_mut(from.align_offset(WORD_SIZE).min(into.len()));
        let (words, tail) = rest.as_chunks_mut::<WORD_SIZE>();
        // SAFETY: as in `copy_out`; the same for `tail` below.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), head.as_mut_ptr(), head.len()) };
        let first = from.wrapping_add(head.len()).cast::<u64>();
        for (number, word) in words.iter_mut().enumerate() {
            // SAFETY: mapped and aligned, as long as the mapping lives.
            let place = unsafe { AtomicU64::from_ptr(first.wrapping_add(number)) };
            *word = place.load(Ordering::Relaxed).to_ne_bytes();
        }
        let last = first.wrapping_add(words.len()).cast::<u8>();
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(last.cast_const(), tail.as_mut_ptr(), tail.len()) };
    }

    pub(super) fn populate(&self, offset: usize, size: usize) -> std::io::Result<()> {
        let address = self.address(offset, size);
        // SAFETY: the range is mapped here, and the advice changes no byte of it.
        match unsafe { madvise(address.cast(), size, Advice::LinuxPopulateWrite) } {
            // Linux before 5.14 allocates pages at the first access.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            populated => Ok(populated?),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned here, and no reference into it outlives it.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.size) };
        debug_assert!(unmapped.is_ok());
    }
}
