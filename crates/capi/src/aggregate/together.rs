//! What processes that begin and end together tell one another.

use super::{Aggregate, take, told};
use crate::abi::{counted, done, fits, put, there};
use libc::ssize_t;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tameike_container::session::Report;

/// Tells rank 0 of a program what it knows of a container that it has just opened: for `known` in the options of all others, which open it
/// after that. `known` is only written to where `size` bytes are enough, and may be null where that is 0. Returns how many bytes it takes, 1 MiB and a
/// few at most; 0 where the others have to look for themselves; or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_known(
    container: *mut Aggregate,
    known: *mut c_void,
    size: usize,
) -> ssize_t {
    counted(|| {
        fits(known.cast::<u8>(), size)?;
        // SAFETY: by the contract of the function.
        let told =
            unsafe { there(container)? }.session()?.known().map_or_else(Vec::new, |known| known.encode());
        if (1..=size).contains(&told.len()) {
            // SAFETY: the same.
            unsafe { known.cast::<u8>().copy_from(told.as_ptr(), told.len()) };
        }
        Ok(told.len())
    })
}

/// As tameike_agg_finalize(), and tells what this process has put, for tameike_agg_take_report() of the process that ends last: `*report` has `*size` bytes and is
/// for free(); null and 0 where nothing is told. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_finalize_reporting(
    container: *mut Aggregate,
    report: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: by the contract of the function.
        unsafe {
            put(report, null_mut())?;
            put(size, 0)?;
        }
        // SAFETY: the same.
        let reported = told(unsafe { take(container)? }.finish_reporting())?;
        let bytes = reported.and_then(|reported| reported.encode()).unwrap_or_default();
        // SAFETY: it is asked for memory.
        let memory = if bytes.is_empty() { null_mut() } else { unsafe { libc::malloc(bytes.len()) } };
        if memory.is_null() {
            return Ok(());
        }
        // SAFETY: it has so many bytes; and by the contract of the function.
        unsafe {
            memory.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            put(report, memory)?;
            put(size, bytes.len())
        }
    })
}

/// What another process has reported, so that this one, which ends last and writes the index, need not look for it. Returns 0, or a negative errno:
/// -EINVAL for what is no report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_take_report(
    container: *mut Aggregate,
    report: *const c_void,
    size: usize,
) -> c_int {
    done(|| {
        fits(report.cast::<u8>(), size.max(1))?;
        // SAFETY: by the contract of the function.
        let bytes = unsafe { std::slice::from_raw_parts(report.cast::<u8>(), size) };
        let report = Report::decode(bytes).ok_or(Errno::INVAL)?;
        // SAFETY: the same.
        unsafe { there(container)? }.session()?.take_report(report);
        Ok(())
    })
}
