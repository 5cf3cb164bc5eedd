//! Memory that two processes share, of which neither trusts the other.
//!
//! The other process may change any byte at any time. So nobody here ever has a reference to plain bytes of it: words
//! are atomics, and bytes are copied, in or out; what is to be checked is copied first. The memory cannot be taken away
//! from below a mapping: an arena is only mapped when it is sealed against shrinking, and of ordinary pages.

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What `fstatfs` calls the file system of memory in ordinary pages; huge ones can run out on a touch.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// And that of memory in huge pages.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// In which `fstat` counts what a file has.
const BLOCK_SIZE: i64 = 512;

struct Mapping {
    start: NonNull<c_void>,
    size: usize,
}

// SAFETY: the memory belongs to no thread, and is accessed by atomics and copies only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(memory: impl AsFd, size: usize, protection: ProtFlags) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(null_mut(), size, protection, MapFlags::SHARED, memory, 0)? };
        let start = NonNull::new(start).ok_or_else(|| Error::other("mapping at address 0"))?;
        Ok(Self { start, size })
    }

    /// Address of `size` bytes at `offset`.
    fn address(&self, offset: usize, size: usize) -> *mut u8 {
        let end = offset.checked_add(size);
        assert!(end.is_some_and(|end| end <= self.size), "{size} bytes at {offset} lie in the arena");
        // SAFETY: the offset lies in the mapping, as just checked.
        unsafe { self.start.as_ptr().cast::<u8>().add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let address = self.address(offset, 4).cast::<u32>();
        assert!(address.is_aligned(), "a word at {offset} is aligned");
        // SAFETY: mapped, aligned and initialised (zeros at first) as long as the mapping lives; all access to the
        // place is atomic.
        unsafe { AtomicU32::from_ptr(address) }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        let address = self.address(offset, 8).cast::<u64>();
        assert!(address.is_aligned(), "a long word at {offset} is aligned");
        // SAFETY: as for words; those who use the memory access each place in one size.
        unsafe { AtomicU64::from_ptr(address) }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.address(offset, into.len());
        // SAFETY: the source is mapped and initialised, and cannot overlap private memory. No reference to it exists;
        // that the other process may write to it meanwhile makes the bytes arbitrary, which `u8` allows.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) }
    }

    fn populate(&self, offset: usize, size: usize) -> std::io::Result<()> {
        let address = self.address(offset, size);
        // SAFETY: the range is mapped by us, and the advice changes no byte of it.
        match unsafe { madvise(address.cast(), size, Advice::LinuxPopulateWrite) } {
            // Before Linux 5.14 pages come when they are touched.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            populated => Ok(populated?),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives it.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.size) };
        debug_assert!(unmapped.is_ok());
    }
}

fn sealed(name: &str, size: usize) -> std::io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, size as u64)?;
    Ok(memory)
}

/// Refuses what could be taken away from below a mapping.
fn check(memory: impl AsFd, size: usize) -> std::io::Result<()> {
    let refused = |why| Err(Error::new(ErrorKind::InvalidInput, why));
    if !fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK) {
        return refused("memory that may shrink cannot be shared");
    }
    if fstatfs(&memory)?.f_type as i64 != TMPFS_MAGIC {
        return refused("memory that is shared must be of ordinary pages");
    }
    if fstat(&memory)?.st_size != size as i64 {
        return refused("memory of another size than agreed");
    }
    Ok(())
}

/// As [`check`], for huge pages: all are there, and none can be given back.
fn check_huge(memory: impl AsFd, size: usize) -> std::io::Result<()> {
    let is_kept = fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let is_whole = fstat(&memory)?.st_blocks * BLOCK_SIZE >= size as i64;
    if is_kept && is_whole {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "huge pages that may be missing cannot be shared"))
}

/// Memory that both ends read and write.
pub struct Arena(Mapping);

impl Arena {
    /// New memory of `size` bytes, all zero, and the descriptor by which the other process maps it. Pages take space
    /// when they are first touched.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn create(name: &str, size: usize) -> std::io::Result<(Self, OwnedFd)> {
        let memory = sealed(name, size)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&memory, size, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((Self(mapping), memory))
    }

    /// Maps memory of another process.
    ///
    /// # Errors
    /// It is not of this size, or could be taken away.
    pub fn map(memory: impl AsFd, size: usize) -> std::io::Result<Self> {
        check(&memory, size)?;
        Mapping::new(memory, size, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// The 32 bits at `offset`, which must be aligned; they can be waited for.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.0.word(offset)
    }

    /// The 64 bits at `offset`, which must be aligned.
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        self.0.long(offset)
    }

    /// Copies bytes from `offset` on out of the arena. What comes out while the other end writes is any mixture.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }

    /// Copies bytes to `offset` in the arena.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let into = self.0.address(offset, from.len());
        // SAFETY: the target is mapped, cannot overlap private memory, and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }

    /// Has pages below these bytes, which must begin at one: a lack of memory is told here, and not by a signal to
    /// whoever touches them first.
    ///
    /// # Errors
    /// `ENOMEM` or the like.
    pub fn populate(&self, offset: usize, size: usize) -> std::io::Result<()> {
        self.0.populate(offset, size)
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.0.size)
    }
}

/// Memory in which one process tells others something, and they can only look.
pub struct Notice {
    mapping: Mapping,
    memory: OwnedFd,
}

impl Notice {
    /// New memory of `size` bytes, all zero. Nobody else can ever write to it.
    ///
    /// # Errors
    /// What the system refuses: it is of Linux 5.1 or later.
    pub fn create(name: &str, size: usize) -> std::io::Result<Self> {
        let memory = sealed(name, size)?;
        let mapping = Mapping::new(&memory, size, ProtFlags::READ | ProtFlags::WRITE)?;
        let others = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memory, others)?;
        Ok(Self { mapping, memory })
    }

    /// As [`Arena::populate`].
    ///
    /// # Errors
    /// `ENOMEM` or the like.
    pub fn populate(&self, offset: usize, size: usize) -> std::io::Result<()> {
        self.mapping.populate(offset, size)
    }

    /// By which others map it.
    pub fn memory(&self) -> &OwnedFd {
        &self.memory
    }

    /// The 32 bits at `offset`, which must be aligned.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.mapping.word(offset)
    }

    /// The 64 bits at `offset`, which must be aligned.
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        self.mapping.long(offset)
    }
}

/// A [`Notice`] of another process, or its slab.
pub struct Sight(Mapping);

impl Sight {
    /// Maps it.
    ///
    /// # Errors
    /// It is not of this size, or could be taken away.
    pub fn map(memory: impl AsFd, size: usize) -> std::io::Result<Self> {
        check(&memory, size)?;
        Mapping::new(memory, size, ProtFlags::READ).map(Self)
    }

    /// Maps a slab that has room for `size` bytes at least.
    ///
    /// # Errors
    /// It is smaller, or could be taken away.
    pub fn map_slab(memory: impl AsFd, size: usize) -> std::io::Result<Self> {
        let found = usize::try_from(fstat(&memory)?.st_size).unwrap_or_default();
        if found < size {
            return Err(Error::new(ErrorKind::InvalidInput, "a slab of another size than agreed"));
        }
        if fstatfs(&memory)?.f_type as i64 == HUGETLBFS_MAGIC {
            check_huge(&memory, found)?;
        } else {
            check(&memory, found)?;
        }
        let mapping = Mapping::new(memory, found, ProtFlags::READ)?;
        // A program that crashes need not leave all that its node has cached.
        // SAFETY: the range is mapped by us, and the advice changes no byte of it.
        unsafe { madvise(mapping.start.as_ptr(), found, Advice::LinuxDontDump)? };
        Ok(Self(mapping))
    }

    /// What the 32 bits at `offset`, which must be aligned, are now. Orders nothing: of memory that can only be read no
    /// stronger access is allowed.
    pub fn load(&self, offset: usize) -> u32 {
        self.0.word(offset).load(Ordering::Relaxed)
    }

    /// As [`Self::load`], of 64 bits.
    pub fn load_long(&self, offset: usize) -> u64 {
        self.0.long(offset).load(Ordering::Relaxed)
    }

    /// Copies bytes from `offset` on. What comes out while the other process writes is any mixture.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }
}

impl std::fmt::Debug for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sight({} bytes)", self.0.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 3 * 4096;

    #[test]
    fn both_ends_see_the_same_and_nothing_beyond() {
        let (here, memory) = Arena::create("test", SIZE).expect("memory");
        let there = Arena::map(&memory, SIZE).expect("what was sealed");
        here.word(8).store(7, Ordering::Release);
        here.long(16).store(u64::MAX, Ordering::Release);
        here.populate(4096, 8192).expect("two pages");
        here.copy_in(SIZE - 3, b"end");
        let mut end = [0; 3];
        there.copy_out(SIZE - 3, &mut end);
        assert_eq!((there.word(8).load(Ordering::Acquire), &end), (7, b"end"));
        assert_eq!(there.word(20).load(Ordering::Acquire), u32::MAX);
        let refused = |wrong: fn(&Arena)| {
            let wrong = std::panic::AssertUnwindSafe(|| wrong(&here));
            std::panic::catch_unwind(wrong).is_err()
        };
        assert!(refused(|arena| arena.copy_in(SIZE - 2, b"end")));
        assert!(refused(|arena| arena.copy_out(usize::MAX, &mut [0; 2])));
        assert!(refused(|arena| arena.word(SIZE).store(1, Ordering::Relaxed)));
        assert!(refused(|arena| arena.word(2).store(1, Ordering::Relaxed)));
        assert!(refused(|arena| arena.long(4).store(1, Ordering::Relaxed)));
    }

    /// Who maps a file that its owner can cut gets SIGBUS when it does.
    #[test]
    fn what_could_be_taken_away_is_not_mapped() {
        let (_, sealed_memory) = Arena::create("test", SIZE).expect("memory");
        assert!(ftruncate(&sealed_memory, 0).is_err());
        assert!(Arena::map(&sealed_memory, SIZE - 4096).is_err(), "of another size");
        let open = sealed("test", SIZE).expect("memory");
        assert!(Arena::map(&open, SIZE).is_err(), "not sealed");
        let file = tempfile::tempfile().expect("a file");
        file.set_len(SIZE as u64).expect("room");
        assert!(Arena::map(&file, SIZE).is_err(), "a file");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = memfd_create("test", flags)
            && ftruncate(&huge, 2 << 20).is_ok()
        {
            fcntl_add_seals(&huge, SealFlags::SHRINK).expect("it can be sealed");
            assert!(Arena::map(&huge, 2 << 20).is_err(), "of huge pages");
        }
    }

    #[test]
    fn a_notice_is_written_by_one_process_only() {
        let notice = Notice::create("test", 4096).expect("memory");
        let sight = Sight::map(notice.memory(), 4096).expect("what was sealed");
        notice.word(12).store(5, Ordering::Release);
        notice.long(16).store(u64::MAX, Ordering::Release);
        let mut bytes = [0; 2];
        sight.copy_out(12, &mut bytes);
        assert_eq!((sight.load(12), sight.load_long(16), u16::from_ne_bytes(bytes)), (5, u64::MAX, 5));
        assert!(Arena::map(notice.memory(), 4096).is_err(), "nobody else writes to it");
        assert!(rustix::io::pwrite(notice.memory(), b"x", 0).is_err());
    }
}
