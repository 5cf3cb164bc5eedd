//! Memory shared by two processes that do not trust each other.
//!
//! The other process may change any byte at any time. So no reference to its plain bytes ever exists here: words are atomics, and
//! bytes are copied in or out; data is copied before it is checked. To prevent SIGBUS, an arena is mapped only if it is sealed
//! against shrinking and consists of ordinary pages.

use super::mapping::Mapping;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{Advice, ProtFlags, madvise};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Unit of `st_blocks`.
const BLOCK_SIZE: i64 = 512;

fn sealed(name: &str, size: usize) -> std::io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, size as u64)?;
    Ok(memory)
}

/// Refuses memory that can be removed from below a mapping.
fn check(memory: impl AsFd, size: usize) -> std::io::Result<()> {
    let refused = |why| Err(Error::new(ErrorKind::InvalidInput, why));
    if !fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK) {
        return refused("shared memory must be sealed against shrinking");
    }
    // Huge pages can run out at the first access.
    if fstatfs(&memory)?.f_type != libc::TMPFS_MAGIC {
        return refused("shared memory must consist of ordinary pages");
    }
    if fstat(&memory)?.st_size != size as i64 {
        return refused("shared memory has an unexpected size");
    }
    Ok(())
}

/// As [`check`], for huge pages: all must be allocated and permanent.
fn check_huge(memory: impl AsFd, size: usize) -> std::io::Result<()> {
    let is_kept = fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let is_whole = fstat(&memory)?.st_blocks * BLOCK_SIZE >= size as i64;
    if is_kept && is_whole {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "shared huge pages must be allocated and sealed"))
}

/// Memory that both processes read and write.
pub struct Arena(Mapping);

impl Arena {
    /// Creates memory of `size` zero bytes, with the descriptor by which the other process maps it. Pages are allocated at the
    /// first access.
    pub fn create(name: &str, size: usize) -> std::io::Result<(Self, OwnedFd)> {
        let memory = sealed(name, size)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::shared(&memory, size, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((Self(mapping), memory))
    }

    /// Maps memory of another process.
    ///
    /// # Errors
    /// Its size differs, or it is not sealed.
    pub fn map(memory: impl AsFd, size: usize) -> std::io::Result<Self> {
        check(&memory, size)?;
        Mapping::shared(memory, size, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// The 32 bits at `offset`, which must be aligned; usable as a futex.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.0.word(offset)
    }

    /// The 64 bits at `offset`, which must be aligned.
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        self.0.long(offset)
    }

    /// Copies bytes from `offset` out of the arena. Concurrent writes make them arbitrary.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }

    /// Copies bytes to `offset` in the arena.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let into = self.0.address(offset, from.len());
        // SAFETY: the target is mapped, cannot overlap private memory, and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }

    /// As [`Self::copy_in`], each aligned 8 bytes of the arena by one relaxed store: a concurrent load sees all of them or none.
    pub fn copy_in_words(&self, offset: usize, from: &[u8]) {
        self.0.copy_in_words(offset, from);
    }

    /// As [`Self::copy_out`], each aligned 8 bytes of the arena by one relaxed load.
    pub fn copy_out_words(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out_words(offset, into);
    }

    /// The address of the first byte, for a program that accesses the memory itself.
    pub fn start(&self) -> usize {
        self.0.start().as_ptr() as usize
    }

    /// Excludes the arena from children of fork(2).
    pub fn keep_from_children(&self) -> std::io::Result<()> {
        self.0.keep_from_children()
    }

    /// Reads `size` bytes at `from` of a file to `offset` in the arena. Bytes after the end of the file are left as they are.
    /// Async-signal-safe.
    pub fn read_from(
        &self,
        offset: usize,
        file: BorrowedFd<'_>,
        from: u64,
        size: usize,
    ) -> std::io::Result<()> {
        let mut done = 0;
        while done < size {
            let into = self.0.address(offset + done, size - done);
            let at = (from + done as u64).cast_signed();
            // SAFETY: the target is mapped, and no reference to it exists.
            let count = unsafe { libc::pread(file.as_raw_fd(), into.cast(), size - done, at) };
            match count {
                0 => break,
                count if count > 0 => done += count.unsigned_abs(),
                _ => {
                    let error = Error::last_os_error();
                    if error.kind() != ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Allocates the pages of these bytes, which must start at a page. So a lack of memory is an error here instead of a signal
    /// at the first access.
    pub fn populate(&self, offset: usize, size: usize) -> std::io::Result<()> {
        self.0.populate(offset, size)
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.0.size())
    }
}

/// Memory that one process writes, and others only read.
pub struct Notice {
    mapping: Mapping,
    memory: OwnedFd,
}

impl Notice {
    /// Creates memory of `size` zero bytes, which no other process can ever write.
    ///
    /// # Errors
    /// The errors of the system. Requires Linux 5.1.
    pub fn create(name: &str, size: usize) -> std::io::Result<Self> {
        let memory = sealed(name, size)?;
        let mapping = Mapping::shared(&memory, size, ProtFlags::READ | ProtFlags::WRITE)?;
        let others = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memory, others)?;
        Ok(Self { mapping, memory })
    }

    /// As [`Arena::populate`].
    pub fn populate(&self, offset: usize, size: usize) -> std::io::Result<()> {
        self.mapping.populate(offset, size)
    }

    /// The descriptor by which other processes map it.
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

/// A mapping of a [`Notice`] or a slab of another process.
pub struct Sight(Mapping);

impl Sight {
    /// Maps a [`Notice`].
    ///
    /// # Errors
    /// Its size differs, or it is not sealed.
    pub fn map(memory: impl AsFd, size: usize) -> std::io::Result<Self> {
        check(&memory, size)?;
        Mapping::shared(memory, size, ProtFlags::READ).map(Self)
    }

    /// Maps a slab of at least `size` bytes.
    ///
    /// # Errors
    /// It is smaller, or it is not sealed.
    pub fn map_slab(memory: impl AsFd, size: usize) -> std::io::Result<Self> {
        let found = usize::try_from(fstat(&memory)?.st_size).unwrap_or_default();
        if found < size {
            return Err(Error::new(ErrorKind::InvalidInput, "the slab has an unexpected size"));
        }
        if fstatfs(&memory)?.f_type == libc::HUGETLBFS_MAGIC {
            check_huge(&memory, found)?;
        } else {
            check(&memory, found)?;
        }
        let mapping = Mapping::shared(memory, found, ProtFlags::READ)?;
        // Excludes the cached data of the node from core dumps of programs.
        // SAFETY: the range is mapped here, and the advice changes no byte of it.
        unsafe { madvise(mapping.start().as_ptr().cast(), found, Advice::LinuxDontDump)? };
        Ok(Self(mapping))
    }

    /// The 32 bits at `offset`, which must be aligned. A relaxed load, since read-only memory permits no stronger one.
    pub fn load(&self, offset: usize) -> u32 {
        self.0.word(offset).load(Ordering::Relaxed)
    }

    /// As [`Self::load`], of 64 bits.
    pub fn load_long(&self, offset: usize) -> u64 {
        self.0.long(offset).load(Ordering::Relaxed)
    }

    /// Copies bytes from `offset`. Concurrent writes make them arbitrary.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }
}

impl std::fmt::Debug for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sight({} bytes)", self.0.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 3 * 4096;

    #[test]
    fn both_ends_see_the_same_and_nothing_beyond() {
        let (here, memory) = Arena::create("test", SIZE).expect("memory");
        let there = Arena::map(&memory, SIZE).expect("sealed memory");
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

    #[test]
    fn copies_in_words_move_each_byte() {
        let (arena, _) = Arena::create("test", SIZE).expect("memory");
        let bytes: Vec<u8> = (1..=40).collect();
        for start in 0..9 {
            for size in 0..=40 - start {
                for at in 16..25 {
                    arena.copy_in(0, &[0; 80]);
                    arena.copy_in_words(at, &bytes[start..start + size]);
                    let (mut all, mut some) = ([0; 80], vec![0; size]);
                    arena.copy_out(0, &mut all);
                    arena.copy_out_words(at, &mut some);
                    assert_eq!(some, bytes[start..start + size], "{size} bytes at {at}");
                    assert_eq!(all[at..at + size], some, "{size} bytes at {at}");
                    assert!(all[..at].iter().chain(&all[at + size..]).all(|&byte| byte == 0));
                }
            }
        }
        let beyond = std::panic::AssertUnwindSafe(|| arena.copy_in_words(SIZE - 7, &[0; 8]));
        assert!(std::panic::catch_unwind(beyond).is_err());
    }

    /// A process that maps a file gets SIGBUS after its owner truncates it.
    #[test]
    fn memory_that_can_be_removed_is_not_mapped() {
        let (_, sealed_memory) = Arena::create("test", SIZE).expect("memory");
        assert!(ftruncate(&sealed_memory, 0).is_err());
        assert!(Arena::map(&sealed_memory, SIZE - 4096).is_err(), "a different size");
        let open = sealed("test", SIZE).expect("memory");
        assert!(Arena::map(&open, SIZE).is_err(), "not sealed");
        let file = tempfile::tempfile().expect("a file");
        file.set_len(SIZE as u64).expect("space");
        assert!(Arena::map(&file, SIZE).is_err(), "a file");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = memfd_create("test", flags)
            && ftruncate(&huge, 2 << 20).is_ok()
        {
            fcntl_add_seals(&huge, SealFlags::SHRINK).expect("a seal");
            assert!(Arena::map(&huge, 2 << 20).is_err(), "huge pages");
        }
    }

    #[test]
    fn a_notice_is_written_by_one_process_only() {
        let notice = Notice::create("test", 4096).expect("memory");
        let sight = Sight::map(notice.memory(), 4096).expect("sealed memory");
        notice.word(12).store(5, Ordering::Release);
        notice.long(16).store(u64::MAX, Ordering::Release);
        let mut bytes = [0; 2];
        sight.copy_out(12, &mut bytes);
        assert_eq!((sight.load(12), sight.load_long(16), u16::from_ne_bytes(bytes)), (5, u64::MAX, 5));
        assert!(Arena::map(notice.memory(), 4096).is_err(), "no other process writes to it");
        assert!(rustix::io::pwrite(notice.memory(), b"x", 0).is_err());
    }
}
