//! What the sender knows about files of the mirror.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use tameike_core::InodeId;

/// Files that are remembered. For others, the sender compares hashes or sends the whole file.
const FILES_MAX: usize = 256 << 10;
/// Names of files with several names that are remembered.
const NAMES_MAX: usize = 64 << 10;

/// Files of which the mirror has an older state of the same file, and files with several names.
#[derive(Default)]
pub struct Known {
    files: BTreeMap<Vec<u8>, InodeId>,
    names: HashMap<InodeId, BTreeSet<Vec<u8>>>,
    names_count: usize,
    /// More files have several names than are remembered.
    has_unknown_names: bool,
}

impl Known {
    /// The mirror's file at a path has the content of this source file, except for changes that are pending.
    pub fn learn(&mut self, path: Vec<u8>, inode: InodeId) {
        if self.files.len() >= FILES_MAX {
            self.files.clear();
        }
        self.files.insert(path, inode);
    }

    /// Whether the mirror's file needs only what is pending.
    pub fn is_known(&self, path: &[u8], inode: InodeId) -> bool {
        self.files.get(path) == Some(&inode)
    }

    /// Forgets a path and everything below.
    pub fn forget(&mut self, path: &[u8]) {
        remove_below(&mut self.files, path);
    }

    /// Forgets the regular file at a path, which is gone. If the path has no directory either, forgets the files below it too.
    pub fn forget_file(&mut self, path: &[u8], is_dir: bool) {
        if is_dir {
            self.files.remove(path);
        } else {
            self.forget(path);
        }
    }

    /// Notes a name of a file with several names, and returns the others.
    pub fn note_name(&mut self, path: &[u8], inode: InodeId) -> Vec<Vec<u8>> {
        if self.names_count >= NAMES_MAX && !self.names.contains_key(&inode) {
            self.has_unknown_names = true;
            return Vec::new();
        }
        let names = self.names.entry(inode).or_default();
        if names.insert(path.to_vec()) {
            self.names_count += 1;
        }
        names.iter().filter(|name| *name != path).cloned().collect()
    }

    /// Whether more files have several names than are remembered. Later, whether that has happened again.
    pub fn take_unknown_names(&mut self) -> bool {
        std::mem::take(&mut self.has_unknown_names)
    }

    /// Forgets a name that a file does not have any more.
    pub fn forget_name(&mut self, path: &[u8], inode: InodeId) {
        if self.names.get_mut(&inode).is_some_and(|names| names.remove(path)) {
            self.names_count -= 1;
        }
    }
}

/// Removes a path and everything below from a sorted map.
pub fn remove_below<T>(map: &mut BTreeMap<Vec<u8>, T>, path: &[u8]) {
    map.remove(path);
    let (begin, end) = ([path, b"/"].concat(), [path, b"0"].concat());
    let below: Vec<_> = map.range(begin..end).map(|(path, _)| path.clone()).collect();
    below.iter().for_each(|path| drop(map.remove(path)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_directory_is_forgotten_with_everything_below() {
        let mut known = Known::default();
        for path in ["a", "a/b", "a/b/c", "a0", "a-b"] {
            known.learn(path.into(), InodeId(1));
        }
        known.forget(b"a");
        let left: Vec<_> =
            known.files.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        assert_eq!(left, ["a-b", "a0"]);
    }

    #[test]
    fn other_names_of_a_file_are_returned() {
        let mut known = Known::default();
        assert_eq!(known.note_name(b"a", InodeId(1)), Vec::<Vec<u8>>::new());
        assert_eq!(known.note_name(b"b", InodeId(1)), [b"a".to_vec()]);
        assert_eq!(known.note_name(b"b", InodeId(2)), Vec::<Vec<u8>>::new());
        known.forget_name(b"a", InodeId(1));
        assert_eq!(known.note_name(b"c", InodeId(1)), [b"b".to_vec()]);
    }
}
