//! Cache state of a file: shows if facts learnt earlier are still valid.

/// A cache epoch and a number of writes. It changes when another node may have changed the file, and with each write of this node.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) epoch: u64,
    pub(super) writes: u64,
}
