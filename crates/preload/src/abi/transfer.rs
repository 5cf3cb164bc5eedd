//! Reading and writing.

use super::arguments::{Bytes, Parts, Room, Vector};
use super::{interpose, kernels};
use crate::file;
use crate::table;
use std::ffi::c_int;
use tameike_interpose::Verdict;

/// Whether a call on `number` is none of the library's business: the way of all other files, and therefore first.
#[inline]
fn is_kernels(number: c_int) -> bool {
    table::entry(number).is_none_or(table::Entry::is_free)
}

fn read_at(number: c_int, room: Room, count: usize, offset: Option<i64>) -> Verdict<isize> {
    if is_kernels(number) {
        return None;
    }
    match room.bytes(count) {
        Ok(bytes) => told(file::read(number, offset, &mut [bytes])),
        Err(error) => Some(Err(error)),
    }
}

fn write_at(number: c_int, bytes: Bytes, count: usize, offset: Option<i64>) -> Verdict<isize> {
    if is_kernels(number) {
        return None;
    }
    match bytes.bytes(count) {
        Ok(bytes) => told(file::write(number, offset, &[bytes])),
        Err(error) => Some(Err(error)),
    }
}

/// Flags mean something other than what the ring does: but none do.
fn read_vector(
    number: c_int,
    vector: Vector,
    count: c_int,
    offset: Option<i64>,
    flags: c_int,
) -> Verdict<isize> {
    if is_kernels(number) {
        return None;
    }
    let outcome =
        if flags == 0 { vector.rooms(count, |rooms| told(file::read(number, offset, rooms))) } else { None };
    outcome.or_else(|| kernels(&[&number]))
}

fn write_vector(
    number: c_int,
    vector: Vector,
    count: c_int,
    offset: Option<i64>,
    flags: c_int,
) -> Verdict<isize> {
    if is_kernels(number) {
        return None;
    }
    let outcome = if flags == 0 {
        vector.pieces(count, |pieces| told(file::write(number, offset, pieces)))
    } else {
        None
    };
    outcome.or_else(|| kernels(&[&number]))
}

fn told(verdict: Verdict<usize>) -> Verdict<isize> {
    verdict.map(|outcome| outcome.map(|count| count.cast_signed()))
}

/// `preadv2` and `pwritev2` use the file's offset when told -1.
fn or_own(offset: i64) -> Option<i64> {
    Some(offset).filter(|offset| *offset != -1)
}

/// Fortified calls know how large the room is; the C library ends a program whose room is too small.
fn fits(count: usize, room: usize) -> Option<()> {
    (count <= room).then_some(())
}

interpose! {
    fn [read, __read](number: c_int, room: Room, count: usize) -> isize = read_at(number, room, count, None);
    fn [__read_chk](number: c_int, room: Room, count: usize, size: usize) -> isize =
        fits(count, size).and_then(|()| read_at(number, room, count, None));
    fn [write, __write](number: c_int, bytes: Bytes, count: usize) -> isize = write_at(number, bytes, count, None);
    fn [pread, pread64, __pread64](number: c_int, room: Room, count: usize, offset: i64) -> isize =
        read_at(number, room, count, Some(offset));
    fn [__pread_chk, __pread64_chk](number: c_int, room: Room, count: usize, offset: i64, size: usize) -> isize =
        fits(count, size).and_then(|()| read_at(number, room, count, Some(offset)));
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
