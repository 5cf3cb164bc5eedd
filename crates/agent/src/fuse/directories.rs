//! The last attributes of directories that the kernel received.
//!
//! A process may have a removed directory open, or as its working directory. The home no longer has the directory, but the process may
//! still stat it, like any unlinked file.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_client::vfs::FileNumber;
use tameike_core::attr::AttrChange;
use tameike_core::{Attr, Errno, FileKind, Result};

const HALF: usize = 2048;

/// Attributes of the directories that the kernel requested last.
#[derive(Default)]
pub(super) struct Directories(Mutex<Halves>);

/// When the newer half is full, it replaces the older one.
#[derive(Default)]
struct Halves {
    newer: BTreeMap<FileNumber, Attr>,
    older: BTreeMap<FileNumber, Attr>,
}

impl Directories {
    pub(super) fn record(&self, file: FileNumber, attr: &Attr) {
        if attr.kind != FileKind::Directory {
            return;
        }
        let mut halves = self.0.lock();
        if halves.newer.len() >= HALF {
            halves.older = std::mem::take(&mut halves.newer);
        }
        halves.newer.insert(file, attr.clone());
    }

    /// Returns `attr`. If it reports that the file is gone (`ESTALE`, `ENOENT`), returns the last attributes of the directory, with a
    /// link count of 0 and with `change` applied.
    pub(super) fn or_removed(
        &self,
        file: FileNumber,
        attr: Result<Attr>,
        change: &AttrChange,
    ) -> Result<Attr> {
        match attr {
            Ok(attr) => {
                self.record(file, &attr);
                Ok(attr)
            }
            Err(fault) if is_gone(fault.errno) => {
                let Some(mut attr) = self.find(file) else { return Err(fault) };
                attr.nlink = 0;
                attr.mode = change.mode.unwrap_or(attr.mode);
                attr.uid = change.uid.unwrap_or(attr.uid);
                attr.gid = change.gid.unwrap_or(attr.gid);
                self.record(file, &attr);
                Ok(attr)
            }
            failed => failed,
        }
    }

    /// Returns whether an operation failed because the directory was removed, so that it needs no fsync.
    pub(super) fn is_removed(&self, file: FileNumber, done: &Result<()>) -> bool {
        done.as_ref().is_err_and(|fault| is_gone(fault.errno)) && self.find(file).is_some()
    }

    fn find(&self, file: FileNumber) -> Option<Attr> {
        let halves = self.0.lock();
        halves.newer.get(&file).or_else(|| halves.older.get(&file)).cloned()
    }
}

fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ESTALE | Errno::ENOENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::recent_lookups::tests::attr;

    #[test]
    fn removed_directories_keep_their_attributes_and_files_do_not() {
        let directories = Directories::default();
        let none = AttrChange::default();
        let gone = || Err(Errno::ESTALE.into());
        directories.record(FileNumber(1), &attr(1, FileKind::Directory));
        directories.record(FileNumber(2), &attr(2, FileKind::File));
        let change = AttrChange { mode: Some(0o700), ..AttrChange::default() };
        directories.or_removed(FileNumber(1), gone(), &change).expect("it was there");
        let removed = directories.or_removed(FileNumber(1), gone(), &none).expect("it was there");
        assert_eq!((removed.nlink, removed.mode, removed.uid), (0, 0o700, 3));
        assert!(directories.is_removed(FileNumber(1), &Err(Errno::ESTALE.into())));
        assert!(!directories.is_removed(FileNumber(1), &Err(Errno::EIO.into())));
        assert_eq!(
            directories.or_removed(FileNumber(2), gone(), &none).map_err(|fault| fault.errno),
            Err(Errno::ESTALE)
        );
    }

    #[test]
    fn the_number_of_directories_is_bounded() {
        let directories = Directories::default();
        for number in 0..3 * HALF as u64 {
            directories.record(FileNumber(number), &attr(number, FileKind::Directory));
        }
        assert!(directories.find(FileNumber(0)).is_none());
        assert!(directories.find(FileNumber(3 * HALF as u64 - 1)).is_some());
    }
}
