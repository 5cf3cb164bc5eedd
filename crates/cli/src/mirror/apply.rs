//! Executes orders on the tree of a mirror.
//!
//! Every path is resolved below the root without following symbolic links. A new file gets its content in [`INCOMING`], and then its name
//! and attributes, so that programs see it complete. Ranges of an existing file are written in place, and its mtime is set last: after an
//! interruption a comparison finds the file.

use super::protocol::{Attributes, INCOMING, MARK, check_path, staged_name};
use super::source::{self, user_xattrs};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Fault, FaultKind, FileKind, Result};
use tameike_io::shared::{
    Access, Allocate, PosixTree, SharedFile, SharedFs, Special, XattrMode, join, split,
};

/// Files that are synced at a time.
const SYNCED_AT_ONCE: usize = 16;
/// Zeros that are written at a time where holes are not supported.
const ZEROS: usize = 64 << 10;

/// The tree of a mirror, and what of it is not durable.
pub struct Applied {
    tree: PosixTree,
    /// The file that was written last, and its path below the root.
    open: Option<(Vec<u8>, Arc<dyn SharedFile>)>,
    has_incoming: bool,
    /// Regular files that have changed since the last commit, and directories, which may be gone.
    files: BTreeSet<Vec<u8>>,
    dirs: BTreeSet<Vec<u8>>,
    /// Paths of which an order has failed since the last commit. Later orders on them are ignored.
    faults: BTreeMap<Vec<u8>, Fault>,
}

fn missing_is_done(done: Result<()>) -> Result<()> {
    match done {
        Err(fault) if fault.kind() == FaultKind::Missing => Ok(()),
        done => done,
    }
}

fn parent(path: &[u8]) -> &[u8] {
    split(path).map_or(b"", |(dir, _)| dir)
}

fn mode(mode: u16) -> AttrChange {
    AttrChange { mode: Some(mode), ..AttrChange::default() }
}

/// The path of the staged file for a path.
fn staged(path: &[u8]) -> Vec<u8> {
    join(INCOMING, &staged_name(path))
}

impl Applied {
    pub fn new(tree: PosixTree) -> Self {
        let (open, has_incoming, files, dirs, faults) = Default::default();
        Self { tree, open, has_incoming, files, dirs, faults }
    }

    pub fn tree(&self) -> &dyn SharedFs {
        &self.tree
    }

    /// Whether the directory may become equal to another one: it is marked, or it is empty and is marked now.
    pub fn is_mirror(&self, makes_mirror: bool) -> Result<bool> {
        if self.tree.xattr(b"", MARK).is_ok() {
            return Ok(true);
        }
        let is_wanted = makes_mirror || source::list(&self.tree, b"")?.is_empty();
        // Without extended attributes, later jobs do not remove names.
        Ok(is_wanted && (self.tree.set_xattr(b"", MARK, b"1", XattrMode::Any).is_ok() || makes_mirror))
    }

    /// Names of the staged files.
    pub fn staged(&mut self) -> Vec<Vec<u8>> {
        let items = source::list(&self.tree, INCOMING).unwrap_or_default();
        self.has_incoming = self.tree.stat(INCOMING).is_ok();
        items.into_iter().map(|(item, _)| item.name).collect()
    }

    /// Executes an order on a path, if it is valid. A fault is kept for the next commit.
    ///
    /// # Errors
    /// The path is invalid.
    pub fn execute(
        &mut self,
        path: &[u8],
        may_be_root: bool,
        order: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        check_path(path, may_be_root)?;
        if !self.faults.contains_key(path)
            && let Err(fault) = order(self)
        {
            self.open = None;
            self.faults.insert(path.to_vec(), fault);
        }
        Ok(())
    }

    /// Changes names in a directory. If its permissions forbid that to its owner, they are changed; the sender sets them again.
    fn in_dir<T>(&self, dir: &[u8], act: impl Fn() -> Result<T>) -> Result<T> {
        match act() {
            Err(fault) if fault.kind() == FaultKind::Denied => {
                let stat = self.tree.stat(dir)?;
                if stat.mode & 0o700 == 0o700 || self.tree.change(dir, &mode(stat.mode | 0o700)).is_err() {
                    return Err(fault);
                }
                act()
            }
            done => done,
        }
    }

    /// Notes that names in a directory have changed.
    fn touch(&mut self, path: &[u8]) {
        self.dirs.insert(parent(path).to_vec());
    }

    /// Makes a directory, symbolic link or special file, or changes its attributes.
    pub fn make(&mut self, path: &[u8], attributes: &Attributes, target: &[u8]) -> Result<()> {
        let special = match attributes.kind {
            FileKind::Directory => Special::Directory(0o700),
            FileKind::Symlink => Special::Symlink(target.to_vec()),
            kind => Special::Node { kind, mode: attributes.mode, rdev: attributes.rdev },
        };
        let is_there = self.tree.stat(path).is_ok_and(|stat| {
            stat.kind == attributes.kind
                && match stat.kind {
                    FileKind::Symlink => self.tree.read_link(path).is_ok_and(|there| there == target),
                    FileKind::Directory => true,
                    _ => stat.rdev == attributes.rdev,
                }
        });
        if !is_there {
            self.remove(path)?;
            self.in_dir(parent(path), || self.tree.make(path, &special))?;
            self.touch(path);
        }
        self.change(path, attributes)
    }

    /// Returns the file to write to, which stays open until another one is written.
    fn writable(&mut self, path: &[u8], is_staged: bool) -> Result<Arc<dyn SharedFile>> {
        let place = if is_staged { staged(path) } else { path.to_vec() };
        if let Some((open, file)) = &self.open
            && *open == place
        {
            return Ok(file.clone());
        }
        let file = self.tree.open(&place, Access::Write)?;
        self.open = Some((place, file.clone()));
        Ok(file)
    }

    /// Opens a staged file, which may be one of an earlier connection.
    pub fn stage(&mut self, path: &[u8], size: u64) -> Result<()> {
        if !self.has_incoming {
            self.keep_root_time(|it| {
                match it.in_dir(b"", || it.tree.make(INCOMING, &Special::Directory(0o700))) {
                    Err(fault) if fault.errno != Errno::EEXIST => Err(fault),
                    _ => Ok(()),
                }
            })?;
            self.has_incoming = true;
        }
        let place = staged(path);
        let file = match self.tree.create(&place, 0o600) {
            Err(fault) if fault.errno == Errno::EEXIST => self.tree.open(&place, Access::Write)?,
            created => created?,
        };
        if file.stat()?.size != size {
            file.truncate(size)?;
        }
        self.open = Some((place, file));
        Ok(())
    }

    /// Adds or removes [`INCOMING`] without a trace in the attributes of the root.
    fn keep_root_time(&self, act: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let before = self.tree.stat(b"")?;
        act(self)?;
        if self.tree.stat(b"")?.mode != before.mode {
            self.tree.change(b"", &mode(before.mode))?;
        }
        let mtime = Some(SetTime::To(before.mtime));
        self.tree.change(b"", &AttrChange { mtime, ..AttrChange::default() })
    }

    pub fn write(&mut self, path: &[u8], is_staged: bool, offset: u64, data: &[u8]) -> Result<()> {
        self.note_file(path, is_staged);
        self.writable(path, is_staged)?.write_at(data, offset)
    }

    pub fn clear(&mut self, path: &[u8], is_staged: bool, offset: u64, length: u64) -> Result<()> {
        self.note_file(path, is_staged);
        let file = self.writable(path, is_staged)?;
        let end = offset.saturating_add(length).min(file.stat()?.size);
        if offset >= end || file.allocate(Allocate::Punch, offset, end - offset).is_ok() {
            return Ok(());
        }
        let zeros = vec![0; ZEROS];
        let mut at = offset;
        while at < end {
            let count = (end - at).min(ZEROS as u64);
            file.write_at(&zeros[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    fn note_file(&mut self, path: &[u8], is_staged: bool) {
        if !is_staged {
            self.files.insert(path.to_vec());
        }
    }

    /// Gives a staged file its attributes and its name.
    pub fn publish(&mut self, path: &[u8], attributes: &Attributes) -> Result<()> {
        self.open = None;
        let place = staged(path);
        let file = self.tree.open(&place, Access::Write)?;
        file.truncate(attributes.size)?;
        drop(file);
        self.set_attributes(&place, attributes)?;
        if self.tree.stat(path).is_ok_and(|stat| stat.kind == FileKind::Directory) {
            self.remove(path)?;
        }
        self.in_dir(parent(path), || self.tree.rename(&place, path, RenameMode::Replace))?;
        self.files.insert(path.to_vec());
        self.touch(path);
        Ok(())
    }

    /// Sets size and attributes of a regular file that was changed in place.
    pub fn finish(&mut self, path: &[u8], attributes: &Attributes) -> Result<()> {
        self.note_file(path, false);
        let file = self.writable(path, false)?;
        if file.stat()?.size != attributes.size {
            file.truncate(attributes.size)?;
        }
        self.open = None;
        self.set_attributes(path, attributes)
    }

    /// Sets the attributes of a file that is there.
    pub fn change(&mut self, path: &[u8], attributes: &Attributes) -> Result<()> {
        if attributes.kind == FileKind::Directory {
            self.dirs.insert(path.to_vec());
        } else if attributes.kind == FileKind::File {
            self.note_file(path, false);
        }
        self.set_attributes(path, attributes)
    }

    fn set_attributes(&self, path: &[u8], wanted: &Attributes) -> Result<()> {
        let stat = self.tree.stat(path)?;
        if stat.kind != wanted.kind {
            return Err(Fault::new(Errno::ESTALE, "a file of another kind has the path"));
        }
        if (stat.uid, stat.gid) != (wanted.uid, wanted.gid) {
            let group = AttrChange { gid: Some(wanted.gid), ..AttrChange::default() };
            let owner = AttrChange { uid: Some(wanted.uid), ..group.clone() };
            // Only root may give files away, and other users may only set their own groups.
            let _ = self.tree.change(path, &owner).or_else(|_| self.tree.change(path, &group));
        }
        self.set_xattrs(path, wanted)?;
        if wanted.kind != FileKind::Symlink && self.tree.stat(path)?.mode != wanted.mode {
            self.tree.change(path, &mode(wanted.mode))?;
        }
        let mtime = Some(SetTime::To(wanted.mtime));
        self.tree.change(path, &AttrChange { mtime, ..AttrChange::default() })
    }

    fn set_xattrs(&self, path: &[u8], wanted: &Attributes) -> Result<()> {
        let has = user_xattrs(&self.tree, path, wanted.kind)?;
        if has == wanted.xattrs {
            return Ok(());
        }
        // A user may not set attributes of a read-only file. The mode is set afterwards.
        let stat = self.tree.stat(path)?;
        if stat.mode & 0o200 == 0 {
            self.tree.change(path, &mode(stat.mode | 0o200))?;
        }
        let surplus = has.iter().filter(|(name, _)| !wanted.xattrs.iter().any(|(other, _)| other == name));
        for (name, _) in surplus {
            self.tree.remove_xattr(path, name)?;
        }
        for (name, value) in wanted.xattrs.iter().filter(|pair| !has.contains(pair)) {
            match self.tree.set_xattr(path, name, value, XattrMode::Any) {
                // As far as the file system supports them.
                Err(fault) if matches!(fault.errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => return Ok(()),
                set => set?,
            }
        }
        Ok(())
    }

    /// Removes a file, and everything below a directory.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        self.open = None;
        let mut stack = vec![(path.to_vec(), false)];
        while let Some((path, is_empty)) = stack.pop() {
            let dir = parent(&path).to_vec();
            let kind = match self.tree.stat(&path) {
                Err(fault) if fault.kind() == FaultKind::Missing => continue,
                stat => stat?.kind,
            };
            if kind != FileKind::Directory {
                missing_is_done(self.in_dir(&dir, || self.tree.unlink(&path)))?;
            } else if is_empty {
                missing_is_done(self.in_dir(&dir, || self.tree.rmdir(&path)))?;
            } else {
                let items = self.in_dir(&path, || source::list(&self.tree, &path))?;
                stack.push((path.clone(), true));
                stack.extend(items.into_iter().map(|(item, _)| (join(&path, &item.name), false)));
            }
        }
        self.touch(path);
        Ok(())
    }

    /// Renames a file if it is there and the new name is free. The sender compares afterwards.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        check_path(from, false)?;
        self.open = None;
        if self.tree.stat(from).is_err() {
            return Ok(());
        }
        self.remove(to)?;
        let rename = || self.tree.rename(from, to, RenameMode::NoReplace);
        // Without the rename, the sender sends the files again.
        if self.in_dir(parent(from), || self.in_dir(parent(to), rename)).is_ok() {
            self.touch(from);
            self.touch(to);
        }
        Ok(())
    }

    /// Hashes blocks of a file; no hashes if it is missing.
    pub fn hashes(&self, path: &[u8], is_staged: bool, first: u64, count: u32) -> Result<Vec<u8>> {
        let place = if is_staged { staged(path) } else { path.to_vec() };
        match self.tree.open(&place, Access::Read) {
            Ok(file) => source::hash_blocks(&*file, first, count),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Makes changes durable, and returns the faults since the last commit.
    pub fn commit(&mut self) -> Vec<(Vec<u8>, Fault)> {
        self.open = None;
        let files = std::mem::take(&mut self.files);
        let dirs = std::mem::take(&mut self.dirs);
        let sync_file = |path: &[u8]| self.tree.open(path, Access::Read).and_then(|file| file.sync());
        let mut faults = sync_all(files, sync_file);
        // A name is durable after the content.
        faults.extend(sync_all(dirs, |path| self.tree.sync_dir(path)));
        faults.extend(std::mem::take(&mut self.faults));
        faults
    }

    /// Removes staged files.
    pub fn end(&mut self) -> Result<()> {
        if !self.has_incoming {
            return Ok(());
        }
        self.has_incoming = false;
        for (item, _) in source::list(&self.tree, INCOMING)? {
            missing_is_done(self.tree.unlink(&join(INCOMING, &item.name)))?;
        }
        self.keep_root_time(|it| missing_is_done(it.in_dir(b"", || it.tree.rmdir(INCOMING))))?;
        self.tree.sync_dir(b"")
    }
}

/// Syncs files, some at a time. One that is missing was removed since.
fn sync_all(paths: BTreeSet<Vec<u8>>, sync: impl Fn(&[u8]) -> Result<()> + Sync) -> Vec<(Vec<u8>, Fault)> {
    let paths: Vec<_> = paths.into_iter().collect();
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            match sync(path) {
                // `EINVAL`: another kind of file has the path now.
                Err(fault) if fault.kind() == FaultKind::Missing || fault.errno == Errno::EINVAL => {}
                Err(fault) => faults.lock().push((path.clone(), fault)),
                Ok(()) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..paths.len().min(SYNCED_AT_ONCE) {
            scope.spawn(work);
        }
        work();
    });
    faults.into_inner()
}
