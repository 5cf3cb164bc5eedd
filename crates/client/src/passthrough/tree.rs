//! Maps the frontend's file numbers to paths.
//!
//! The kernel opens a file by its number alone, some time after the lookup. A file system may reuse the inode number of a removed file at
//! once. So a number of the frontend stands for one file only, as long as the kernel holds it; a new file with a number in use gets another
//! one.

use super::identity::Identity;
use crate::types::FileNumber;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_core::limits::TREE_PATH_SIZE_MAX;
use tameike_core::{FileKind, InodeId};
use tameike_io::shared::{FileStat, split};

type Name = (FileNumber, Vec<u8>);

/// Bits in which a number of the frontend differs from an inode number that is in use: those that file systems use last.
const TAKEN_SHIFT: u32 = 48;

struct Node {
    /// Identity of the file.
    seen: Seen,
    /// Names by which the file was last known, the latest last; several for hard links. A directory that another node has moved to an
    /// unknown directory is named by its whole path, in the root.
    names: Vec<Name>,
    /// Lookups by the frontend. A directory without lookups stays as long as an entry needs it for its path: the ring forgets the parent
    /// directories of the files that it opens, and may pass these files to a kernel that has never looked the directories up.
    lookups: u64,
    /// True after writes that the kernel's pages may lack. The kernel has no pages of files that the frontend does not hold.
    stale_pages: bool,
}

/// Number of names that a file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// One: the file is a directory.
    Directory,
    /// One, by the link count.
    One,
    /// More than the one that was found.
    Several,
}

/// A file as the last `stat` returned it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Identity of the file.
    pub file: Identity,
    /// Number of its names.
    pub links: Links,
}

impl Seen {
    pub(super) fn of(stat: &FileStat) -> Self {
        let links = match stat.kind {
            FileKind::Directory => Links::Directory,
            _ if stat.nlink == 1 => Links::One,
            _ => Links::Several,
        };
        Self { file: Identity::of(stat), links }
    }
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<FileNumber, Node>,
    children: BTreeMap<Name, FileNumber>,
    /// Number of the file that was last seen with an inode number.
    numbers: BTreeMap<InodeId, FileNumber>,
}

/// The part of a tree that the frontend holds.
#[derive(Default)]
pub(crate) struct Tree(Mutex<State>);

impl Tree {
    /// Records that a name resolves to `seen`, counts a lookup, and returns the number of the file. If this is the file's only name,
    /// earlier names are dropped: another node has moved the file.
    pub(super) fn found(&self, dir: FileNumber, name: &[u8], seen: Seen) -> FileNumber {
        self.0.lock().found((dir, name.to_vec()), seen)
    }

    /// As [`Self::found`], for a file that was just created: the previous file with its inode number is gone.
    pub(super) fn made(&self, dir: FileNumber, name: &[u8], seen: Seen) -> FileNumber {
        let mut state = self.0.lock();
        state.numbers.remove(&seen.file.inode);
        state.found((dir, name.to_vec()), seen)
    }

    pub(super) fn is(&self, file: FileNumber, seen: &Seen) -> bool {
        self.0.lock().nodes.get(&file).is_some_and(|node| node.seen.file.is(&seen.file))
    }

    pub(super) fn identity(&self, file: FileNumber) -> Option<Identity> {
        self.0.lock().nodes.get(&file).map(|node| node.seen.file)
    }

    /// Returns the number of a file, if the frontend holds it.
    pub(crate) fn number_of(&self, file: &Identity) -> Option<FileNumber> {
        let state = self.0.lock();
        let number = *state.numbers.get(&file.inode)?;
        state.nodes.get(&number).is_some_and(|node| node.seen.file.is(file)).then_some(number)
    }

    pub(super) fn number(&self, inode: InodeId) -> Option<FileNumber> {
        self.0.lock().numbers.get(&inode).copied()
    }

    /// Sets whether the kernel's pages of a file may be stale, and returns the previous value.
    pub(crate) fn mark_pages(&self, inode: InodeId, stale: bool) -> bool {
        let mut state = self.0.lock();
        let number = state.numbers.get(&inode).copied();
        let node = number.and_then(|number| state.nodes.get_mut(&number));
        node.is_some_and(|node| std::mem::replace(&mut node.stale_pages, stale))
    }

    pub(crate) fn has_stale_pages(&self, inode: InodeId) -> bool {
        let state = self.0.lock();
        let number = state.numbers.get(&inode);
        number.and_then(|number| state.nodes.get(number)).is_some_and(|node| node.stale_pages)
    }

    /// Records that an empty directory was removed.
    pub(super) fn removed(&self, dir: FileNumber, name: &[u8]) {
        let mut state = self.0.lock();
        let name = (dir, name.to_vec());
        let removed = state.children.get(&name).copied();
        state.free_number(removed);
        state.set(name, None);
    }

    /// Drops a path that [`Self::path`] returned, after another node has removed or moved the name. Returns true if the file is known by
    /// another name.
    pub(super) fn not_at(&self, file: FileNumber, path: &[u8]) -> bool {
        let mut state = self.0.lock();
        if state.path(file, None).as_deref() == Some(path)
            && let Some(name) = state.nodes.get(&file).and_then(|node| node.names.last()).cloned()
        {
            state.set(name, None);
        }
        state.nodes.get(&file).is_some_and(|node| !node.names.is_empty())
    }

    pub(super) fn lost(&self, dir: FileNumber, name: &[u8]) {
        self.0.lock().set((dir, name.to_vec()), None);
    }

    /// Renames an entry, or exchanges two with `exchange`.
    pub(super) fn renamed(&self, from: (FileNumber, &[u8]), to: (FileNumber, &[u8]), exchange: bool) {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let mut state = self.0.lock();
        let (moved, replaced) = (state.children.get(&from).copied(), state.children.get(&to).copied());
        if moved == replaced && !exchange {
            // POSIX: a rename between two hard links of one file keeps both.
            return;
        }
        if !exchange {
            state.free_number(replaced);
        }
        // The insertion comes first: the parent directory may stay for this name alone.
        state.set(to, moved);
        state.set(from, if exchange { replaced } else { None });
    }

    /// Records that another node has renamed a directory. The new path is stored even if its parent directories are unknown here.
    pub(super) fn moved(&self, dir: FileNumber, from: &[u8], to: &[u8]) {
        let mut state = self.0.lock();
        state.rebase(&[(from, to)]);
        let Some(former) = state.nodes.get(&dir).map(|node| node.names.clone()) else { return };
        former.into_iter().for_each(|name| state.set(name, None));
        let name = state.name_of(to);
        state.set(name, Some(dir));
        if state.path(dir, None).as_deref() != Some(to) {
            // The former parent was moved, too.
            state.set((FileNumber::ROOT, to.to_vec()), Some(dir));
        }
    }

    /// Updates directories that are known by their whole path after a rename of a parent.
    pub(super) fn rebase(&self, renamed: &[(&[u8], &[u8])]) {
        self.0.lock().rebase(renamed);
    }

    /// Counts another lookup of a file. Returns true if the frontend holds the file.
    pub(super) fn hold(&self, file: FileNumber) -> bool {
        let mut state = self.0.lock();
        let node = state.nodes.get_mut(&file);
        node.map(|node| node.lookups += 1).is_some()
    }

    /// Drops lookups. Returns true if the frontend no longer holds the file.
    pub(crate) fn forget(&self, file: FileNumber, count: u64) -> bool {
        let mut state = self.0.lock();
        let Some(node) = state.nodes.get_mut(&file) else { return true };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return false;
        }
        state.drop_unused(file);
        true
    }

    /// A path of the file, or `None` if it has lost all names.
    pub(super) fn path(&self, file: FileNumber) -> Option<Vec<u8>> {
        self.0.lock().path(file, None)
    }

    /// Returns a path of the file by another name than this one.
    pub(crate) fn other_path(&self, file: FileNumber, dir: FileNumber, name: &[u8]) -> Option<Vec<u8>> {
        self.0.lock().path(file, Some(&(dir, name.to_vec())))
    }
}

impl State {
    fn found(&mut self, name: Name, seen: Seen) -> FileNumber {
        let file = self.number_of(seen);
        // The new name is added first: the directory may stay for its former name alone.
        self.set(name.clone(), Some(file));
        if seen.links != Links::Several {
            let former = self.nodes.get(&file).map(|node| node.names.clone()).unwrap_or_default();
            former.into_iter().filter(|former| *former != name).for_each(|former| self.set(former, None));
        }
        if let Some(node) = self.nodes.get_mut(&file) {
            node.lookups += 1;
        }
        file
    }

    /// The number of a file, allocated if the file is unknown.
    fn number_of(&mut self, seen: Seen) -> FileNumber {
        let inode = seen.file.inode;
        if let Some(&file) = self.numbers.get(&inode)
            && let Some(node) = self.nodes.get_mut(&file).filter(|node| node.seen.file.is(&seen.file))
        {
            let handle_hash =
                if seen.file.handle_hash == 0 { node.seen.file.handle_hash } else { seen.file.handle_hash };
            node.seen = Seen { file: Identity { inode, handle_hash }, ..seen };
            return file;
        }
        let mut file = FileNumber(inode.0);
        let mut taken = 0_u64;
        while self.nodes.contains_key(&file) {
            taken += 1;
            file = FileNumber(inode.0 ^ (taken << TAKEN_SHIFT));
        }
        self.nodes.insert(file, Node { seen, names: Vec::new(), lookups: 0, stale_pages: false });
        self.numbers.insert(inode, file);
        file
    }

    /// Records that this node has removed a directory: the next object with its inode number is another file.
    fn free_number(&mut self, file: Option<FileNumber>) {
        let Some(file) = file else { return };
        let Some(Seen { file: Identity { inode, .. }, links: Links::Directory }) =
            self.nodes.get(&file).map(|node| node.seen)
        else {
            return;
        };
        if self.numbers.get(&inode) == Some(&file) {
            self.numbers.remove(&inode);
        }
    }

    /// Resolves a path to a name in its parent directory if that is known, else to the whole path in the root.
    fn name_of(&self, path: &[u8]) -> Name {
        let (above, name) = split(path).unwrap_or_default();
        let mut dir = Some(FileNumber::ROOT);
        for part in above.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            dir = dir.and_then(|dir| self.children.get(&(dir, part.to_vec())).copied());
        }
        dir.map_or((FileNumber::ROOT, path.to_vec()), |dir| (dir, name.to_vec()))
    }

    fn rebase(&mut self, renamed: &[(&[u8], &[u8])]) {
        let mut changes = Vec::new();
        for (from, to) in renamed {
            let first = (FileNumber::ROOT, [from, &b"/"[..]].concat());
            let below = self.children.range(first.clone()..);
            let below = below.take_while(|((dir, path), _)| *dir == first.0 && path.starts_with(&first.1));
            changes.extend(below.map(|(name, &file)| {
                let path = [to, &name.1[from.len()..]].concat();
                (name.clone(), (FileNumber::ROOT, path), file)
            }));
        }
        changes.iter().for_each(|(old, ..)| self.set(old.clone(), None));
        changes.into_iter().for_each(|(_, new, file)| self.set(new, Some(file)));
    }

    fn path(&self, file: FileNumber, without: Option<&Name>) -> Option<Vec<u8>> {
        let (mut names, mut at, mut size) = (Vec::new(), file, 0);
        while at != FileNumber::ROOT {
            let mut known = self.nodes.get(&at)?.names.iter().rev();
            let (dir, name) = known.find(|&name| Some(name) != without)?;
            size += name.len() + 1;
            if size > TREE_PATH_SIZE_MAX {
                return None;
            }
            names.push(name.as_slice());
            at = *dir;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    fn set(&mut self, name: Name, file: Option<FileNumber>) {
        let old = match file {
            Some(file) => self.children.insert(name.clone(), file),
            None => self.children.remove(&name),
        };
        if let Some(node) = old.and_then(|old| self.nodes.get_mut(&old)) {
            node.names.retain(|known| *known != name);
        }
        match file {
            Some(file) => {
                if let Some(node) = self.nodes.get_mut(&file) {
                    node.names.push(name);
                }
            }
            None => self.drop_unused(name.0),
        }
    }

    /// Drops a file without lookups or held descendants, and the parent directories that stayed for it alone.
    fn drop_unused(&mut self, file: FileNumber) {
        let mut next = vec![file];
        while let Some(file) = next.pop() {
            let Some(node) = self.nodes.get(&file) else { continue };
            let below = self.children.range((file, Vec::new())..).next();
            let is_on_the_way = !node.names.is_empty() && below.is_some_and(|((dir, _), _)| *dir == file);
            if node.lookups > 0 || is_on_the_way {
                continue;
            }
            let Some(Node { seen, names, .. }) = self.nodes.remove(&file) else { continue };
            for name in names {
                self.children.remove(&name);
                next.push(name.0);
            }
            if self.numbers.get(&seen.file.inode) == Some(&file) {
                self.numbers.remove(&seen.file.inode);
            }
        }
    }
}
