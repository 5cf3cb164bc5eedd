//! Elements at equal distances, in the memory of a rank and in that of the program.

use crate::file::Result;
use rustix::io::Errno;
use tameike_core::wire::window::Elements;
use tameike_ring::client::TRANSFER_SIZE_MAX;

/// Elements of equal size. Distances are between their starts, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// Offset of the first one in the memory of a rank.
    offset: u64,
    /// Distance in the memory of a rank.
    stride: u64,
    /// Distance in the memory of the program.
    own_stride: usize,
    size: usize,
    count: usize,
    /// Number of elements of the whole access before these.
    skipped: usize,
}

impl Strided {
    /// Elements of `size` bytes, with distances in elements.
    ///
    /// # Errors
    /// `EINVAL` for a size or distance of 0, or distances beyond the address space.
    pub fn new(offset: u64, strides: (usize, usize), size: usize, count: usize) -> Result<Self> {
        let (stride, own_stride) = strides;
        let in_bytes =
            |stride: usize| stride.checked_mul(size).filter(|&bytes| bytes > 0).ok_or(Errno::INVAL);
        let (stride, own_stride) = (in_bytes(stride)? as u64, in_bytes(own_stride)?);
        let own_size = own_stride.checked_mul(count).and_then(|bytes| isize::try_from(bytes).ok());
        own_size.ok_or(Errno::INVAL)?;
        Ok(Self { offset, stride, own_stride, size, count, skipped: 0 })
    }

    /// Checks that all elements are in memory of `bytes` bytes.
    pub fn check(&self, bytes: u64) -> Result<()> {
        let Some(last) = self.count.checked_sub(1) else { return Ok(()) };
        let end = self.stride.checked_mul(last as u64).and_then(|last| last.checked_add(self.offset));
        let end = end.and_then(|end| end.checked_add(self.size as u64));
        if end.is_some_and(|end| end <= bytes) { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Offset of the first element.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset of an element.
    pub fn offset_of(&self, number: usize) -> u64 {
        self.offset + self.stride * number as u64
    }

    /// Size of all elements.
    pub fn total(&self) -> usize {
        self.size * self.count
    }

    /// Parts that fit a message each, or are one element.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        let most = (TRANSFER_SIZE_MAX / self.size).max(1);
        (0..self.count.div_ceil(most)).map(move |part| {
            let first = part * most;
            Self {
                offset: self.offset_of(first),
                count: most.min(self.count - first),
                skipped: self.skipped + first,
                ..self
            }
        })
    }

    /// The elements of a part, as in a message; `None` for one that does not fit.
    pub fn message(&self) -> Option<Elements> {
        let (size, count) = (u32::try_from(self.size).ok()?, u32::try_from(self.count).ok()?);
        let elements = Elements { offset: self.offset, size, stride: self.stride, count };
        elements.total().is_some().then_some(elements)
    }

    fn own_offset(&self, number: usize) -> usize {
        self.own_stride * (self.skipped + number)
    }

    /// An element of the program's memory, of which the whole access begins at `start`.
    ///
    /// # Safety
    /// All elements are valid for reads, and do not change while the result is used.
    pub unsafe fn element<'a>(&self, start: *const u8, number: usize) -> &'a [u8] {
        // SAFETY: by the contract above.
        unsafe { std::slice::from_raw_parts(start.wrapping_add(self.own_offset(number)), self.size) }
    }

    /// As [`Self::element`], for writes.
    ///
    /// # Safety
    /// All elements are valid for writes, and accessed only by the result while it is used.
    pub unsafe fn element_mut<'a>(&self, start: *mut u8, number: usize) -> &'a mut [u8] {
        // SAFETY: by the contract above.
        unsafe { std::slice::from_raw_parts_mut(start.wrapping_add(self.own_offset(number)), self.size) }
    }

    /// Copies the elements of the program to `packed`.
    ///
    /// # Safety
    /// As [`Self::element`].
    pub unsafe fn pack(&self, start: *const u8, packed: &mut [u8]) {
        for (number, place) in packed.chunks_exact_mut(self.size).enumerate() {
            // SAFETY: by the contract above.
            place.copy_from_slice(unsafe { self.element(start, number) });
        }
    }

    /// Copies `packed` to the elements of the program.
    ///
    /// # Safety
    /// As [`Self::element_mut`].
    pub unsafe fn unpack(&self, packed: &[u8], start: *mut u8) {
        for (number, bytes) in packed.chunks_exact(self.size).enumerate() {
            // SAFETY: by the contract above.
            unsafe { self.element_mut(start, number) }.copy_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_must_be_positive_and_elements_in_the_memory() {
        assert!(Strided::new(0, (0, 1), 8, 1).is_err());
        assert!(Strided::new(0, (1, 0), 8, 1).is_err());
        assert!(Strided::new(0, (1, 1), 0, 1).is_err());
        assert!(Strided::new(0, (1, usize::MAX), 8, 1).is_err());
        assert!(Strided::new(0, (1, 1 << 40), 8, 1 << 40).is_err());
        let check = |offset, stride, size, count, bytes| {
            Strided::new(offset, (stride, 1), size, count).expect("small").check(bytes).is_ok()
        };
        assert!(check(8, 3, 8, 5, 8 + 4 * 24 + 8) && !check(8, 3, 8, 5, 8 + 4 * 24 + 7));
        assert!(check(100, 1, 8, 0, 4), "no element");
        assert!(!check(u64::MAX, 1, 8, 1, u64::MAX) && !check(8, 1 << 50, 8, 1 << 20, u64::MAX));
    }

    #[test]
    fn parts_cover_all_elements_once() {
        for (size, count) in [(3, 1_000_000), (8, 10), (TRANSFER_SIZE_MAX, 3), (TRANSFER_SIZE_MAX + 1, 2)] {
            let all = Strided::new(16, (2, 5), size, count).expect("possible");
            let mut next = 0;
            for part in all.parts() {
                assert_eq!((part.offset(), part.own_offset(0)), (all.offset_of(next), all.own_offset(next)));
                assert_eq!(part.message().is_some(), size <= TRANSFER_SIZE_MAX);
                next += part.count();
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn elements_of_the_program_are_packed_and_unpacked() {
        let from: Vec<u8> = (0..40).collect();
        let strided = Strided::new(0, (1, 3), 2, 5).expect("small");
        let mut packed = [0; 10];
        // SAFETY: the last element ends at byte 26 of 40.
        unsafe { strided.pack(from.as_ptr(), &mut packed) };
        assert_eq!(packed, [0, 1, 6, 7, 12, 13, 18, 19, 24, 25]);
        let mut into = [0xff; 40];
        // SAFETY: as above.
        unsafe { strided.unpack(&packed, into.as_mut_ptr()) };
        for (at, byte) in into.into_iter().enumerate() {
            assert_eq!(byte, if at < 26 && at % 6 < 2 { at as u8 } else { 0xff });
        }
    }
}
