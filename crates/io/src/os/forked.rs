//! Distinguishes a process from its forked children.
//!
//! A child has copies of its parent's exclusive resources, which it must not use. The check reads a page that the kernel clears
//! in children, which is cheaper than `getpid`.

use super::mapping::Mapping;
use rustix::mm::{Advice, madvise};
use std::sync::atomic::Ordering;

const PAGE_SIZE: usize = 4096;

/// True in the process that created it, and false in its children. A child that shares all memory, as after `vfork`, counts as
/// the same process.
pub struct OwnMark(Mapping);

impl OwnMark {
    /// Creates the mark. Requires Linux 4.14.
    pub fn new() -> std::io::Result<Self> {
        let page = Mapping::private(PAGE_SIZE)?;
        // SAFETY: the page is private, and nothing relies on its content in a child.
        unsafe { madvise(page.start().as_ptr().cast(), PAGE_SIZE, Advice::LinuxWipeOnFork)? };
        page.word(0).store(1, Ordering::Relaxed);
        Ok(Self(page))
    }

    /// True in the process that created the mark.
    pub fn is_own(&self) -> bool {
        self.0.word(0).load(Ordering::Relaxed) != 0
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
