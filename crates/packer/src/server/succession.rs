//! What a packer leaves in the container to a later one of the same job: notes, and removed files that may be open.
//!
//! The last packer of the job removes all of it.

use std::collections::{BTreeMap, VecDeque};
use tameike_io::shared::join;

/// The directory of the notes and of the removed files, which the views hide.
pub const LEFT: &[u8] = crate::CONTAINER;
/// The note of the marks of directories.
pub const MARKS: &[u8] = b".tameike-packed/marks";
/// The note of the last requests that change directories.
pub const CALLS: &[u8] = b".tameike-packed/calls";
/// The directory of removed files that may be open.
const REMOVED: &[u8] = b".tameike-packed/removed";
/// Requests in the note: more than can be in flight.
const CALLS_MAX: usize = 256;
const CALL_SIZE: usize = 16;

/// The place of a packer among those of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// It is the only one.
    Only,
    /// It is the first one. Another one may take over.
    First,
    /// It has taken over from another one, and yet another one may take over.
    Later,
}

/// The path that a removed file has while it may be open.
pub fn removed_path(number: u64) -> Vec<u8> {
    join(REMOVED, format!("{number:016x}").as_bytes())
}

/// Whether a path is that of a removed file.
pub fn is_removed(path: &[u8]) -> bool {
    path.strip_prefix(REMOVED).is_some_and(|rest| rest.starts_with(b"/"))
}

/// The last requests that change directories. A packer notes each before it executes it, with the inode number of the directory that it
/// renames.
#[derive(Clone, Default)]
pub struct Calls {
    last: VecDeque<(u64, u64)>,
    /// Those that an earlier packer has noted, and may have executed.
    earlier: BTreeMap<u64, u64>,
}

impl Calls {
    /// Those in the note of an earlier packer.
    pub fn of_note(note: &[u8]) -> Self {
        let (calls, _) = note.as_chunks::<CALL_SIZE>();
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |high, byte| high << 8 | u64::from(*byte));
        let last: VecDeque<_> = calls.iter().map(|call| (number(&call[..8]), number(&call[8..]))).collect();
        let earlier = last.iter().copied().collect();
        Self { last, earlier }
    }

    /// The inode number that an earlier packer has noted for a request.
    pub fn earlier(&self, call: u64) -> Option<u64> {
        self.earlier.get(&call).copied()
    }

    /// Adds a request.
    pub fn add(&mut self, call: u64, inode: u64) {
        if self.last.len() >= CALLS_MAX {
            self.last.pop_front();
        }
        self.last.push_back((call, inode));
    }

    /// The note.
    pub fn note(&self) -> Vec<u8> {
        self.last
            .iter()
            .flat_map(|(call, inode)| [call.to_le_bytes(), inode.to_le_bytes()].concat())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_found_in_the_note() {
        let mut calls = Calls::default();
        (0..2 * CALLS_MAX as u64).for_each(|call| calls.add(call, call << 40));
        assert_eq!(calls.earlier(CALLS_MAX as u64), None, "this packer knows what it has executed");
        let later = Calls::of_note(&calls.note());
        let found = [0, CALLS_MAX as u64 - 1, CALLS_MAX as u64, 2 * CALLS_MAX as u64 - 1];
        let expected = [None, None, Some((CALLS_MAX as u64) << 40), Some((2 * CALLS_MAX as u64 - 1) << 40)];
        assert_eq!(found.map(|call| later.earlier(call)), expected);
        assert_eq!(later.note(), calls.note());
    }

    #[test]
    fn only_removed_files_are_below_their_directory() {
        assert!(is_removed(&removed_path(7)));
        assert!(![MARKS, CALLS, REMOVED, b"removed/7"].iter().any(|path| is_removed(path)));
    }
}
