//! The tree of one view as it must be: every change is so everywhere from the moment its call returns.

use super::data::{FileData, Moment};
use super::path::{join, parts, split};
use crate::op::{DIRS, Op};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind};

/// A file of the model.
pub type ObjectId = u64;

/// A file, directory or link.
#[derive(Clone, Debug)]
pub struct Object {
    /// Kind of file.
    pub kind: FileKind,
    /// Names in a directory.
    pub children: BTreeMap<String, ObjectId>,
    /// Names of it.
    pub nlink: u32,
    /// Permission bits, if they are known.
    pub mode: Option<u16>,
    /// The extended attribute; `None` in doubt.
    pub xattr: Option<Option<u64>>,
    /// Target of a link, if it is known.
    pub target: Option<String>,
    /// Bytes.
    pub data: FileData,
    /// Its number in the view, once somebody has seen it.
    pub inode: Option<u64>,
    /// When it was made.
    pub born: Moment,
    /// An fsync of it has returned.
    pub is_synced: bool,
    /// A call of which nobody knows what it did may have taken its last name: another file may have its number.
    pub may_be_gone: bool,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct Names {
    objects: BTreeMap<ObjectId, Object>,
    next: ObjectId,
    /// Names of which nobody knows what became.
    doubtful: BTreeSet<String>,
    /// Names whose inodes are gone for good: nothing is known of them, and nothing can be done to them.
    lost: BTreeSet<String>,
    /// Names that changed since everything was last made safe.
    pub changed: BTreeSet<String>,
}

const ROOT: ObjectId = 0;

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

impl Names {
    /// The tree at the start: the directories that are there from then on.
    pub fn new() -> Self {
        let mut names = Self {
            objects: BTreeMap::new(),
            next: 0,
            doubtful: BTreeSet::new(),
            lost: BTreeSet::new(),
            changed: BTreeSet::new(),
        };
        names.add(FileKind::Directory, 0);
        for dir in DIRS {
            names.insert(dir, FileKind::Directory, 0);
        }
        names.changed.clear();
        names
    }

    fn add(&mut self, kind: FileKind, born: Moment) -> ObjectId {
        let id = self.next;
        self.next += 1;
        let object = Object {
            kind,
            children: BTreeMap::new(),
            nlink: 1,
            mode: None,
            xattr: Some(None),
            target: None,
            data: FileData::default(),
            inode: None,
            born,
            is_synced: false,
            may_be_gone: false,
        };
        self.objects.insert(id, object);
        id
    }

    /// The file at a path.
    ///
    /// # Errors
    /// `ENOENT` or `ENOTDIR`.
    pub fn find(&self, path: &str) -> Result<ObjectId, Errno> {
        let mut at = ROOT;
        for name in parts(path) {
            let object = &self.objects[&at];
            if object.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR);
            }
            at = *object.children.get(name).ok_or(Errno::ENOENT)?;
        }
        Ok(at)
    }

    /// A file.
    pub fn object(&self, id: ObjectId) -> &Object {
        &self.objects[&id]
    }

    /// A file, to change it.
    pub fn object_mut(&mut self, id: ObjectId) -> &mut Object {
        self.objects.get_mut(&id).expect("objects are never taken away")
    }

    /// All files with names, by path; the root is not among them.
    pub fn all(&self) -> BTreeMap<String, ObjectId> {
        let mut found = BTreeMap::new();
        let mut left = vec![(String::new(), ROOT)];
        while let Some((path, id)) = left.pop() {
            for (name, &child) in &self.objects[&id].children {
                let path = join(&path, name);
                found.insert(path.clone(), child);
                left.push((path, child));
            }
        }
        found
    }

    /// Every file, with a name or without.
    pub fn objects_mut(&mut self) -> impl Iterator<Item = &mut Object> {
        self.objects.values_mut()
    }

    /// Puts a new file at a path.
    pub fn insert(&mut self, path: &str, kind: FileKind, born: Moment) -> ObjectId {
        let id = self.add(kind, born);
        self.set(path, Some(id));
        id
    }

    /// Puts a file, or none, at a path whose directory is there.
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

    /// Whether nobody knows what is at a path, or above it, or (`below`) below it.
    pub fn is_doubtful(&self, path: &str, below: bool) -> bool {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]).chain([path]);
        let inside = |known: &String| below && known.starts_with(&format!("{path}/"));
        above.into_iter().any(|part| self.doubtful.contains(part)) || self.doubtful.iter().any(inside)
    }

    /// Nobody knows what became of a name.
    pub fn doubt(&mut self, path: &str) {
        self.doubtful.insert(path.to_owned());
        self.changed.insert(path.to_owned());
    }

    /// A name is all that is left of what was there.
    pub fn lose(&mut self, path: &str) {
        self.lost.insert(path.to_owned());
        self.doubtful.insert(path.to_owned());
    }

    /// The other names of a file that goes with the one at a path: it counts no more, since a disk has forgotten some.
    pub fn uncounted(&self, path: &str) -> Vec<String> {
        let Ok(id) = self.find(path) else { return Vec::new() };
        if self.object(id).nlink > 1 {
            return Vec::new();
        }
        let others = self.all().into_iter().filter(|(name, named)| *named == id && name != path);
        others.map(|(name, _)| name).collect()
    }

    /// Whether there are such names.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Names in doubt.
    pub fn doubtful(&self) -> &BTreeSet<String> {
        &self.doubtful
    }

    /// Everything is known again.
    pub fn resolve(&mut self) {
        self.doubtful.clone_from(&self.lost);
        self.changed.clear();
        self.objects_mut().for_each(|object| object.may_be_gone = false);
    }

    /// A call has succeeded; the file that an open made, found, or nothing.
    pub fn apply(&mut self, op: &Op, moment: Moment) -> Option<ObjectId> {
        match op {
            Op::Open { path, .. } => match self.find(path) {
                Ok(id) => Some(id),
                Err(_) => Some(self.insert(path, FileKind::File, moment)),
            },
            Op::Mkdir { path } => Some(self.insert(path, FileKind::Directory, moment)),
            Op::Symlink { path, target } => {
                let id = self.insert(path, FileKind::Symlink, moment);
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
            // What a disk has forgotten may have counted it.
            let object = self.object_mut(id);
            object.nlink = object.nlink.saturating_sub(1);
            self.set(path, None);
        }
    }
}
