//! The expected tree of one view: a change is visible on every node from the moment its call returns.

use super::data::FileData;
use super::path::{join, parts, split};
use crate::op::{DIRS, Op};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind};

/// Identifies a file of the model.
pub type ObjectId = usize;

/// A file, directory or link.
#[derive(Clone, Debug)]
pub struct Object {
    /// Kind of file.
    pub kind: FileKind,
    /// The entries of a directory.
    pub children: BTreeMap<String, ObjectId>,
    /// Number of its names.
    pub nlink: u32,
    /// Permission bits; `None` if unknown.
    pub mode: Option<u16>,
    /// The extended attribute; `None` if unknown.
    pub xattr: Option<Option<u64>>,
    /// Target of a symbolic link; `None` if unknown.
    pub target: Option<String>,
    /// Content of the file.
    pub data: FileData,
    /// Its inode number, once a call has returned it.
    pub inode: Option<u64>,
    /// An fsync of it returned.
    pub is_synced: bool,
    /// A call with unknown effect may have removed its last name: another file may have its inode number.
    pub may_be_gone: bool,
}

/// The tree of one view.
#[derive(Clone, Debug)]
pub struct Names {
    /// By their IDs; none is ever removed.
    objects: Vec<Object>,
    /// Names with unknown state.
    unknown: BTreeSet<String>,
    /// Names whose inodes are lost permanently; no call on them can succeed.
    lost: BTreeSet<String>,
    /// Names that changed since the last sync of everything.
    pub changed: BTreeSet<String>,
}

const ROOT: ObjectId = 0;

impl Default for Names {
    /// The initial tree, with the directories in [`DIRS`].
    fn default() -> Self {
        let (unknown, lost, changed) = Default::default();
        let mut names = Self { objects: Vec::new(), unknown, lost, changed };
        names.add(FileKind::Directory);
        for dir in DIRS {
            names.insert(dir, FileKind::Directory);
        }
        names.changed.clear();
        names
    }
}

impl Names {
    fn add(&mut self, kind: FileKind) -> ObjectId {
        self.objects.push(Object {
            kind,
            children: BTreeMap::new(),
            nlink: 1,
            mode: None,
            xattr: Some(None),
            target: None,
            data: FileData::default(),
            inode: None,
            is_synced: false,
            may_be_gone: false,
        });
        self.objects.len() - 1
    }

    /// Looks up a path. Fails with `ENOENT` or `ENOTDIR`.
    pub fn find(&self, path: &str) -> Result<ObjectId, Errno> {
        let mut at = ROOT;
        for name in parts(path) {
            let object = &self.objects[at];
            if object.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR);
            }
            at = *object.children.get(name).ok_or(Errno::ENOENT)?;
        }
        Ok(at)
    }

    /// Returns a file.
    pub fn object(&self, id: ObjectId) -> &Object {
        &self.objects[id]
    }

    /// Returns a file for a change.
    pub fn object_mut(&mut self, id: ObjectId) -> &mut Object {
        &mut self.objects[id]
    }

    /// Returns all files by path, without the root.
    pub fn all(&self) -> BTreeMap<String, ObjectId> {
        let mut found = BTreeMap::new();
        let mut left = vec![(String::new(), ROOT)];
        while let Some((path, id)) = left.pop() {
            for (name, &child) in &self.objects[id].children {
                let path = join(&path, name);
                found.insert(path.clone(), child);
                left.push((path, child));
            }
        }
        found
    }

    /// Iterates over all files, including those without a name.
    pub fn objects_mut(&mut self) -> impl Iterator<Item = &mut Object> {
        self.objects.iter_mut()
    }

    /// Creates a file at a path.
    pub fn insert(&mut self, path: &str, kind: FileKind) -> ObjectId {
        let id = self.add(kind);
        self.set(path, Some(id));
        id
    }

    /// Sets or removes the entry at a path, if its directory exists.
    pub fn set(&mut self, path: &str, id: Option<ObjectId>) {
        let (dir, name) = split(path);
        if let Ok(dir) = self.find(dir) {
            let children = &mut self.object_mut(dir).children;
            match id {
                Some(id) => children.insert(name.to_owned(), id),
                None => children.remove(name),
            };
        }
        self.changed.insert(path.to_owned());
    }

    /// Returns true if the state of a path or of a directory above it is unknown or, with `below`, that of a name below it.
    pub fn is_unknown(&self, path: &str, below: bool) -> bool {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]).chain([path]);
        let inside = |known: &String| below && known.starts_with(&format!("{path}/"));
        above.into_iter().any(|part| self.unknown.contains(part)) || self.unknown.iter().any(inside)
    }

    /// Marks the state of a name as unknown.
    pub fn mark_unknown(&mut self, path: &str) {
        self.unknown.insert(path.to_owned());
        self.changed.insert(path.to_owned());
    }

    /// Marks the inode of a name as lost.
    pub fn lose(&mut self, path: &str) {
        self.lost.insert(path.to_owned());
        self.unknown.insert(path.to_owned());
    }

    /// Returns the other names of a file with a link count of 1, which a disk that lost writes can leave: they lose their inode when the
    /// name at `path` is removed.
    pub fn uncounted(&self, path: &str) -> Vec<String> {
        let Ok(id) = self.find(path) else { return Vec::new() };
        if self.object(id).nlink > 1 {
            return Vec::new();
        }
        let others = self.all().into_iter().filter(|(name, named)| *named == id && name != path);
        others.map(|(name, _)| name).collect()
    }

    /// Returns true if the inode of a name is lost.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns the names with unknown state.
    pub fn unknown(&self) -> &BTreeSet<String> {
        &self.unknown
    }

    /// Marks all states as known, except lost inodes.
    pub fn resolve(&mut self) {
        self.unknown.clone_from(&self.lost);
        self.changed.clear();
        self.objects_mut().for_each(|object| object.may_be_gone = false);
    }

    /// Applies a successful call. Returns the file that it opened or created.
    pub fn apply(&mut self, op: &Op) -> Option<ObjectId> {
        match op {
            Op::Open { path, .. } => match self.find(path) {
                Ok(id) => Some(id),
                Err(_) => Some(self.insert(path, FileKind::File)),
            },
            Op::Mkdir { path } => Some(self.insert(path, FileKind::Directory)),
            Op::Symlink { path, target } => {
                let id = self.insert(path, FileKind::Symlink);
                self.object_mut(id).target = Some(target.clone());
                Some(id)
            }
            Op::Rmdir { path } | Op::Unlink { path } => {
                self.remove(path);
                None
            }
            Op::Link { from, to } => {
                let id = self.find(from).ok()?;
                self.object_mut(id).nlink += 1;
                self.set(to, Some(id));
                None
            }
            Op::Rename { from, to, mode } => {
                let (id, target) = (self.find(from).ok()?, self.find(to).ok());
                match mode {
                    RenameMode::Exchange => {
                        self.set(from, target);
                        self.set(to, Some(id));
                    }
                    _ if target == Some(id) => {}
                    _ => {
                        if target.is_some() {
                            self.remove(to);
                        }
                        self.set(from, None);
                        self.set(to, Some(id));
                    }
                }
                None
            }
            Op::Chmod { path, mode } => {
                let id = self.find(path).ok()?;
                self.object_mut(id).mode = Some(*mode);
                None
            }
            Op::SetXattr { path, value } => {
                let id = self.find(path).ok()?;
                self.object_mut(id).xattr = Some(Some(*value));
                None
            }
            _ => None,
        }
    }

    fn remove(&mut self, path: &str) {
        if let Ok(id) = self.find(path) {
            self.uncounted(path).iter().for_each(|name| self.lose(name));
            // A disk may have lost the write that counted it.
            let object = self.object_mut(id);
            object.nlink = object.nlink.saturating_sub(1);
            self.set(path, None);
        }
    }
}
