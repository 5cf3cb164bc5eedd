//! The C functions for shared memory regions. `include/tameike.h` is generated from this module, with its comments.

#![expect(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header; `abi` states the contract"
)]

pub(crate) mod attached;
pub(crate) mod file;
mod region;

pub use region::Region;
pub(crate) use region::{OPENING, errno_of, result_of};

use crate::abi::{check_memory, deref, done, text, write_out};
use crate::file::{Result, unlink};
use region::choose_tracking;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use tameike_container::session::Rank;
use tameike_core::region::{Terms, Tracking};
use tameike_dsm::control::Counter;

/// Flag of tameike_dsm_create() and tameike_dsm_attach(): detect accesses by mprotect(2) instead of userfaultfd(2). Each process then has
/// memory of its own. It is the default if the kernel lacks userfaultfd for shared memory (Linux before 5.19), or if the environment
/// variable TAMEIKE_DSM is "mprotect".
pub const TAMEIKE_DSM_MPROTECT: c_uint = 1;
/// Flag of tameike_dsm_create() and tameike_dsm_attach(), which all processes of the region must pass or none: two nodes never store to the
/// same page of 4096 bytes, unless there is a barrier in between, or a flush on the first node and then an update on the second one. Stores
/// cost less then: the kernel records which pages are written to (Linux 6.7; older kernels ignore the flag), and whole pages are sent. An
/// update copies changes of others into all pages that the node has, and the pages are not evicted. No process may store to a page with a number
/// of tameike_dsm_fetch_add(). If a process is killed, its stores since its last flush or barrier are not in the file.
pub const TAMEIKE_DSM_ONE_WRITER: c_uint = 2;
/// Variable that chooses the mechanism of all regions.
const MECHANISM_VARIABLE: &str = "TAMEIKE_DSM";

/// Counters of a region, of all processes of this node together; with TAMEIKE_DSM_MPROTECT, of this process.
#[repr(C)]
#[derive(Debug)]
pub struct RegionCounters {
    /// Accesses to pages that the node did not have.
    pub read_faults: u64,
    /// First writes to pages after they were fetched.
    pub write_faults: u64,
    /// Pages fetched from other nodes or the device.
    pub pages_fetched: u64,
    /// Changed pages that were sent to their homes.
    pub pages_flushed: u64,
    /// Changed bytes that were sent to their homes.
    pub bytes_flushed: u64,
    /// Pages that were dropped because another node had changed them.
    pub pages_dropped: u64,
    /// Written pages into which changes of other nodes were merged.
    pub pages_merged: u64,
    /// Barriers that all processes of the node have called.
    pub barriers: u64,
    /// Pages that were removed from memory, because the regions of the node exceeded their memory.
    pub pages_evicted: u64,
    /// Number of pages of the region.
    pub pages: u64,
    /// How accesses are detected: TAMEIKE_DSM_MPROTECT, or TAMEIKE_DSM_ONE_WRITER if the kernel records written pages, or 0.
    pub mechanism: u32,
}

/// Checks flags; returns how to attach.
fn terms(processes: c_uint, flags: c_uint) -> Result<Terms> {
    if flags & !(TAMEIKE_DSM_MPROTECT | TAMEIKE_DSM_ONE_WRITER) != 0 {
        return Err(Errno::INVAL);
    }
    let variable = |name: &str| std::env::var(name).ok();
    let by_protections = flags & TAMEIKE_DSM_MPROTECT != 0
        || variable(MECHANISM_VARIABLE).is_some_and(|mechanism| mechanism == "mprotect");
    let one_writer = flags & TAMEIKE_DSM_ONE_WRITER != 0;
    let processes = match processes {
        0 => Rank::guess(variable).map_or(1, |rank| rank.size),
        given => given,
    };
    Ok(Terms { processes, one_writer, tracking: choose_tracking(one_writer, by_protections) })
}

/// Attaches to the region of a file, which is created with `size` bytes if given.
fn attach(path: &CStr, size: Option<u64>, processes: c_uint, flags: c_uint) -> Result<Region> {
    let terms = terms(processes, flags)?;
    let path = file::absolute(path)?;
    let size = size.map(file::whole_pages).transpose()?;
    file::attach(&path, size.is_some(), |file| {
        file::set_size(&file, size)?;
        Region::attach(file, path.clone(), terms, size.is_some())
    })
}

/// Gives a region to the program.
///
/// # Safety
/// The pointer is null, or valid for writes.
unsafe fn give(region: *mut *mut Region, attach: impl FnOnce() -> Result<Region>) -> Result<()> {
    check_memory(region, 1)?;
    let attached = attach()?;
    // SAFETY: by the contract above.
    unsafe { write_out(region, Box::into_raw(Box::new(attached))) }
}

/// Takes a region from the program.
///
/// # Safety
/// The pointer is null, or came from [`give`] and was not taken before.
unsafe fn take(region: *mut Region) -> Result<Region> {
    check_memory(region, 1)?;
    // SAFETY: by the contract above.
    Ok(*unsafe { Box::from_raw(region) })
}

/// Creates a shared memory region, and attaches to it: memory that processes on all nodes share, with the content of the file `path` in the
/// job-shared view. All processes of a parallel program may call it at the same time; the file gets `size` bytes, rounded up to pages of
/// 4096 bytes, and mode 0600. An existing file of that size is used with its content. Space for the file is reserved.
///
/// Loads and stores access the memory at tameike_dsm_address(). Two nodes may change different bytes of a page. A node sees its own stores at
/// once, and those of other nodes after barriers, or after tameike_dsm_flush() there and then tameike_dsm_update() here. If two nodes
/// change the same byte in between, one of the values stays.
///
/// `processes` is the number of processes that take part in barriers; all must pass the same. With 0, it is the number of ranks according to
/// the environment of Open MPI, MPICH, PMIx or Slurm, or else 1. `flags` is 0, or TAMEIKE_DSM_MPROTECT or TAMEIKE_DSM_ONE_WRITER, or both.
///
/// Returns 0 or a negative errno: -EEXIST if the file has another size, -EINVAL for a size of 0 or above 16 TiB, -ENOSPC, -EOPNOTSUPP
/// without an agent or outside the job-shared view, -EBUSY if all processes are attached, or the kernel of this node has the file open, -EINVAL
/// if others have passed another number of processes or TAMEIKE_DSM_ONE_WRITER differently, and -EPIPE if a process of the region has ended and others are still attached after
/// 5 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_create(
    path: *const c_char,
    size: u64,
    processes: c_uint,
    flags: c_uint,
    region: *mut *mut Region,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { give(region, || attach(text(path)?, Some(size), processes, flags)) })
}

/// Attaches to the region of an existing file, as tameike_dsm_create(). Returns 0 or a negative errno: -ENOENT if the file does not exist,
/// -EINVAL if it is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_attach(
    path: *const c_char,
    processes: c_uint,
    flags: c_uint,
    region: *mut *mut Region,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { give(region, || attach(text(path)?, None, processes, flags)) })
}

/// Returns the address of a region, or null in a child of fork(), which does not have the memory. The first access to a page fetches it.
/// If that fails, the process gets SIGBUS, as with a mapped file. A system call on a page that is not there fails with EFAULT:
/// call tameike_dsm_touch() before. The library handles SIGBUS and SIGSEGV, and passes those of other addresses to the handlers that were
/// there when the process attached to its first region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_address(region: *mut Region) -> *mut c_void {
    // SAFETY: by the contract of the function.
    let address = unsafe { deref(region) }.and_then(Region::address);
    address.map_or(null_mut(), |address| address as *mut c_void)
}

/// Returns the size of a region in bytes, in whole pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_size(region: *mut Region) -> u64 {
    // SAFETY: by the contract of the function.
    unsafe { deref(region) }.map_or(0, Region::size)
}

/// Sends all bytes that processes of this node have changed to the homes of the file. They are in the file then, and other nodes see them
/// after tameike_dsm_update(). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_flush(region: *mut Region) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(region)? }.flush())
}

/// Makes changes visible that other nodes have flushed. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_update(region: *mut Region) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(region)? }.update())
}

/// Waits until all processes of a region have called it. Each sees then what the others stored before. Up to six threads of a process
/// are in barriers of different regions at the same time; further ones wait for these. Returns 0 or a negative errno: -EOWNERDEAD or
/// -EPIPE if a process has ended without detaching, or its node has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_barrier(region: *mut Region) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(region)? }.barrier())
}

/// Takes lock number `lock` of a region, which one thread of all processes can hold at a time; other callers wait. Stores that the last
/// owner made before tameike_dsm_unlock() are visible afterwards. Returns 0 or a negative errno. -EOWNERDEAD: the lock is taken, but a
/// process of the region has ended without detaching, perhaps while it held the lock: check what the lock protects. After other errors
/// the lock is not taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_lock(region: *mut Region, lock: u32) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let has_failed = unsafe { deref(region)? }.lock(lock)?;
        if has_failed { Err(Errno::OWNERDEAD) } else { Ok(()) }
    })
}

/// Flushes a region like tameike_dsm_flush(), and releases a lock that this process holds. Returns 0 or a negative errno: -EPERM if the
/// process does not hold it. After other errors the lock is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_unlock(region: *mut Region, lock: u32) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(region)? }.unlock(lock))
}

/// Adds `addend` to the little-endian 64-bit number at `offset` bytes from the start of a region, at the number's home, and stores the number
/// before in `*previous`. Additions of all processes are atomic with respect to each other; loads see the sum after a barrier, update or
/// lock. Do not store to the number in other ways meanwhile. Returns 0 or a negative errno: -EINVAL if `offset` is no multiple of 8 in the
/// region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_fetch_add(
    region: *mut Region,
    offset: u64,
    addend: u64,
    previous: *mut u64,
) -> c_int {
    done(|| {
        check_memory(previous, 1)?;
        // SAFETY: by the contract of the function.
        let before = unsafe { deref(region)? }.fetch_add(offset, addend)?;
        // SAFETY: the same.
        unsafe { write_out(previous, before) }
    })
}

/// Allocates a block of `bytes` bytes of a region for any process, at an offset that is a multiple of `alignment` (a power of two, and at
/// least 16), and stores the offset of its first byte in `*offset`. Processes map the region at different addresses: pass the offset to
/// others, not a pointer. The content of the block is what the region has there. Blocks are forgotten when all processes have detached.
/// Returns 0 or a negative errno: -ENOMEM if the region has no such free block; -EINVAL if `bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_allocate(
    region: *mut Region,
    bytes: u64,
    alignment: u64,
    offset: *mut u64,
) -> c_int {
    done(|| {
        check_memory(offset, 1)?;
        // SAFETY: by the contract of the function.
        let allocated = unsafe { deref(region)? }.allocate(bytes, alignment)?;
        // SAFETY: the same.
        unsafe { write_out(offset, allocated) }
    })
}

/// Frees a block at the offset that tameike_dsm_allocate() has returned, in any process. Returns 0 or a negative errno: -EINVAL if no block
/// begins there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_deallocate(region: *mut Region, offset: u64) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(region)? }.free(offset))
}

/// Makes bytes of a region accessible to system calls: to write(2), or with `write` to read(2). They stay so until the next barrier, update
/// or lock, or until they are evicted. Returns 0 or a negative errno: -EINVAL if they are not in the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_touch(
    region: *mut Region,
    offset: u64,
    size: u64,
    write: c_int,
) -> c_int {
    done(|| {
        let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
        // SAFETY: by the contract of the function.
        unsafe { deref(region)? }.touch(offset..end, write != 0)
    })
}

/// Reads the counters of a region. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_stats(region: *mut Region, stats: *mut RegionCounters) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let region = unsafe { deref(region)? };
        let [
            read_faults,
            write_faults,
            pages_fetched,
            pages_flushed,
            bytes_flushed,
            dropped,
            merged,
            barriers,
            evicted,
        ] = Counter::ALL.map(|counter| region.counted(counter));
        let found = RegionCounters {
            read_faults,
            write_faults,
            pages_fetched,
            pages_flushed,
            bytes_flushed,
            pages_dropped: dropped,
            pages_merged: merged,
            barriers,
            pages_evicted: evicted,
            pages: region.pages().into(),
            mechanism: match region.tracking() {
                Tracking::Twins => 0,
                Tracking::OwnTwins => TAMEIKE_DSM_MPROTECT,
                Tracking::WrittenPages => TAMEIKE_DSM_ONE_WRITER,
            },
        };
        // SAFETY: the same.
        unsafe { write_out(stats, found) }
    })
}

/// Flushes a region, detaches from it, and removes its memory, also on an error. No thread may use the region any more. The process also
/// detaches from all regions when it returns from main() or calls exit(): its other threads must not use them then. A process that ends
/// in another way makes the barriers of the others fail. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_detach(region: *mut Region) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { take(region)? }.detach())
}

/// As tameike_dsm_detach(), and removes the file. Processes that are attached can use the region until they detach. All processes may call
/// it. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_dsm_free(region: *mut Region) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let region = unsafe { take(region)? };
        let path = region.path().clone();
        region.detach()?;
        match unlink(&path) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    })
}
