//! Memory of shared memory regions as buffers of system calls.
//!
//! The kernel fails with `EFAULT` at a page of a region that is not in memory. So calls that move bytes first have `libtameike` bring the
//! pages of their buffers.

use super::arguments::{Pointer, Vector};
use super::{interpose, upgrade_first};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use tameike_interpose::Verdict;

/// Brings pages of regions in a range of memory, for reads or writes by the kernel; ignores all other memory.
type Touch = extern "C" fn(*const c_void, usize, c_int);

/// The function of `libtameike`; null while the process has no region.
static TOUCH: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has calls bring pages with `touch` from now on. `libtameike` calls it when the process attaches to its first region.
// SAFETY: no other library has the name.
#[unsafe(no_mangle)]
pub extern "C" fn tameike_preload_touch_with(touch: Touch) {
    TOUCH.store(touch as *mut c_void, Ordering::Release);
}

/// Brings the pages of a buffer; `write` if the kernel will write to it.
pub fn bring(start: *const c_void, size: usize, write: bool) {
    let touch = TOUCH.load(Ordering::Acquire);
    if !touch.is_null() && size > 0 {
        // SAFETY: only functions of this type are stored.
        let touch: Touch = unsafe { std::mem::transmute(touch) };
        touch(start, size, write.into());
    }
}

/// As [`bring`], for the buffers of a vector.
pub fn bring_all(vector: Vector, count: c_int, write: bool) {
    if TOUCH.load(Ordering::Acquire).is_null() {
        return;
    }
    let buffers = usize::try_from(count).map(|count| vector.values(count));
    for buffer in buffers.into_iter().flatten().flatten() {
        bring(buffer.iov_base, buffer.iov_len, write);
    }
}

/// Leaves a call on a socket or stream to the C library.
fn received<T>(buffer: *const c_void, size: usize) -> Verdict<T> {
    bring(buffer, size, true);
    None
}

fn sent<T>(buffer: *const c_void, size: usize) -> Verdict<T> {
    bring(buffer, size, false);
    None
}

/// As [`bring_all`], for the buffers of a message.
pub fn bring_message(message: Pointer<libc::msghdr>, write: bool) {
    if TOUCH.load(Ordering::Acquire).is_null() {
        return;
    }
    if let Some(message) = message.get() {
        bring_all(
            Vector::at(message.msg_iov.cast()),
            c_int::try_from(message.msg_iovlen).unwrap_or(0),
            write,
        );
    }
}

// The C library's streams move large parts directly between descriptor and buffer.
interpose! {
    fn [send, __send](number: c_int, buffer: *const c_void, size: usize, flags: c_int) -> isize =
        upgrade_first(&[&number]).or_else(|| sent(buffer, size));
    fn [recv, __recv](number: c_int, buffer: *mut c_void, size: usize, flags: c_int) -> isize =
        upgrade_first(&[&number]).or_else(|| received(buffer, size));
    fn [recvmsg](number: c_int, message: Pointer<libc::msghdr>, flags: c_int) -> isize = {
        bring_message(message, true);
        None
    };
    fn [recvfrom](number: c_int, buffer: *mut c_void, size: usize, flags: c_int, from: *mut c_void, length: *mut c_void) -> isize =
        received(buffer, size);
    fn [__recv_chk](number: c_int, buffer: *mut c_void, size: usize, most: usize, flags: c_int) -> isize = received(buffer, size);
    fn [__recvfrom_chk](number: c_int, buffer: *mut c_void, size: usize, most: usize, flags: c_int, from: *mut c_void, length: *mut c_void) -> isize =
        received(buffer, size);
    fn [sendto](number: c_int, buffer: *const c_void, size: usize, flags: c_int, to: *const c_void, length: u32) -> isize =
        sent(buffer, size);
    fn [fread, fread_unlocked](buffer: *mut c_void, size: usize, count: usize, stream: *mut c_void) -> usize =
        received(buffer, size.saturating_mul(count));
    fn [__fread_chk, __fread_unlocked_chk](buffer: *mut c_void, most: usize, size: usize, count: usize, stream: *mut c_void) -> usize =
        received(buffer, size.saturating_mul(count));
    fn [fwrite, fwrite_unlocked](buffer: *const c_void, size: usize, count: usize, stream: *mut c_void) -> usize =
        sent(buffer, size.saturating_mul(count));
}
