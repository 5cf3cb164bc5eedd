//! Reading and writing.

use super::arguments::{Buffer, Bytes, Vector, with_buffers, with_slices};
use super::{interpose, region, upgrade_first};
use crate::file::{self, BYTES_MAX};
use crate::table::is_kernel;
use std::ffi::c_int;
use tameike_interpose::Verdict;

fn read_at(number: c_int, buffer: Buffer, count: usize, offset: Option<i64>) -> Verdict<isize> {
    region::bring(buffer.address(), count, true);
    // The check for all other files, and therefore first.
    if is_kernel(number) {
        return None;
    }
    match buffer.bytes(count) {
        Ok(bytes) => signed(file::read(number, offset, &mut [bytes])),
        Err(error) => Some(Err(error)),
    }
}

fn write_at(number: c_int, bytes: Bytes, count: usize, offset: Option<i64>) -> Verdict<isize> {
    region::bring(bytes.address(), count, false);
    if is_kernel(number) {
        return None;
    }
    match bytes.values(count.min(BYTES_MAX)) {
        Ok(bytes) => signed(file::write(number, offset, &[bytes])),
        Err(error) => Some(Err(error)),
    }
}

fn read_vector(
    number: c_int,
    vector: Vector,
    count: c_int,
    offset: Option<i64>,
    flags: c_int,
) -> Verdict<isize> {
    region::bring_all(vector, count, true);
    without_flags(number, flags, || {
        with_buffers(vector, count, |buffers| signed(file::read(number, offset, buffers)))
    })
}

fn write_vector(
    number: c_int,
    vector: Vector,
    count: c_int,
    offset: Option<i64>,
    flags: c_int,
) -> Verdict<isize> {
    region::bring_all(vector, count, false);
    without_flags(number, flags, || {
        with_slices(vector, count, |slices| signed(file::write(number, offset, slices)))
    })
}

/// Serves a call through the ring, which supports no flags, or else through the kernel.
fn without_flags<T>(number: c_int, flags: c_int, ring: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    if is_kernel(number) {
        return None;
    }
    let served = if flags == 0 { ring() } else { None };
    served.or_else(|| upgrade_first(&[&number]))
}

fn signed(verdict: Verdict<usize>) -> Verdict<isize> {
    verdict.map(|outcome| outcome.map(|count| count.cast_signed()))
}

/// In `preadv2` and `pwritev2`, an offset of -1 selects the file's offset.
fn or_own(offset: i64) -> Option<i64> {
    Some(offset).filter(|offset| *offset != -1)
}

/// Fortified calls pass the size of the buffer; the C library aborts a program whose buffer is too small.
fn fits(count: usize, buffer: usize) -> Option<()> {
    (count <= buffer).then_some(())
}

interpose! {
    fn [read, __read](number: c_int, buffer: Buffer, count: usize) -> isize = read_at(number, buffer, count, None);
    fn [__read_chk](number: c_int, buffer: Buffer, count: usize, size: usize) -> isize =
        fits(count, size).and_then(|()| read_at(number, buffer, count, None));
    fn [write, __write](number: c_int, bytes: Bytes, count: usize) -> isize = write_at(number, bytes, count, None);
    fn [pread, pread64, __pread64](number: c_int, buffer: Buffer, count: usize, offset: i64) -> isize =
        read_at(number, buffer, count, Some(offset));
    fn [__pread_chk, __pread64_chk](number: c_int, buffer: Buffer, count: usize, offset: i64, size: usize) -> isize =
        fits(count, size).and_then(|()| read_at(number, buffer, count, Some(offset)));
    fn [pwrite, pwrite64, __pwrite64](number: c_int, bytes: Bytes, count: usize, offset: i64) -> isize =
        write_at(number, bytes, count, Some(offset));
    fn [readv](number: c_int, vector: Vector, count: c_int) -> isize = read_vector(number, vector, count, None, 0);
    fn [writev](number: c_int, vector: Vector, count: c_int) -> isize = write_vector(number, vector, count, None, 0);
    fn [preadv, preadv64](number: c_int, vector: Vector, count: c_int, offset: i64) -> isize =
        read_vector(number, vector, count, Some(offset), 0);
    fn [pwritev, pwritev64](number: c_int, vector: Vector, count: c_int, offset: i64) -> isize =
        write_vector(number, vector, count, Some(offset), 0);
    fn [preadv2, preadv64v2](number: c_int, vector: Vector, count: c_int, offset: i64, flags: c_int) -> isize =
        read_vector(number, vector, count, or_own(offset), flags);
    fn [pwritev2, pwritev64v2](number: c_int, vector: Vector, count: c_int, offset: i64, flags: c_int) -> isize =
        write_vector(number, vector, count, or_own(offset), flags);
}
