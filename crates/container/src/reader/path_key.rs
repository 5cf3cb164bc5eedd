//! Paths as keys, in the order of an index.

use crate::format::entry::split_path;
use std::cmp::Ordering;

/// A path, ordered by its directory and then by its name, like [`compare_paths`](super::super::index::compare_paths). The offset of the
/// name is computed once.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PathKey {
    path: Vec<u8>,
    name_at: usize,
}

impl PathKey {
    pub(super) fn of(path: &[u8]) -> Self {
        let (_, name) = split_path(path);
        Self { path: path.to_vec(), name_at: path.len() - name.len() }
    }

    /// Directory and name.
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
        (&self.path[..self.name_at.saturating_sub(1)], &self.path[self.name_at..])
    }
}

impl Ord for PathKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for PathKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
