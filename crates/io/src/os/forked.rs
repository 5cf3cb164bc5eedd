//! Knowing a process from its children.
//!
//! What a process holds for itself alone, a child has a copy of that it must not use. Asking the system each time who one
//! is would be a call; a page that the kernel empties in children answers for nothing.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE_SIZE: usize = 4096;

/// Set in the process that made it, and not in its children; a child that shares all memory, as after `vfork`, is the
/// same process in this.
pub struct OwnMark(NonNull<c_void>);

// SAFETY: the page belongs to no thread, and is accessed by an atomic only.
unsafe impl Send for OwnMark {}
// SAFETY: as above.
unsafe impl Sync for OwnMark {}

impl OwnMark {
    /// A mark of this process.
    ///
    /// # Errors
    /// What the system refuses: it is of Linux 4.14 or later.
    pub fn new() -> std::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap_anonymous(null_mut(), PAGE_SIZE, protection, MapFlags::PRIVATE)? };
        let start = NonNull::new(start).ok_or_else(|| std::io::Error::other("mapping at address 0"))?;
        let mark = Self(start);
        // SAFETY: the page is ours alone, and nothing relies on what it holds in a child.
        unsafe { madvise(start.as_ptr(), PAGE_SIZE, Advice::LinuxWipeOnFork)? };
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped, aligned, initialised, and only ever accessed so.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast()) }
    }

    /// Whether this is the process that made the mark.
    pub fn is_own(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for OwnMark {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives the mark.
        let unmapped = unsafe { munmap(self.0.as_ptr(), PAGE_SIZE) };
        debug_assert!(unmapped.is_ok());
    }
}

impl std::fmt::Debug for OwnMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnMark({})", self.is_own())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_known_from_its_parent() {
        let mark = OwnMark::new().expect("a page");
        assert!(mark.is_own());
        // SAFETY: the child makes no call but one that ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { libc::_exit(i32::from(mark.is_own())) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made; `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child took itself for its parent");
        assert!(mark.is_own());
    }
}
