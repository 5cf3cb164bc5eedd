//! Listing of a container's directory.

use super::{external, readme, subfile, superblock};
use crate::index::{INDEX_NAME, NEW_PREFIX, RUN_PREFIX};
use std::collections::BTreeSet;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

/// Names in a container's directory, by purpose.
#[derive(Default)]
pub struct Listing {
    /// Numbers of the subfiles, ascending.
    pub numbers: Vec<u32>,
    /// Files with external content, also of files that have been removed.
    pub external: BTreeSet<Vec<u8>>,
    /// Files that do not belong to the container.
    pub strays: BTreeSet<Vec<u8>>,
}

/// Prefix of the names under which NFS clients keep open files that were removed.
const NFS_PREFIX: &[u8] = b".nfs";

impl Listing {
    /// Lists the directory `fs`.
    pub fn of(fs: &dyn SharedFs) -> Result<Self> {
        let (dir, mut listing, mut after) = (fs.open_dir(b"")?, Self::default(), 0);
        loop {
            let names = dir.read(after)?;
            let Some(last) = names.last() else { break };
            after = last.next;
            for name in names.into_iter().map(|named| named.name) {
                listing.numbers.extend(subfile::number_of(&name));
                if !is_own(&name) && name != readme::NAME {
                    listing.strays.insert(name.clone());
                }
                if name.starts_with(external::PREFIX.as_bytes()) {
                    listing.external.insert(name);
                }
            }
        }
        listing.numbers.sort_unstable();
        listing.numbers.dedup();
        Ok(listing)
    }
}

/// Returns true for names that programs of Tameike (or the NFS client) create in a container.
fn is_own(name: &[u8]) -> bool {
    [b".".as_slice(), b"..", superblock::NAME, superblock::TEMPORARY_NAME, INDEX_NAME].contains(&name)
        || [NEW_PREFIX.as_bytes(), RUN_PREFIX.as_bytes(), NFS_PREFIX]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        || subfile::number_of(name).is_some()
        || external::is_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_distinguished_from_strays() {
        for own in [
            ".",
            "..",
            "container",
            "container.new",
            "index",
            "index.new.00000000000000ff",
            "index.run.00ff.3",
            "00010000.data",
        ]
        .into_iter()
        .chain(["out.00000000000000ff", ".nfs0000000001"])
        {
            assert!(is_own(own.as_bytes()), "{own}");
        }
        for other in
            ["a", "out.txt", "out.ff", "1.data", "results.data", "Index", "container.old", "index.html"]
        {
            assert!(!is_own(other.as_bytes()), "{other}");
        }
    }
}
