//! The directory with the store of a volume on one node, `tameike-volume-UID-NAME-NODE` below the volume's device directory.
//!
//! Its label says to which volume and node it belongs. Nothing that cleans up after jobs knows these directories: only
//! `tameike volume remove` and `tameike volume shrink` remove one.

use super::record::{read_json, write_durably};
use super::{janitor, tree};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};
use tameike_io::disk::file::sync_directory;
use tameike_io::os::owned;
use tameike_store::directory::is_open;

/// The file with the label.
const LABEL_FILE: &str = "volume.json";

/// The label of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreLabel {
    /// Random number of the volume, which distinguishes it from others of the same name.
    pub volume: String,
    /// Number of the node.
    pub node: u32,
    /// Capacities of the views in bytes, in the order of [`tameike_core::View::ALL`].
    pub capacity: [u64; 3],
}

/// Creates the directory of a new store.
///
/// # Errors
/// `EEXIST` if there is one; those of the system.
pub fn create(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => owned::is_own_dir(dir).map(drop),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Fault::new(
            Errno::EEXIST,
            format!(
                "{} exists already, with the store of another volume of this name: `tameike volume remove` removes that, or \
                 choose another name or --device",
                dir.display()
            ),
        )),
        Err(error) => {
            Err(Fault::from_os(format_args!("creating the store of the volume, {}", dir.display()), &error))
        }
    }
}

impl StoreLabel {
    /// Writes the label of a new store, durably.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_durably(&dir.join(LABEL_FILE), self)?;
        dir.parent().map_or(Ok(()), sync_directory)
    }

    /// Reads the label of a store; `None` if it is not that of a volume.
    pub fn of(dir: &Path) -> Result<Option<Self>> {
        read_json(&dir.join(LABEL_FILE))
    }

    /// Reads the label of the store of a volume's node.
    ///
    /// # Errors
    /// - `ENOENT`: the store is missing, perhaps because its disk is not mounted
    /// - `EINVAL`: the directory has the store of another volume or node
    /// - `EPERM`: it belongs to another user
    pub fn read(dir: &Path, volume: &str, node: u32) -> Result<Self> {
        let label = if owned::is_own_dir(dir)? { Self::of(dir)? } else { None };
        let missing = || {
            let message =
                format!("the store of the volume, {}, is missing: is its disk mounted?", dir.display());
            Fault::new(Errno::ENOENT, message)
        };
        let label = label.ok_or_else(missing)?;
        if label.volume == volume && label.node == node {
            return Ok(label);
        }
        let message = format!("{} has the store of another volume, or of node {}", dir.display(), label.node);
        Err(Fault::new(Errno::EINVAL, message))
    }
}

/// Checks that no agent has a store open.
///
/// # Errors
/// `EBUSY`; those of the system.
pub fn check_closed(dir: &Path) -> Result<()> {
    if is_open(dir)? {
        return Err(Fault::new(Errno::EBUSY, format!("an agent has the store {} open", dir.display())));
    }
    Ok(())
}

/// Removes the store of a volume's node. A missing store is not an error.
///
/// # Errors
/// `EINVAL` if it is the store of another volume or node; those of the system.
pub fn remove(dir: &Path, volume: &str, node: u32) -> Result<()> {
    match dir.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        _ => {}
    }
    // A creation that was interrupted leaves a directory without a label.
    if !tree::is_empty_but_for(dir, "")? {
        StoreLabel::read(dir, volume, node)?;
    }
    janitor::remove_device(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_store_of_the_same_volume_and_node_is_opened_or_removed() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = temp.path().join("store");
        assert_eq!(StoreLabel::read(&dir, "a", 1).expect_err("missing").errno, Errno::ENOENT);
        remove(&dir, "a", 1).expect("nothing to do");
        create(&dir).expect("a directory");
        assert_eq!(create(&dir).expect_err("it exists").errno, Errno::EEXIST);
        assert_eq!(StoreLabel::read(&dir, "a", 1).expect_err("no label").errno, Errno::ENOENT);
        let label = StoreLabel { volume: "a".to_owned(), node: 1, capacity: [0, 5 << 20, 0] };
        label.write(&dir).expect("written");
        assert_eq!(StoreLabel::read(&dir, "a", 1).expect("a label"), label);
        for (volume, node) in [("b", 1), ("a", 2)] {
            assert_eq!(StoreLabel::read(&dir, volume, node).expect_err("another").errno, Errno::EINVAL);
            assert_eq!(remove(&dir, volume, node).expect_err("another").errno, Errno::EINVAL);
        }
        remove(&dir, "a", 1).expect("removed");
        assert!(!dir.exists());
        create(&dir).expect("a directory");
        remove(&dir, "a", 1).expect("an interrupted creation is removed");
        assert!(!dir.exists());
    }
}
