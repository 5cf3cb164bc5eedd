//! The C functions for remote memory windows. `include/tameike.h` is generated from this module, with its comments.
//!
//! Names and rules follow OpenSHMEM 1.5.

#![expect(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header; `abi` states the contract"
)]

mod queue;
mod remote;
mod strided;
mod window;

pub use window::Window;

use crate::abi::{check_memory, counted, deref, done, text, write_out};
use crate::dsm::file;
use crate::file::{Result, unlink};
use crate::request::{Memory, Request};
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use strided::Strided;
use tameike_container::session::Rank;
use tameike_core::wire::window::{Atomic, Signal, WordChange};
use tameike_dsm::window::{Comparison, Shape};

/// Comparison of tameike_win_wait_until() and tameike_win_test(): the word is equal to the value.
pub const TAMEIKE_WIN_EQ: c_int = 0;
/// Comparison: the word is not equal to the value.
pub const TAMEIKE_WIN_NE: c_int = 1;
/// Comparison: the word is greater than the value.
pub const TAMEIKE_WIN_GT: c_int = 2;
/// Comparison: the word is greater than or equal to the value.
pub const TAMEIKE_WIN_GE: c_int = 3;
/// Comparison: the word is less than the value.
pub const TAMEIKE_WIN_LT: c_int = 4;
/// Comparison: the word is less than or equal to the value.
pub const TAMEIKE_WIN_LE: c_int = 5;

/// Operation of tameike_win_put_signal(): store the signal in the word.
pub const TAMEIKE_WIN_SET: c_int = 0;
/// Operation of tameike_win_put_signal(): add the signal to the word.
pub const TAMEIKE_WIN_ADD: c_int = 1;

fn comparison(number: c_int) -> Result<Comparison> {
    Ok(match number {
        TAMEIKE_WIN_EQ => Comparison::Equal,
        TAMEIKE_WIN_NE => Comparison::NotEqual,
        TAMEIKE_WIN_GT => Comparison::Greater,
        TAMEIKE_WIN_GE => Comparison::GreaterOrEqual,
        TAMEIKE_WIN_LT => Comparison::Less,
        TAMEIKE_WIN_LE => Comparison::LessOrEqual,
        _ => return Err(Errno::INVAL),
    })
}

fn change(operation: c_int, signal: u64) -> Result<WordChange> {
    match operation {
        TAMEIKE_WIN_SET => Ok(WordChange::Set(signal)),
        TAMEIKE_WIN_ADD => Ok(WordChange::Add(signal)),
        _ => Err(Errno::INVAL),
    }
}

/// Attaches to the window of a file.
fn attach(path: &CStr, bytes: u64, (rank, ranks): (c_uint, c_uint), flags: c_uint) -> Result<Window> {
    let guess = || Rank::guess(|name| std::env::var(name).ok()).map_or((0, 1), |rank| (rank.rank, rank.size));
    let (rank, ranks) = if ranks == 0 { guess() } else { (rank, ranks) };
    if flags != 0 || rank >= ranks {
        return Err(Errno::INVAL);
    }
    let shape = Shape::new(ranks, bytes).map_err(|error| Errno::from_raw_os_error(error.0))?;
    let path = file::absolute(path)?;
    file::attach(&path, true, |file| {
        file::check_empty(&file)?;
        Window::attach(file, path.clone(), shape, rank)
    })
}

/// Takes a window from the program.
///
/// # Safety
/// The pointer is null, or came from [`tameike_win_create`] and was not taken before.
unsafe fn take(win: *mut Window) -> Result<Window> {
    check_memory(win, 1)?;
    // SAFETY: by the contract above.
    Ok(*unsafe { Box::from_raw(win) })
}

/// Creates a remote memory window: memory of `bytes` bytes for each of `ranks` processes on any nodes of the job, which all of them read
/// and write without the others taking part. All ranks call it together, and it returns when all have called it. Each passes another
/// `rank` below `ranks`, and otherwise the same. The memory contains zeros. `path` is a file in the job-shared view, which is created if it
/// is missing, and must be empty. With `ranks` 0, rank and number of ranks are those in the environment of Open MPI, MPICH, PMIx or Slurm,
/// or else there is one rank. `flags` is 0.
///
/// Offsets in other functions are those in the memory of the rank that is accessed. All of them fail with -EINVAL for bytes beyond it. A
/// rank on the same node is accessed directly, and one on another node through the agents; there, -EHOSTDOWN means that the node has
/// failed, and -EPIPE that the rank has detached.
///
/// Returns 0 or a negative errno: -EEXIST if another process has the same rank, or the file is not empty; -EINVAL if others have passed
/// something else; -ENOMEM or -ENOSPC if the memory is not free; -EOPNOTSUPP without an agent or outside the job-shared view; -EPIPE or
/// -EOWNERDEAD if another rank has failed to create it. A new file may remain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_create(
    path: *const c_char,
    bytes: u64,
    rank: c_uint,
    ranks: c_uint,
    flags: c_uint,
    win: *mut *mut Window,
) -> c_int {
    done(|| {
        check_memory(win, 1)?;
        // SAFETY: by the contract of the function.
        let attached = attach(unsafe { text(path)? }, bytes, (rank, ranks), flags)?;
        // SAFETY: the same.
        unsafe { write_out(win, Box::into_raw(Box::new(attached))) }
    })
}

/// Returns the address of the memory of a rank, or null if it is a process of another node. Use atomic operations of the compiler, or the
/// functions of this library, for words that several processes change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_address(win: *mut Window, rank: c_uint) -> *mut c_void {
    // SAFETY: by the contract of the function.
    let address = unsafe { deref(win) }.and_then(|win| win.address(rank));
    address.map_or(null_mut(), |address| address as *mut c_void)
}

/// Returns the size of the memory of each rank in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_size(win: *mut Window) -> u64 {
    // SAFETY: by the contract of the function.
    unsafe { deref(win) }.map_or(0, Window::size)
}

/// Returns the rank of this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_rank(win: *mut Window) -> c_uint {
    // SAFETY: by the contract of the function.
    unsafe { deref(win) }.map_or(0, |win| win.rank().0)
}

/// Returns the number of ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_ranks(win: *mut Window) -> c_uint {
    // SAFETY: by the contract of the function.
    unsafe { deref(win) }.map_or(0, |win| win.rank().1)
}

/// Stores bytes in the memory of a rank. When it returns, the program may change `memory`. The bytes are in the memory of the rank after
/// tameike_win_quiet() or tameike_win_barrier(), which also return the error of a put that has failed later. Aligned words of 8 bytes
/// change as a whole. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_put(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    memory: *const c_void,
    size: usize,
) -> c_int {
    done(|| {
        check_memory(memory, size)?;
        // SAFETY: by the contract of the function.
        let (win, bytes) = unsafe { (deref(win)?, Memory::From(memory.cast()).from(size)) };
        win.put(rank, offset, bytes, None)
    })
}

/// Loads bytes from the memory of a rank. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_get(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    memory: *mut c_void,
    size: usize,
) -> c_int {
    done(|| {
        check_memory(memory, size)?;
        // SAFETY: by the contract of the function.
        let (win, bytes) = unsafe { (deref(win)?, Memory::Into(memory.cast()).into(size)) };
        win.get(rank, offset, bytes)
    })
}

/// Stores `count` elements of `element_size` bytes, as tameike_win_put(). Elements in the memory of the rank are `stride` elements apart,
/// and those at `memory` `memory_stride` elements; both are at least 1. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_iput(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    stride: usize,
    memory: *const c_void,
    memory_stride: usize,
    element_size: usize,
    count: usize,
) -> c_int {
    done(|| {
        check_memory(memory, count)?;
        let elements = Strided::new(offset, (stride, memory_stride), element_size, count)?;
        // SAFETY: by the contract of the function.
        unsafe { deref(win)?.put_strided(rank, &elements, memory.cast()) }
    })
}

/// Loads elements, with the arguments of tameike_win_iput(). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_iget(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    stride: usize,
    memory: *mut c_void,
    memory_stride: usize,
    element_size: usize,
    count: usize,
) -> c_int {
    done(|| {
        check_memory(memory, count)?;
        let elements = Strided::new(offset, (stride, memory_stride), element_size, count)?;
        // SAFETY: by the contract of the function.
        unsafe { deref(win)?.get_strided(rank, &elements, memory.cast()) }
    })
}

/// Stores bytes as tameike_win_put(), and then stores `signal` in the 64-bit word at `signal_offset` in the memory of the same rank, or adds
/// it, as `operation` says: TAMEIKE_WIN_SET or TAMEIKE_WIN_ADD. A process that sees the signal sees the bytes. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_put_signal(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    memory: *const c_void,
    size: usize,
    signal_offset: u64,
    signal: u64,
    operation: c_int,
) -> c_int {
    done(|| {
        check_memory(memory, size)?;
        let signal = Signal { offset: signal_offset, change: change(operation, signal)? };
        // SAFETY: by the contract of the function.
        let (win, bytes) = unsafe { (deref(win)?, Memory::From(memory.cast()).from(size)) };
        win.put(rank, offset, bytes, Some(signal))
    })
}

/// Waits until the 64-bit word at `offset` in the own memory compares to `value` as `comparison` says (TAMEIKE_WIN_EQ, ...), as unsigned
/// numbers. What its writer has stored before is visible then. A negative time waits without limit. Returns 0 or a negative errno: -EAGAIN
/// after this time; -EOWNERDEAD or -EHOSTDOWN if a rank has ended without detaching or a node has failed; -EIO if the agent has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_wait_until(
    win: *mut Window,
    offset: u64,
    comparison: c_int,
    value: u64,
    milliseconds: c_int,
) -> c_int {
    done(|| {
        let value = (self::comparison(comparison)?, value);
        // SAFETY: by the contract of the function.
        unsafe { deref(win)? }.wait_until(offset, value, Request::until(milliseconds))
    })
}

/// Returns 1 if the word at `offset` in the own memory compares to `value` as `comparison` says, 0 if not, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_test(
    win: *mut Window,
    offset: u64,
    comparison: c_int,
    value: u64,
) -> c_int {
    let tested = counted(|| {
        let value = (self::comparison(comparison)?, value);
        // SAFETY: by the contract of the function.
        Ok(unsafe { deref(win)? }.test(offset, value)?.into())
    });
    tested as c_int
}

/// Orders accesses: what this process stores in the memory of a rank later is visible there only after what it has stored there before.
/// Does not wait. Returns 0 or the negative errno of an earlier put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_fence(win: *mut Window) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(win)? }.fence())
}

/// Waits until all that this process has stored is in the memory of its rank, and visible to all. Returns 0 or the negative errno of a
/// put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_quiet(win: *mut Window) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(win)? }.quiet())
}

/// As tameike_win_quiet(), and waits until all ranks have called it. Returns 0 or a negative errno: -EOWNERDEAD or -EPIPE if a rank has ended
/// or detached, -EHOSTDOWN if a node has failed, or that of a put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_barrier(win: *mut Window) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { deref(win)? }.barrier())
}

/// Executes an atomic operation, and stores the value before in `*previous` unless that is null.
///
/// # Safety
/// By the contract of the C functions.
unsafe fn atomic(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    operation: Atomic,
    previous: *mut u64,
) -> Result<()> {
    // SAFETY: by the contract above.
    let before = unsafe { deref(win)? }.atomic(rank, offset, operation)?;
    if !previous.is_null() {
        // SAFETY: the same.
        unsafe { previous.write(before) };
    }
    Ok(())
}

/// Adds `addend` to the 64-bit word at `offset` in the memory of a rank, and stores the value before in `*previous`, which may be null.
/// Additions, swaps, and signals of all processes are atomic with respect to each other. Returns 0 or a negative errno: -EINVAL if `offset` is no
/// multiple of 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_fetch_add(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    addend: u64,
    previous: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { atomic(win, rank, offset, Atomic::Add(addend), previous) })
}

/// As tameike_win_fetch_add(), and stores `value` in the word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_swap(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    value: u64,
    previous: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { atomic(win, rank, offset, Atomic::Swap(value), previous) })
}

/// As tameike_win_fetch_add(), and stores `value` in the word if it has the value `expected`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_compare_swap(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    expected: u64,
    value: u64,
    previous: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { atomic(win, rank, offset, Atomic::CompareSwap { expected, value }, previous) })
}

/// Reads the word as a whole. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_fetch(
    win: *mut Window,
    rank: c_uint,
    offset: u64,
    value: *mut u64,
) -> c_int {
    done(|| {
        check_memory(value, 1)?;
        // SAFETY: by the contract of the function.
        unsafe { atomic(win, rank, offset, Atomic::Fetch, value) }
    })
}

/// Completes all puts, detaches from a window, and removes its memory, also on an error. No thread may use the window any more. Barriers of
/// the others fail from then on. The process also detaches when it returns from main() or calls exit(). A process that ends in another way
/// makes the waits of the others fail, too. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_detach(win: *mut Window) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| unsafe { take(win)? }.detach())
}

/// As tameike_win_barrier() and then tameike_win_detach(), and removes the file before it returns in any rank. All ranks call it together.
/// Detaches also if the barrier fails. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_win_free(win: *mut Window) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        let win = unsafe { take(win)? };
        if win.is_child() {
            return win.detach();
        }
        let released = win.barrier();
        // All ranks if rank 0 may have failed.
        let removes = released.is_err() || win.rank().0 == 0;
        let removed = match if removes { unlink(win.path()) } else { Ok(()) } {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        };
        // A rank that then creates the window once more must not find the old file.
        let ended = if released.is_ok() { win.barrier() } else { Ok(()) };
        let detached = win.detach();
        released.and(removed).and(ended).and(detached)
    })
}
