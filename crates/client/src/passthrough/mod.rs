//! Names and attributes of the views that pass through to a directory tree: the node-local and the cache view.
//!
//! The directory tree is authoritative, and other programs may change it. This module only maps the frontend's file numbers to paths.

mod directory;
mod identity;
mod owner;
mod tree;
mod xattr;

#[cfg(test)]
mod tests;

use crate::directory::OpenDirs;
use crate::types::{FileNumber, Found, Name, ViewSpace};
pub(crate) use identity::Identity;
pub(crate) use owner::Owner;

use directory::OpenDir;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, FileKind, InodeId, Result, name};
use tameike_io::Runtime;
use tameike_io::shared::{Allocate, FileStat, Pin, Seek, SharedFile, SharedFs, Special, join};
use tree::{Seen, Tree};

/// The thread that runs calls that may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The calling thread: the node's own disk answers quickly.
    Here,
    /// A separate thread: the shared file system may be slow.
    Apart,
}

/// A view over a directory tree that supplies its directories and extended attributes.
pub trait TreeView: Send + Sync + 'static {
    /// The names and attributes of the tree.
    fn below(&self) -> &Passthrough;
}

/// Names and attributes of one directory tree.
pub struct Passthrough {
    runtime: Runtime,
    fs: Arc<dyn SharedFs>,
    waiting: Waiting,
    pub(crate) tree: Tree,
    open_dirs: OpenDirs<OpenDir>,
}

impl Passthrough {
    /// Passes through to the tree of `fs`.
    pub fn new(runtime: Runtime, fs: Arc<dyn SharedFs>, waiting: Waiting) -> Self {
        Self { runtime, fs, waiting, tree: Tree::default(), open_dirs: OpenDirs::default() }
    }

    /// Runs file system calls on the thread that this view uses for them.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn SharedFs) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.waiting {
            Waiting::Here => job(&*self.fs),
            Waiting::Apart => {
                let fs = self.fs.clone();
                self.runtime.block(move || job(&*fs)).await
            }
        }
    }

    /// Returns a path of the file, relative to the root; `ESTALE` if all names by which the file was known are gone.
    pub fn path(&self, file: FileNumber) -> Result<Vec<u8>> {
        self.tree.path(file).ok_or_else(|| Errno::ESTALE.into())
    }

    pub(crate) fn child(&self, dir: FileNumber, child: &[u8]) -> Result<Vec<u8>> {
        name::check(child)?;
        Ok(join(&self.path(dir)?, child))
    }

    /// Inode number behind a number of the frontend.
    pub(crate) fn inode(&self, file: FileNumber) -> InodeId {
        self.identity(file).inode
    }

    /// Identity of the file behind a number of the frontend.
    pub(crate) fn identity(&self, file: FileNumber) -> Identity {
        self.tree.identity(file).unwrap_or(Identity { inode: InodeId(file.0), handle_hash: 0 })
    }

    /// The frontend's number of the file that was last seen with this inode number.
    pub(crate) fn number(&self, inode: InodeId) -> FileNumber {
        self.tree.number(inode).unwrap_or(FileNumber(inode.0))
    }

    /// Returns true if the number stands for this file, and not for an earlier one with the same inode number.
    pub(crate) fn is(&self, file: FileNumber, stat: &FileStat) -> bool {
        file == FileNumber::ROOT || self.tree.is(file, &Seen::of(stat))
    }

    /// Records the file that a name resolves to, and counts a lookup.
    pub(crate) fn found(&self, dir: FileNumber, child: &[u8], stat: &FileStat) -> Found {
        let file = self.tree.found(dir, child, Seen::of(stat));
        Found { file, attr: stat.attr() }
    }

    /// As [`Self::found`], for a file that was just created under the name.
    pub(crate) fn made(&self, dir: FileNumber, child: &[u8], stat: &FileStat) -> Found {
        let file = self.tree.made(dir, child, Seen::of(stat));
        Found { file, attr: stat.attr() }
    }

    /// Counts another lookup of a file that the frontend holds, unless `attr` fails.
    pub(crate) async fn lookup_again(
        &self,
        file: FileNumber,
        attr: impl Future<Output = Result<Attr>>,
    ) -> Result<Found> {
        if !self.tree.hold(file) {
            return Err(Errno::ESTALE.into());
        }
        attr.await.map(|attr| Found { file, attr }).inspect_err(|_| {
            self.tree.forget(file, 1);
        })
    }

    pub(crate) async fn lookup(&self, dir: FileNumber, child: &[u8]) -> Result<Found> {
        let path = self.child(dir, child)?;
        match self.run(move |fs| fs.stat(&path)).await {
            Ok(stat) => Ok(self.found(dir, child, &stat)),
            Err(fault) => {
                if fault.errno == Errno::ENOENT {
                    self.tree.lost(dir, child);
                }
                Err(fault)
            }
        }
    }

    pub(crate) async fn stat(&self, file: FileNumber) -> Result<FileStat> {
        loop {
            let path = self.path(file)?;
            let at = path.clone();
            let gone = match self.run(move |fs| fs.stat(&at)).await {
                Ok(stat) if self.is(file, &stat) => return Ok(stat),
                // Another file has taken the name since the lookup.
                Ok(_) => Errno::ESTALE.into(),
                Err(fault) if fault.errno == Errno::ENOENT => fault,
                Err(fault) => return Err(fault),
            };
            if !self.tree.not_at(file, &path) {
                return Err(gone);
            }
        }
    }

    pub(crate) async fn change(&self, file: FileNumber, change: AttrChange) -> Result<()> {
        let path = self.path(file)?;
        self.run(move |fs| fs.change(&path, &change)).await
    }

    pub(crate) async fn readlink(&self, file: FileNumber) -> Result<Vec<u8>> {
        let path = self.path(file)?;
        self.run(move |fs| fs.read_link(&path)).await
    }

    /// Creates a file of any type; regular files are not opened.
    pub(crate) async fn make(&self, dir: FileNumber, child: &[u8], new: NewInode) -> Result<Found> {
        let path = self.child(dir, child)?;
        let stat = self.run(move |fs| make(fs, &path, new)).await?;
        Ok(self.made(dir, child, &stat))
    }

    pub(crate) async fn link(&self, file: FileNumber, dir: FileNumber, child: &[u8]) -> Result<Found> {
        let (from, to) = (self.path(file)?, self.child(dir, child)?);
        let link = move |fs: &dyn SharedFs| {
            fs.link(&from, &to)?;
            fs.stat(&to)
        };
        let stat = self.run(link).await?;
        Ok(self.found(dir, child, &stat))
    }

    /// Removes a name of anything but a directory. Returns the attributes before the removal, and a reference to the file's number.
    pub(crate) async fn unlink(&self, dir: FileNumber, child: &[u8]) -> Result<(FileStat, Pin)> {
        let path = self.child(dir, child)?;
        let unlink = move |fs: &dyn SharedFs| {
            let pinned = fs.pin(&path)?;
            fs.unlink(&path)?;
            Ok(pinned)
        };
        let removed = self.run(unlink).await?;
        self.tree.lost(dir, child);
        Ok(removed)
    }

    pub(crate) async fn rmdir(&self, dir: FileNumber, child: &[u8]) -> Result<()> {
        let path = self.child(dir, child)?;
        self.run(move |fs| fs.rmdir(&path)).await?;
        self.tree.removed(dir, child);
        Ok(())
    }

    pub(crate) async fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        let (old, new) = (self.child(from.0, from.1)?, self.child(to.0, to.1)?);
        let paths = (old.clone(), new.clone());
        self.run(move |fs| fs.rename(&paths.0, &paths.1, mode)).await?;
        let exchange = mode == RenameMode::Exchange;
        self.tree.renamed(from, to, exchange);
        let both = [(&old[..], &new[..]), (&new, &old)];
        self.tree.rebase(if exchange { &both } else { &both[..1] });
        Ok(())
    }

    /// Records that another node has renamed a directory. Returns true if the tree confirms it.
    pub(crate) async fn moved(&self, dir: InodeId, from: &[u8], to: &[u8]) -> Result<bool> {
        let names = [from.to_vec(), to.to_vec()];
        let stat = move |fs: &dyn SharedFs| {
            names.iter().for_each(|path| fs.revalidate(path));
            fs.stat(&names[1])
        };
        let stat = self.run(stat).await?;
        let is_there = stat.inode_id() == dir;
        if is_there && let Some(dir) = self.tree.number(dir) {
            self.tree.moved(dir, from, to);
        }
        Ok(is_there)
    }

    pub(crate) async fn space(&self) -> Result<ViewSpace> {
        let space = self.run(|fs| fs.space()).await?;
        let inodes = space.inodes.saturating_sub(space.inodes_free);
        let (capacity, free) = (space.total, space.available);
        Ok(ViewSpace { capacity, free, inodes, inodes_free: space.inodes_free })
    }
}

/// Allocates or deallocates space of an open file of the tree. `Zero` punches the range and then allocates it: few file systems do both in
/// one call.
pub(crate) fn change_space(
    file: &dyn SharedFile,
    change: SpaceChange,
    bytes: Range<u64>,
    grows: bool,
) -> Result<()> {
    let length = bytes.end - bytes.start;
    if change != SpaceChange::Allocate {
        file.allocate(Allocate::Punch, bytes.start, length)?;
    }
    match change {
        SpaceChange::Punch => Ok(()),
        SpaceChange::Allocate | SpaceChange::Zero => {
            file.allocate(if grows { Allocate::Extend } else { Allocate::Keep }, bytes.start, length)
        }
    }
}

pub(crate) fn seek_of(sought: Sought) -> Seek {
    match sought {
        Sought::Data => Seek::Data,
        Sought::Hole => Seek::Hole,
    }
}

fn make(fs: &dyn SharedFs, path: &[u8], new: NewInode) -> Result<FileStat> {
    let owner = Owner::of(&new);
    let NewInode { kind, mode, rdev, symlink, .. } = new;
    let special = match kind {
        FileKind::File => return owner.create(fs, path, mode)?.stat(),
        FileKind::Directory => Special::Directory(mode),
        FileKind::Symlink => Special::Symlink(symlink),
        FileKind::Fifo | FileKind::Socket | FileKind::CharacterDevice | FileKind::BlockDevice => {
            Special::Node { kind, mode, rdev }
        }
    };
    let stat = fs.make(path, &special)?;
    // The mode bits of a symbolic link have no effect.
    let bits = (kind != FileKind::Symlink).then_some(mode);
    if let Some(change) = owner.missing(fs, path, &stat, bits)
        && Owner::chown_applied(fs.change_made(path, kind, &change))?
    {
        return fs.stat(path);
    }
    Ok(stat)
}
