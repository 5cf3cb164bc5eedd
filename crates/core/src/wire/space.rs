//! Space of files: changes of the space of a byte range, and the search for data and holes.

use serde::{Deserialize, Serialize};

/// A change of the space of a byte range (`fallocate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpaceChange {
    /// Allocates space where there is none, so that later writes do not fail with `ENOSPC`.
    Allocate,
    /// Frees the space: the bytes read as zeros.
    Punch,
    /// The bytes read as zeros, and have space as after [`SpaceChange::Allocate`].
    Zero,
}

/// The target of `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sought {
    /// A byte that was written.
    Data,
    /// A byte that was never written, or has been freed.
    Hole,
}
