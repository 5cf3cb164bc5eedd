//! The mapping below the slab.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use tameike_core::limits::UNIT_SIZE;

/// Private anonymous memory, unmapped when dropped.
pub(super) struct Map {
    start: NonNull<c_void>,
    size: usize,
}

// SAFETY: the memory belongs to no thread, and access to it goes through frames, each of which has one owner.
unsafe impl Send for Map {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(size: usize) -> std::io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let start = NonNull::new(start).ok_or_else(|| std::io::Error::other("mapping at address 0"))?;
        Ok(Self { start, size })
    }

    fn address(&self, index: u32) -> *mut u8 {
        let offset = index as usize * UNIT_SIZE;
        assert!(offset + UNIT_SIZE <= self.size, "frame {index} lies in the slab");
        // SAFETY: the offset lies in the mapping, as just checked.
        unsafe { self.start.as_ptr().cast::<u8>().add(offset) }
    }

    pub(super) fn frame(&self, index: u32) -> &[u8] {
        // SAFETY: the region is mapped and initialised (zeros at first). A frame number is lent to one owner
        // at a time, and who holds `&Frame` excludes a `&mut Frame`.
        unsafe { std::slice::from_raw_parts(self.address(index), UNIT_SIZE) }
    }

    /// # Safety
    /// The caller is the one owner of this frame number, and holds it exclusively while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the exclusive borrow is that of the frame, not of the map")]
    pub(super) unsafe fn frame_mut(&self, index: u32) -> &mut [u8] {
        // SAFETY: mapped and initialised as in `frame`; exclusive by the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.address(index), UNIT_SIZE) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no frame outlives the slab that owns this map.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.size) };
        debug_assert!(unmapped.is_ok());
    }
}
