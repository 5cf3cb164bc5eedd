//! What is in the directory of a container.

use super::{outside, subfile};
use std::collections::BTreeSet;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

/// Names of a container's directory, as far as they matter.
#[derive(Default)]
pub struct Listing {
    /// Of subfiles, ascending.
    pub numbers: Vec<u32>,
    /// Files that have content of packed ones, or once had.
    pub outside: BTreeSet<Vec<u8>>,
}

impl Listing {
    /// Lists the directory `fs`.
    ///
    /// # Errors
    /// What the file system says.
    pub fn of(fs: &dyn SharedFs) -> Result<Self> {
        let (dir, mut listing, mut after) = (fs.open_dir(b"")?, Self::default(), 0);
        loop {
            let names = dir.read(after)?;
            let Some(last) = names.last() else { break };
            after = last.next;
            for name in names.into_iter().map(|named| named.name) {
                listing.numbers.extend(subfile::number_of(&name));
                if name.starts_with(outside::PREFIX.as_bytes()) {
                    listing.outside.insert(name);
                }
            }
        }
        listing.numbers.sort_unstable();
        listing.numbers.dedup();
        Ok(listing)
    }
}
