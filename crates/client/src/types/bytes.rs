//! Bytes on their way between programs and views.

use parking_lot::Mutex;
use std::borrow::Cow;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::{Frame, Payload};

/// Bytes that were read.
#[derive(Clone)]
pub enum ReadBytes {
    /// In a frame.
    Frame(Payload),
    /// In memory of their own.
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

/// Bytes to be written, where their program has them. It may change them at any time: who copies some twice may find others.
pub trait WriteBytes: Sync {
    /// How many.
    fn size(&self) -> usize;
    /// Copies as many from `start` on as `into` has room for.
    fn copy_to(&self, start: usize, into: &mut [u8]);
    /// The frame that they are all of, for who keeps it. Taken once, by who then has written all: after that there is nothing to copy.
    fn take_frame(&self) -> Option<Frame> {
        None
    }
    /// Those from `start` on, in memory that does not change.
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

/// The bytes of a write that fill a frame.
pub struct FrameBytes(Mutex<Option<Frame>>);

impl FrameBytes {
    /// Those of this frame.
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
        let frame = frame.as_ref().expect("who took the frame has all bytes");
        into.copy_from_slice(&frame[start..start + into.len()]);
    }

    fn take_frame(&self) -> Option<Frame> {
        self.0.lock().take()
    }
}
