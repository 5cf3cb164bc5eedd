//! File descriptors in cells that threads and signal handlers access concurrently.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Not a valid descriptor.
const NONE: RawFd = -1;

/// A cell for a descriptor, set once. Access never blocks.
#[derive(Debug)]
pub struct DescriptorCell(AtomicI32);

impl Default for DescriptorCell {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

impl DescriptorCell {
    /// The number of the descriptor, if set.
    pub fn number(&self) -> Option<RawFd> {
        Some(self.0.load(Ordering::Acquire)).filter(|number| *number != NONE)
    }

    /// The descriptor, if set.
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the cell closes the descriptor only on drop, and the borrow ends before that.
        self.number().map(|number| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Sets the descriptor, or closes it if the cell is set already.
    pub fn set(&self, descriptor: OwnedFd) {
        let number = descriptor.as_raw_fd();
        if self.0.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ = descriptor.into_raw_fd();
        }
    }
}

impl Drop for DescriptorCell {
    fn drop(&mut self) {
        if let Some(number) = self.number() {
            // SAFETY: the cell owns the descriptor, and has no other users any more.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// A place for a descriptor that one thread puts and another one takes. Access never blocks.
#[derive(Debug)]
pub struct DescriptorPlace(AtomicI32);

impl Default for DescriptorPlace {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

impl DescriptorPlace {
    /// Puts a descriptor, and closes the one that was there.
    pub fn put(&self, descriptor: OwnedFd) {
        drop(self.replace(descriptor.into_raw_fd()));
    }

    /// Takes the descriptor.
    pub fn take(&self) -> Option<OwnedFd> {
        self.replace(NONE)
    }

    fn replace(&self, number: RawFd) -> Option<OwnedFd> {
        let before = self.0.swap(number, Ordering::AcqRel);
        // SAFETY: the place owned the descriptor, and does not have it any more.
        (before != NONE).then(|| unsafe { OwnedFd::from_raw_fd(before) })
    }
}

impl Drop for DescriptorPlace {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{fcntl_getfd, read};
    use rustix::pipe::pipe;

    #[test]
    fn the_first_descriptor_stays_and_is_closed_at_the_end() {
        let cell = DescriptorCell::default();
        assert!(cell.get().is_none() && cell.number().is_none());
        let ((first_reader, first), (second_reader, second)) =
            (pipe().expect("a pipe"), pipe().expect("another"));
        let number = first.as_raw_fd();
        cell.set(first);
        cell.set(second);
        assert_eq!(cell.number(), Some(number));
        assert_eq!(read(&second_reader, &mut [0; 1]), Ok(0), "the second one is closed");
        assert!(fcntl_getfd(cell.get().expect("the first one")).is_ok());
        drop(cell);
        assert_eq!(read(&first_reader, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn the_last_descriptor_is_taken_once() {
        let place = DescriptorPlace::default();
        assert!(place.take().is_none());
        let ((first_reader, first), (second_reader, second)) =
            (pipe().expect("a pipe"), pipe().expect("another"));
        place.put(first);
        place.put(second);
        assert_eq!(read(&first_reader, &mut [0; 1]), Ok(0), "the first one is closed");
        drop(place.take().expect("the second one"));
        assert_eq!(read(&second_reader, &mut [0; 1]), Ok(0));
        assert!(place.take().is_none());
        let (third_reader, third) = pipe().expect("another");
        place.put(third);
        drop(place);
        assert_eq!(read(&third_reader, &mut [0; 1]), Ok(0), "the third one is closed");
    }
}
