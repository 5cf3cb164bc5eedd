//! State of a session: the container, its writer, and files that are open for writing.

use super::draft::Draft;
use super::{OpenFile, Refresh, WriterFile};
use crate::format::subfile::Subfile;
use crate::{Brief, Container, Content, IndexEntry, LaneWriter, Node, Opener, Put, Versions};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{Access, SharedFs};

/// Maximum bytes that all files together buffer.
const BUFFERED_MAX: usize = 64 << 20;

pub struct State {
    pub container: Container,
    /// Begun at the first change at the latest.
    pub writer: Option<LaneWriter>,
    /// Files open for writing, by path.
    pub drafts: BTreeMap<Vec<u8>, Arc<Mutex<Draft>>>,
    /// Paths that are known to be directories.
    pub dirs: BTreeSet<Vec<u8>>,
    /// Subfiles of other writers with content of files of this process, maybe not durable.
    foreign: BTreeSet<u32>,
    refresh: Refresh,
    buffered: usize,
    versions: Versions,
}

/// An existing entry.
pub struct Existing {
    pub entry: IndexEntry,
    pub node: Brief,
}

impl State {
    pub fn new(container: Container, refresh: Refresh) -> Self {
        Self {
            container,
            writer: None,
            drafts: BTreeMap::new(),
            dirs: BTreeSet::new(),
            foreign: BTreeSet::new(),
            refresh,
            buffered: 0,
            versions: Versions::default(),
        }
    }

    /// Calls `change`, and updates the count of buffered bytes.
    pub fn change<T>(
        &mut self,
        draft: &mut Draft,
        change: impl FnOnce(&mut Draft, Option<&mut LaneWriter>) -> T,
    ) -> T {
        self.buffered -= draft.buffered();
        let changed = change(draft, self.writer.as_mut());
        self.buffered += draft.buffered();
        changed
    }

    /// Flushes a file's buffer if all files together buffer too much.
    pub fn bound(&mut self, draft: &mut Draft) -> Result<()> {
        if self.buffered <= BUFFERED_MAX {
            return Ok(());
        }
        self.change(draft, |draft, writer| writer.map_or(Ok(()), |writer| draft.flush(writer)))
    }

    /// Reads what other processes have added, unless only [`Session::refresh`](super::Session::refresh) may. Returns true if it did.
    pub fn refresh_if_automatic(&mut self) -> Result<bool> {
        match self.refresh {
            Refresh::Automatic => {
                // Other processes may have removed some.
                self.dirs.clear();
                self.container.refresh().map(|()| true)
            }
            Refresh::OnRequest => Ok(false),
        }
    }

    /// The entry of a path that is not open for writing; refreshes the container if it is missing.
    pub fn find(&mut self, path: &[u8]) -> Result<Existing> {
        let found = match self.container.find(path)? {
            None if self.refresh_if_automatic()? => self.container.find(path)?,
            found => found,
        };
        let found = found.and_then(|entry| Some(Existing { node: entry.node?, entry }));
        found.ok_or_else(|| Errno::ENOENT.into())
    }

    /// The entry of a path; if it is open for writing, an entry with its current state is put first.
    pub fn find_published(&mut self, path: &[u8]) -> Result<Existing> {
        if let Some(draft) = self.drafts.get(path).cloned() {
            self.publish(&mut draft.lock())?;
        }
        self.find(path)
    }

    /// Fails with `EEXIST` if the path exists.
    pub fn check_missing(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() || self.drafts.contains_key(path) {
            return Err(Errno::EEXIST.into());
        }
        match self.find(path) {
            Ok(_) => Err(Errno::EEXIST.into()),
            Err(fault) if fault.errno == Errno::ENOENT => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    pub fn keep(&mut self, draft: Draft) -> OpenFile {
        let path = draft.path.clone().unwrap_or_default();
        let draft = Arc::new(Mutex::new(draft));
        self.drafts.insert(path, draft.clone());
        OpenFile::Writer(WriterFile { draft, can_write: true })
    }

    /// Opens an existing file for changes.
    pub fn draft_of(&mut self, entry: &IndexEntry) -> Result<Draft> {
        self.check_inside(entry)?;
        let (node, size) = self.node_of(entry)?;
        check_kind(node.kind)?;
        let Content::Extents(extents) = node.content.clone() else { return Err(Errno::EIO.into()) };
        Ok(Draft::of(entry.path.clone(), node, extents, size))
    }

    /// Fails if content is external: a job writes to it, or will promote it.
    pub fn check_inside(&mut self, entry: &IndexEntry) -> Result<()> {
        if self.container.count_external() == 0 {
            return Ok(());
        }
        self.make_readable(entry)?;
        match self.container.external_identity(entry)? {
            None => Ok(()),
            Some(_) => Err(Fault::new(
                Errno::EROFS,
                "its content is external and belongs to a job: write to the file in the shared directory after the job has ended",
            )),
        }
    }

    /// Makes an entry's record readable. The file can then be opened without the lock of the session.
    pub fn opener(&mut self, entry: &IndexEntry) -> Result<Opener> {
        self.make_readable(entry)?;
        Ok(self.container.opener())
    }

    /// The summary of an entry, with size and mtime of external content.
    pub fn brief(&mut self, entry: &IndexEntry) -> Result<Option<Brief>> {
        self.make_readable(entry)?;
        self.container.brief(entry)
    }

    /// The node of an entry.
    pub fn node(&mut self, entry: &IndexEntry) -> Result<Node> {
        self.make_readable(entry)?;
        self.container.node(entry)
    }

    /// Writes an entry's record to the file system, so that it can be read.
    fn make_readable(&mut self, entry: &IndexEntry) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.make_readable(entry.lane, entry.address))
    }

    /// The node of an entry, with its content as extents that other entries can reference, and its size.
    pub fn node_of(&mut self, entry: &IndexEntry) -> Result<(Node, u64)> {
        let mut node = self.node(entry)?;
        if node.content == Content::Here && node.kind == FileKind::File {
            node.content = Content::Extents(entry.own_extent(node.size).into_iter().collect());
        }
        if let Content::Extents(extents) = &node.content {
            let is_own = |lane| self.writer.as_ref().is_some_and(|writer| writer.has(lane));
            let foreign = extents.iter().map(|extent| extent.lane).filter(|lane| !is_own(*lane));
            self.foreign.extend(foreign.map(|lane| lane.subfile));
        }
        let size = node.size;
        Ok((node, size))
    }

    /// Puts an entry for a path.
    pub fn put(&mut self, path: &[u8], node: Option<Node>, content: &[u8]) -> Result<IndexEntry> {
        let version = self.versions.next(self.container.version(path)?);
        let Some(writer) = &mut self.writer else { return Err(Errno::EBADF.into()) };
        let (entry, Put { address, size }) = writer.put_entry(path, version, node, content)?;
        let node = entry.node.as_ref().map(Brief::of);
        let entry =
            IndexEntry { path: entry.path, version, lane: writer.lane(), address, record_size: size, node };
        self.container.add(entry.clone());
        Ok(entry)
    }

    /// Puts an entry for a changed file.
    pub fn publish(&mut self, draft: &mut Draft) -> Result<()> {
        let Some(path) = draft.path.clone().filter(|_| draft.is_changed) else { return Ok(()) };
        let version = self.versions.next(self.container.version(&path)?);
        let entry = self.change(draft, |draft, writer| -> Result<IndexEntry> {
            let Some(writer) = writer else { return Err(Errno::EBADF.into()) };
            let (node, content) = draft.entry(writer)?;
            let brief = Brief::of(&node);
            let is_here = node.content == Content::Here;
            let (_, Put { address, size }) = writer.put_entry(&path, version, Some(node), content)?;
            let lane = writer.lane();
            let entry = IndexEntry { path, version, lane, address, record_size: size, node: Some(brief) };
            draft.published(entry.own_extent(brief.size).filter(|_| is_here));
            Ok(entry)
        })?;
        self.container.add(entry);
        Ok(())
    }

    pub fn publish_all(&mut self) -> Result<()> {
        let drafts: Vec<_> = self.drafts.values().cloned().collect();
        drafts.iter().try_for_each(|draft| self.publish(&mut draft.lock()))
    }

    pub fn sync(&mut self, fs: &dyn SharedFs) -> Result<()> {
        let superblock = self.container.superblock();
        while let Some(number) = self.foreign.first().copied() {
            Subfile::open(fs, superblock, number, Access::Write)?.file().sync()?;
            self.foreign.remove(&number);
        }
        self.writer.as_mut().map_or(Ok(()), LaneWriter::sync)
    }
}

pub fn brief(draft: &Draft) -> Brief {
    Brief { size: draft.size, ..Brief::of(&draft.node) }
}

/// Checks that this is a regular file.
pub fn check_kind(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        FileKind::Symlink => Err(Errno::ELOOP.into()),
        _ => Err(Fault::new(Errno::EINVAL, "it is no regular file")),
    }
}
