//! Buffers of reads and writes between programs and views.

use parking_lot::Mutex;
use std::borrow::Cow;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::{Frame, Payload};

/// Result of a read.
#[derive(Clone)]
pub enum ReadBytes {
    /// In a frame.
    Frame(Payload),
    /// In a separate buffer.
    Memory(Vec<u8>),
}

impl std::ops::Deref for ReadBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Frame(payload) => payload,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// Source buffer of a write in the program's memory. The program may change it at any time: two copies of one range may differ.
pub trait WriteBytes: Sync {
    /// Length in bytes.
    fn size(&self) -> usize;
    /// Copies bytes from `start` on until `into` is full.
    fn copy_to(&self, start: usize, into: &mut [u8]);
    /// Returns the frame that these bytes fill, for a caller that keeps it. Called at most once, after all bytes are written: afterwards
    /// there is no source to copy.
    fn take_frame(&self) -> Option<Frame> {
        None
    }
    /// Returns the bytes from `start` on, in memory that does not change.
    fn held(&self, start: usize) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.size() - start];
        self.copy_to(start, &mut bytes);
        bytes.into()
    }
}

impl<T: AsRef<[u8]> + Sync> WriteBytes for T {
    fn size(&self) -> usize {
        self.as_ref().len()
    }

    fn copy_to(&self, start: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.as_ref()[start..start + into.len()]);
    }

    fn held(&self, start: usize) -> Cow<'_, [u8]> {
        self.as_ref()[start..].into()
    }
}

/// Source buffer of a write that fills a frame.
pub struct FrameBytes(Mutex<Option<Frame>>);

impl FrameBytes {
    /// Reads from this frame.
    pub fn new(frame: Frame) -> Self {
        Self(Mutex::new(Some(frame)))
    }
}

impl WriteBytes for FrameBytes {
    fn size(&self) -> usize {
        UNIT_SIZE
    }

    fn copy_to(&self, start: usize, into: &mut [u8]) {
        let frame = self.0.lock();
        let frame = frame.as_ref().expect("no copy follows after the frame is taken");
        into.copy_from_slice(&frame[start..start + into.len()]);
    }

    fn take_frame(&self) -> Option<Frame> {
        self.0.lock().take()
    }
}
