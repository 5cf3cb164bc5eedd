//! Accesses to remote memory windows: from a program to its agent, and from agent to agent.
//!
//! A window is a region without pages. Each rank, a process of the region, has memory of the same size in it, which all
//! ranks access one-sided. Offsets are those in the memory of the rank that is accessed.

use crate::ids::InodeId;
use crate::limits::{MESSAGE_SIZE_MAX, UNIT_SIZE};
use serde::{Deserialize, Serialize};

/// Largest number of ranks of a window. A message lists the nodes of all ranks.
pub const RANKS_MAX: u32 = 1 << 16;

const _: () = assert!(RANKS_MAX as usize * 3 + 64 <= MESSAGE_SIZE_MAX);

/// The place of a process in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Number of the process, from 0.
    pub number: u32,
    /// Size of the memory of each rank in bytes.
    pub bytes: u64,
}

/// Elements of equal size at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elements {
    /// Offset of the first one.
    pub offset: u64,
    /// Size of each in bytes.
    pub size: u32,
    /// Distance between the starts of two elements in bytes.
    pub stride: u64,
    /// Number of elements.
    pub count: u32,
}

impl Elements {
    /// Bytes without gaps.
    pub fn contiguous(offset: u64, size: u32) -> Self {
        Self { offset, size, stride: u64::from(size), count: 1 }
    }

    /// Size of all elements together; `None` if a message cannot carry them.
    pub fn total(&self) -> Option<u32> {
        self.size.checked_mul(self.count).filter(|&total| total as usize <= UNIT_SIZE)
    }

    /// Offset after the last byte; `None` if it is beyond 64 bits.
    pub fn end(&self) -> Option<u64> {
        match self.count.checked_sub(1) {
            Some(last) => {
                let last = u64::from(last).checked_mul(self.stride)?;
                self.offset.checked_add(last)?.checked_add(self.size.into())
            }
            None => Some(self.offset),
        }
    }
}

/// Change of a 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WordChange {
    /// Stores a value.
    Set(u64),
    /// Adds a number; the sum wraps.
    Add(u64),
}

/// A change that is visible after the bytes of the same message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    /// Offset of the word, a multiple of 8.
    pub offset: u64,
    /// The change.
    pub change: WordChange,
}

/// Atomic operation on a 64-bit word. Each returns the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Atomic {
    /// Reads the word.
    Fetch,
    /// Adds a number; the sum wraps.
    Add(u64),
    /// Stores a value.
    Swap(u64),
    /// Stores a value if the word has the expected one.
    CompareSwap {
        /// The expected value.
        expected: u64,
        /// The value to store.
        value: u64,
    },
}

/// An access to the memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Stores the bytes of the payload, which has no gaps, then changes a word.
    Put {
        /// Where to.
        to: Elements,
        /// The change of a word.
        signal: Option<Signal>,
    },
    /// Reads bytes. The payload of the reply has no gaps.
    Get {
        /// Where from.
        from: Elements,
    },
    /// Changes or reads a word.
    Atomic {
        /// Offset of the word, a multiple of 8.
        offset: u64,
        /// The operation.
        operation: Atomic,
    },
    /// Appends the payload to a message queue.
    Send {
        /// Offset of the queue.
        queue: u64,
    },
}

impl Access {
    /// As [`super::Request::is_read_only`].
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            Self::Get { .. } | Self::Atomic { operation: Atomic::Fetch, .. } => true,
            // A put that is repeated later could undo another one.
            Self::Put { .. } | Self::Atomic { .. } | Self::Send { .. } => false,
        }
    }
}

/// An access of a process on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowRequest {
    /// The window.
    pub window: InodeId,
    /// The rank whose memory is accessed. It is a process of the receiver.
    pub rank: u32,
    /// The access.
    pub access: Access,
}

/// The reply to a [`WindowRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowReply {
    /// The request was carried out.
    Done,
    /// The bytes are the payload.
    Read,
    /// Value of a word before the operation.
    Previous(u64),
    /// The message queue is full: the message is not in it.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_end_after_the_last_one() {
        let elements = |offset, size, stride, count| Elements { offset, size, stride, count };
        assert_eq!(Elements::contiguous(5, 7).end(), Some(12));
        assert_eq!(elements(8, 4, 16, 3).end(), Some(8 + 32 + 4));
        assert_eq!(elements(8, 4, u64::MAX, 0).end(), Some(8));
        assert_eq!(elements(8, 4, u64::MAX, 1).end(), Some(12));
        assert_eq!(elements(0, 4, 1 << 63, 3).end(), None);
        assert_eq!(elements(u64::MAX, 1, 0, 1).end(), None);
        assert_eq!(elements(0, 1 << 10, 0, 1 << 10).total(), Some(1 << 20));
        assert_eq!(elements(0, 1 << 10, 0, 1025).total(), None);
        assert_eq!(elements(0, 1 << 16, 0, 1 << 16).total(), None);
    }
}
