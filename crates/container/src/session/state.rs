//! What a process knows of a container that it adds to.

use super::draft::Draft;
use super::{LookAgain, OpenFile, WriterFile};
use crate::format::subfile::Subfile;
use crate::{Brief, Container, Content, IndexEntry, LaneWriter, Node, Opener, Put};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use tameike_io::os::process::wall;
use tameike_io::shared::{Access, SharedFs};

/// Bytes that all files together gather in memory.
const BUFFERED_MAX: usize = 64 << 20;

pub struct State {
    pub container: Container,
    /// From the first change on, at the latest.
    pub writer: Option<LaneWriter>,
    /// Files that are open for writing, by path.
    pub drafts: BTreeMap<Vec<u8>, Arc<Mutex<Draft>>>,
    /// Directories that are known to be there.
    pub dirs: BTreeSet<Vec<u8>>,
    /// Subfiles of others in which files of ours have content that may not be safe.
    foreign: BTreeSet<u32>,
    look_again: LookAgain,
    buffered: usize,
    version: u64,
}

/// Something that is there.
pub struct There {
    pub entry: IndexEntry,
    pub node: Brief,
}

impl State {
    pub fn new(container: Container, look_again: LookAgain) -> Self {
        Self {
            container,
            writer: None,
            drafts: BTreeMap::new(),
            dirs: BTreeSet::new(),
            foreign: BTreeSet::new(),
            look_again,
            buffered: 0,
            version: 0,
        }
    }

    /// Changes a file, and counts what it has in memory then.
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

    /// What a file has in memory goes to the lane when all have too much.
    pub fn bound(&mut self, draft: &mut Draft) -> Result<()> {
        if self.buffered <= BUFFERED_MAX {
            return Ok(());
        }
        self.change(draft, |draft, writer| match writer {
            Some(writer) => draft.flush(writer),
            None => Ok(()),
        })
    }

    /// Looks for what others have added, where that needs not be asked for: whether it did.
    pub fn look_again(&mut self) -> Result<bool> {
        match self.look_again {
            LookAgain::Always => {
                // Others may have removed some.
                self.dirs.clear();
                self.container.refresh().map(|()| true)
            }
            LookAgain::Asked => Ok(false),
        }
    }

    /// What is at a path that nobody has open for writing; others may have added it.
    pub fn find(&mut self, path: &[u8]) -> Result<There> {
        let found = match self.container.find(path)? {
            None if self.look_again()? => self.container.find(path)?,
            found => found,
        };
        let there = found.and_then(|entry| Some(There { node: entry.node?, entry }));
        there.ok_or_else(|| Errno::ENOENT.into())
    }

    /// What is at a path that somebody may have open for writing: an entry tells of it then.
    pub fn find_published(&mut self, path: &[u8]) -> Result<There> {
        if let Some(draft) = self.drafts.get(path).cloned() {
            self.publish(&mut draft.lock())?;
        }
        self.find(path)
    }

    /// Refuses a path at which there is something.
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

    /// A file that is in the container, to be changed.
    pub fn draft_of(&mut self, entry: &IndexEntry) -> Result<Draft> {
        self.check_inside(entry)?;
        let (node, size) = self.node_of(entry)?;
        check_kind(node.kind)?;
        let Content::Extents(extents) = node.content.clone() else { return Err(Errno::EIO.into()) };
        Ok(Draft::of(entry.path.clone(), node, extents, size))
    }

    /// Refuses to change content that is outside of the container: a job writes to it, or will bring it to its place.
    pub fn check_inside(&mut self, entry: &IndexEntry) -> Result<()> {
        if self.container.count_outside() == 0 {
            return Ok(());
        }
        self.hand_over(entry)?;
        match self.container.outside_of(entry)? {
            None => Ok(()),
            Some(_) => Err(Fault::new(
                Errno::EROFS,
                "it is too large to be packed, and on its way to the shared directory: write to it there when its job has ended",
            )),
        }
    }

    /// Opens what an entry tells of; others go on meanwhile.
    pub fn opener(&mut self, entry: &IndexEntry) -> Result<Opener> {
        self.hand_over(entry)?;
        Ok(self.container.opener())
    }

    /// What an entry tells in short, with size and time of content that is outside.
    pub fn brief(&mut self, entry: &IndexEntry) -> Result<Option<Brief>> {
        self.hand_over(entry)?;
        self.container.brief(entry)
    }

    /// All that an entry tells, but for content.
    pub fn node(&mut self, entry: &IndexEntry) -> Result<Node> {
        self.hand_over(entry)?;
        self.container.node(entry)
    }

    /// What an entry tells of is with the file system, where it can be read.
    fn hand_over(&mut self, entry: &IndexEntry) -> Result<()> {
        match &mut self.writer {
            Some(writer) => writer.hand_over(entry.lane, entry.address),
            None => Ok(()),
        }
    }

    /// What the container tells of a path, with its content as pieces that another entry can name; and its size.
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

    /// Puts what is at a path now.
    pub fn put(&mut self, path: &[u8], node: Option<Node>, content: &[u8]) -> Result<IndexEntry> {
        let version = self.next_version(path)?;
        let Some(writer) = &mut self.writer else { return Err(Errno::EBADF.into()) };
        let (entry, Put { address, size }) = writer.put_entry(path, version, node, content)?;
        let node = entry.node.as_ref().map(Brief::of);
        let entry =
            IndexEntry { path: entry.path, version, lane: writer.lane(), address, record_size: size, node };
        self.container.add(entry.clone());
        Ok(entry)
    }

    /// Later than all that this process has put, and than what it replaces, whatever the clocks of others say.
    fn next_version(&mut self, path: &[u8]) -> Result<u64> {
        let Timestamp { seconds, nanoseconds } = wall();
        let now = u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::from(nanoseconds);
        self.version = now.max(self.version + 1).max(self.container.version(path)? + 1);
        Ok(self.version)
    }

    /// Puts an entry of a file that was changed.
    pub fn publish(&mut self, draft: &mut Draft) -> Result<()> {
        let Some(path) = draft.path.clone().filter(|_| draft.is_changed) else { return Ok(()) };
        let version = self.next_version(&path)?;
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
        match &mut self.writer {
            Some(writer) => writer.sync(),
            None => Ok(()),
        }
    }
}

pub fn brief(draft: &Draft) -> Brief {
    Brief { size: draft.size, ..Brief::of(&draft.node) }
}

/// Only regular files are opened.
pub fn check_kind(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        FileKind::Symlink => Err(Errno::ELOOP.into()),
        _ => Err(Fault::new(Errno::EINVAL, "no regular file")),
    }
}
