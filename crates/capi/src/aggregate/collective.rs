//! Functions that let collective processes exchange their knowledge of a container.

use super::{Aggregate, take, with_message};
use crate::abi::{check_memory, counted, deref, done, write_out};
use libc::ssize_t;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tameike_container::session::Report;

/// On rank 0, returns the state of a container that it has just opened, for `known` in the options of the other ranks, which open it
/// afterwards. Writes to `known` only if `size` bytes suffice; `known` may be null if `size` is 0. Returns the size of the state (at most a
/// few bytes more than 1 MiB), or 0 if other ranks must read the container themselves, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_known(
    container: *mut Aggregate,
    known: *mut c_void,
    size: usize,
) -> ssize_t {
    counted(|| {
        check_memory(known.cast::<u8>(), size)?;
        // SAFETY: by the contract of the function.
        let encoded =
            unsafe { deref(container)? }.session()?.snapshot().map_or_else(Vec::new, |known| known.encode());
        if (1..=size).contains(&encoded.len()) {
            // SAFETY: the same.
            unsafe { known.cast::<u8>().copy_from(encoded.as_ptr(), encoded.len()) };
        }
        Ok(encoded.len())
    })
}

/// As tameike_agg_finalize(), and returns a report of what this process has written, for tameike_agg_take_report() of the process that
/// finalizes last. `*report` has `*size` bytes, and must be freed with free(); null and 0 if there is none. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_finalize_reporting(
    container: *mut Aggregate,
    report: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        unsafe {
            write_out(report, null_mut())?;
            write_out(size, 0)?;
        }
        // SAFETY: the same.
        let reported = with_message(unsafe { take(container)? }.finish_reporting())?;
        let bytes = reported.and_then(|reported| reported.encode()).unwrap_or_default();
        // SAFETY: allocates memory.
        let memory = if bytes.is_empty() { null_mut() } else { unsafe { libc::malloc(bytes.len()) } };
        if memory.is_null() {
            return Ok(());
        }
        // SAFETY: the memory has that many bytes; and by the contract of the function.
        unsafe {
            memory.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            write_out(report, memory)?;
            write_out(size, bytes.len())
        }
    })
}

/// Takes the report of another process, so that this process, which finalizes last and writes the index, need not read what the other has
/// written. Returns 0 or a negative errno: -EINVAL for an invalid report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_take_report(
    container: *mut Aggregate,
    report: *const c_void,
    size: usize,
) -> c_int {
    done(|| {
        check_memory(report.cast::<u8>(), size.max(1))?;
        // SAFETY: by the contract of the function.
        let bytes = unsafe { std::slice::from_raw_parts(report.cast::<u8>(), size) };
        let report = Report::decode(bytes).ok_or(Errno::INVAL)?;
        // SAFETY: the same.
        unsafe { deref(container)? }.session()?.take_report(report);
        Ok(())
    })
}
