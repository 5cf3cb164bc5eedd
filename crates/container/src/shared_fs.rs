//! A container as a read-only [`SharedFs`].

use crate::{Container, Content, FileReader, IndexEntry, Node, split_path};
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind, Result, Timestamp};
use tameike_io::shared::{
    Access, Allocate, FileStat, NamedFile, Pin, Seek, SharedDir, SharedFile, SharedFs, Special, TreeSpace,
    XattrMode, join,
};

/// Directory entries per batch.
const NAMES_AT_ONCE: usize = 1024;
/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// An open container as a file system. A directory that has no entry but contains entries exists, too (an implied directory).
pub struct ContainerTree {
    container: Arc<Container>,
    /// Owner of the root and of implied directories.
    owner: (u32, u32),
}

impl ContainerTree {
    /// The tree of a container; `owner` is the uid and gid of implied directories.
    pub fn new(container: Container, owner: (u32, u32)) -> Self {
        Self { container: Arc::new(container), owner }
    }

    fn directory(&self, path: &[u8]) -> FileStat {
        stat_of(path, &Node::new(FileKind::Directory, 0o755, self.owner, Timestamp::default()))
    }

    fn node(&self, path: &[u8]) -> Result<Node> {
        let entry = self.container.find(path)?.ok_or(Errno::ENOENT)?;
        self.container.describe(&entry)
    }

    /// Returns true if a path without an entry is an implied directory.
    fn is_implied(&self, path: &[u8]) -> Result<bool> {
        let has_children = self.container.children(path)?.next().transpose()?.is_some();
        Ok(has_children || !self.container.directories_in(path)?.is_empty())
    }
}

/// Inode number of a path, constant for the lifetime of the container.
fn number_of(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// The attributes of a path with this node.
pub(crate) fn stat_of(path: &[u8], node: &Node) -> FileStat {
    let size = if node.kind == FileKind::Symlink { node.target.len() as u64 } else { node.size };
    FileStat {
        device: 0,
        inode: number_of(path),
        handle_hash: 0,
        kind: node.kind,
        mode: node.mode,
        nlink: if node.kind == FileKind::Directory { 2 } else { 1 },
        uid: node.uid,
        gid: node.gid,
        rdev: node.rdev,
        size,
        blocks: space(node).div_ceil(STAT_BLOCK),
        atime: node.atime,
        mtime: node.mtime,
        ctime: node.mtime,
    }
}

/// Bytes of a file that are not in holes.
fn space(node: &Node) -> u64 {
    match &node.content {
        Content::Here => node.size,
        // External content has no extents, so it counts 0.
        Content::Extents(extents) => extents.iter().map(|extent| u64::from(extent.length)).sum(),
    }
}

fn read_only<T>() -> Result<T> {
    Err(Errno::EROFS.into())
}

impl SharedFs for ContainerTree {
    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        if path.is_empty() {
            return Ok(self.directory(path));
        }
        match self.container.find(path)? {
            Some(entry) => Ok(stat_of(path, &self.container.describe(&entry)?)),
            None if self.is_implied(path)? => Ok(self.directory(path)),
            None => Err(Errno::ENOENT.into()),
        }
    }

    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)> {
        Ok((self.stat(path)?, Box::new(())))
    }

    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>> {
        let stat = self.stat(path)?;
        if stat.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let (container, path) = (self.container.clone(), path.to_vec());
        Ok(Arc::new(OpenDirectory { container, path, stat, position: Mutex::default() }))
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(path)?;
        if node.kind == FileKind::Symlink { Ok(node.target) } else { Err(Errno::EINVAL.into()) }
    }

    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>> {
        if access == Access::Write {
            return read_only();
        }
        let reader = self.container.file(path)?;
        let stat = stat_of(path, reader.node());
        Ok(Arc::new(OpenFile { reader: Mutex::new(reader), stat }))
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        let found = self.xattrs_of(path)?.into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).ok_or_else(|| Errno::ENODATA.into())
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.xattrs_of(path)?.into_iter().map(|(name, _)| name).collect())
    }

    fn space(&self) -> Result<TreeSpace> {
        Ok(TreeSpace::default())
    }

    fn create(&self, _: &[u8], _: u16) -> Result<Arc<dyn SharedFile>> {
        read_only()
    }

    fn make(&self, _: &[u8], _: &Special) -> Result<FileStat> {
        read_only()
    }

    fn unlink(&self, _: &[u8]) -> Result<()> {
        read_only()
    }

    fn rmdir(&self, _: &[u8]) -> Result<()> {
        read_only()
    }

    fn rename(&self, _: &[u8], _: &[u8], _: RenameMode) -> Result<()> {
        read_only()
    }

    fn link(&self, _: &[u8], _: &[u8]) -> Result<()> {
        read_only()
    }

    fn change(&self, _: &[u8], _: &AttrChange) -> Result<()> {
        read_only()
    }

    fn set_xattr(&self, _: &[u8], _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        read_only()
    }

    fn remove_xattr(&self, _: &[u8], _: &[u8]) -> Result<()> {
        read_only()
    }

    fn sync_dir(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl ContainerTree {
    fn xattrs_of(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if self.container.find(path)?.is_none() {
            return self.stat(path).map(|_| Vec::new());
        }
        Ok(self.node(path)?.xattrs.into_iter().map(|xattr| (xattr.name, xattr.value)).collect())
    }
}

struct OpenFile {
    reader: Mutex<FileReader>,
    stat: FileStat,
}

impl SharedFile for OpenFile {
    fn stat(&self) -> Result<FileStat> {
        Ok(self.stat.clone())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.reader.lock().read_at(buffer, offset)
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        if offset >= self.stat.size {
            return Err(Errno::ENXIO.into());
        }
        let data = self.reader.lock().data(offset);
        match (what, data) {
            (Seek::Data, Some(data)) => Ok(data.start),
            (Seek::Data, None) => Err(Errno::ENXIO.into()),
            (Seek::Hole, Some(data)) if data.start == offset => Ok(data.end),
            (Seek::Hole, _) => Ok(offset),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn forget_pages(&self) -> Result<()> {
        Ok(())
    }

    fn revalidate(&self) -> Result<()> {
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        read_only()
    }

    fn append(&self, _: &[u8]) -> Result<()> {
        read_only()
    }

    fn truncate(&self, _: u64) -> Result<()> {
        read_only()
    }

    fn allocate(&self, _: Allocate, _: u64, _: u64) -> Result<()> {
        read_only()
    }

    fn change(&self, _: &AttrChange) -> Result<()> {
        read_only()
    }
}

/// An open directory: lists `.` and `..`, then entries, then implied directories.
struct OpenDirectory {
    container: Arc<Container>,
    path: Vec<u8>,
    stat: FileStat,
    position: Mutex<Position>,
}

/// Read position in a directory.
#[derive(Default)]
struct Position {
    given: u64,
    next: Next,
}

#[derive(Default)]
enum Next {
    #[default]
    Dots,
    /// Entries whose names sort after this one.
    Entries(Vec<u8>),
    Implied,
    Nothing,
}

impl OpenDirectory {
    /// The next batch of names. A batch may be empty before [`Next::Nothing`] is reached.
    fn next(&self, next: &mut Next) -> Result<Vec<(Vec<u8>, FileKind)>> {
        let directory = |name: &[u8]| (name.to_vec(), FileKind::Directory);
        let names: Vec<_> = match next {
            Next::Dots => {
                *next = Next::Entries(Vec::new());
                vec![directory(b"."), directory(b"..")]
            }
            Next::Entries(after) => {
                let entries: Result<Vec<_>> =
                    self.container.children_after(&self.path, after)?.take(NAMES_AT_ONCE).collect();
                let entries = entries?;
                *next = match entries.last() {
                    Some(last) => Next::Entries(split_path(&last.path).1.to_vec()),
                    None => Next::Implied,
                };
                let kind = |entry: &IndexEntry| entry.node.map_or(FileKind::File, |node| node.kind);
                entries.iter().map(|entry| (split_path(&entry.path).1.to_vec(), kind(entry))).collect()
            }
            Next::Implied => {
                *next = Next::Nothing;
                let mut names = Vec::new();
                for name in self.container.directories_in(&self.path)? {
                    if self.container.find(&join(&self.path, &name))?.is_none() {
                        names.push(directory(&name));
                    }
                }
                names
            }
            Next::Nothing => Vec::new(),
        };
        Ok(names)
    }
}

impl SharedDir for OpenDirectory {
    fn stat(&self) -> Result<FileStat> {
        Ok(self.stat.clone())
    }

    fn read(&self, after: u64) -> Result<Vec<NamedFile>> {
        let mut position = self.position.lock();
        if position.given != after {
            *position = Position::default();
        }
        let mut names = Vec::new();
        while names.is_empty() && !matches!(position.next, Next::Nothing) {
            for (name, kind) in self.next(&mut position.next)? {
                position.given += 1;
                let inode =
                    FileStat { inode: number_of(&join(&self.path, &name)), ..self.stat.clone() }.inode_id();
                if position.given > after {
                    names.push(NamedFile { name, inode, kind, next: position.given });
                }
            }
        }
        Ok(names)
    }
}
