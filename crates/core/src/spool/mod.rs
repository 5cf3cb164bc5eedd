//! The spool of `--aggregate-only`: the protocol between programs and its packer, and the stubs of packed files.
//!
//! `libtameike_redirect.so` in each program and the packer in `tameike run` share these definitions; neither links the
//! other.

pub mod protocol;
pub mod stub;

use std::hash::{DefaultHasher, Hash, Hasher};

/// New files need this fraction of the spool's space free, in bytes and in files.
pub const FREE_PART: u64 = 8;

/// Returns true if a spool is short of space. Each pair is (free, total): of bytes, and of files.
pub fn is_short(space: [(u64, u64); 2]) -> bool {
    space.iter().any(|&(free, all)| all > 0 && free < all / FREE_PART)
}

/// The inode number that programs see for the file with this path in the tree, as long as it has one name.
pub fn number(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish() | 1
}
