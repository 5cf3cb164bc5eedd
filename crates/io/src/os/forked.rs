//! Distinguishes a process from its forked children.
//!
//! A child has copies of its parent's exclusive resources, which it must not use. The check reads a page that the kernel clears
//! in children, which is cheaper than `getpid`.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE_SIZE: usize = 4096;

/// True in the process that created it, and false in its children. A child that shares all memory, as after `vfork`, counts as
/// the same process.
pub struct OwnMark(NonNull<c_void>);

// SAFETY: the page is bound to no thread, and is accessed by an atomic only.
unsafe impl Send for OwnMark {}
// SAFETY: as above.
unsafe impl Sync for OwnMark {}

impl OwnMark {
    ///
    /// # Errors
    /// The errors of the system. Requires Linux 4.14.
    pub fn new() -> std::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap_anonymous(null_mut(), PAGE_SIZE, protection, MapFlags::PRIVATE)? };
        let start = NonNull::new(start).ok_or_else(|| std::io::Error::other("mapping at address 0"))?;
        let mark = Self(start);
        // SAFETY: the page is private, and nothing relies on its content in a child.
        unsafe { madvise(start.as_ptr(), PAGE_SIZE, Advice::LinuxWipeOnFork)? };
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped, aligned, initialised, and only accessed as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast()) }
    }

    /// True in the process that created the mark.
    pub fn is_own(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for OwnMark {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned here, and no reference into it outlives the mark.
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
    fn a_child_differs_from_its_parent() {
        let mark = OwnMark::new().expect("a page");
        assert!(mark.is_own());
        // SAFETY: the child only calls `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running exit handlers of its parent.
            unsafe { libc::_exit(i32::from(mark.is_own())) };
        }
        let mut status = -1;
        // SAFETY: waits for the child; `status` is a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has its parent's mark");
        assert!(mark.is_own());
    }
}
