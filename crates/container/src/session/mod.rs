//! A container as one process uses it: files are opened, read, written and closed, by any number of processes at the same time.
//!
//! Each process has its own lane. It sees its changes at once. Other processes see them after a sync, or after a few MiB, when they refresh:
//! on a lookup of a missing name, or by [`Session::refresh`].

mod attributes;
mod collective;
pub mod draft;
mod extents;
mod links;
mod names;
mod options;
mod rename;
mod state;
#[cfg(test)]
mod tests;

pub use crate::{Brief, Codec, Report, Snapshot, Xattr};

pub use options::{Permissions, Rank, Refresh, SUBFILES_MAX, SessionOptions, block_size_of};

use crate::{Container, FileReader, LaneEnd, LaneWriter, Node, Show, check_path};
use draft::Draft;
use links::Resolved;
use parking_lot::Mutex;
use state::{State, brief, check_kind};
use std::sync::Arc;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::wall;
use tameike_io::shared::SharedFs;

/// Bytes per call of [`Session::visit`] for files that are open for writing.
const VISIT_SIZE: usize = 1 << 20;

/// A container that one process reads and adds to.
pub struct Session {
    fs: Arc<dyn SharedFs>,
    options: SessionOptions,
    state: Mutex<State>,
}

/// Flags of [`Session::open_file`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Open for writing.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// Fail if the file exists, as far as this process knows.
    pub exclusive: bool,
    /// Truncate the file to size 0.
    pub truncate: bool,
}

/// An open file.
pub enum OpenFile {
    /// Shows the file as it was at the open.
    Reader(Box<Mutex<ReaderFile>>),
    /// Shows the file as this process changes it.
    Writer(WriterFile),
}

/// A file that is open for reading only.
pub struct ReaderFile {
    content: FileReader,
    /// Path at the open.
    path: Vec<u8>,
    brief: Brief,
}

/// A file that is open for writing.
pub struct WriterFile {
    draft: Arc<Mutex<Draft>>,
    /// False if it was opened for reading only while it was open for writing.
    can_write: bool,
}

impl Session {
    /// Opens the container whose directory is `fs`, and creates it if it is missing and the options say so.
    ///
    /// # Errors
    /// `EINVAL` if this is not a container and none may be created, and errors of the file system.
    pub fn open(fs: Arc<dyn SharedFs>, options: SessionOptions) -> Result<Self> {
        let superblock = options.make_or_wait(&*fs)?;
        let container = Container::open_as(fs.clone(), superblock)?;
        Self::of(container, fs, options)
    }

    fn of(container: Container, fs: Arc<dyn SharedFs>, options: SessionOptions) -> Result<Self> {
        let session = Self { fs, state: Mutex::new(State::new(container, options.refresh)), options };
        if session.options.is_collective && !session.options.is_read_only {
            // Collective ranks all write: one that cannot fails here, before any of them writes.
            session.begin(&mut session.state.lock())?;
        }
        Ok(session)
    }

    /// Reads what other processes have added.
    pub fn refresh(&self) -> Result<()> {
        let mut state = self.state.lock();
        // Other processes may have removed some.
        state.dirs.clear();
        state.container.refresh()
    }

    /// Opens a regular file; follows symbolic links, as [`Self::resolve`] does. `mode` is for a new file.
    ///
    /// # Errors
    /// As open(2); `EEXIST` if a symbolic link is at a path to be created exclusively, and as [`Self::resolve`].
    pub fn open_file(&self, path: &[u8], flags: OpenFlags, mode: u16) -> Result<OpenFile> {
        check_path(path)?;
        let mut state = self.state.lock();
        let is_made = flags.create && flags.exclusive;
        // A file to be truncated needs no refresh: its content is irrelevant.
        let Resolved { path, draft, entry } = match flags.create && flags.truncate && !is_made {
            true => state.resolve_known(path, true)?,
            false => state.resolve_or_refresh(path, !is_made)?,
        };
        if path.is_empty() {
            return Err(Errno::EISDIR.into());
        }
        if let Some(draft) = draft {
            if is_made {
                return Err(Errno::EEXIST.into());
            }
            if flags.write && flags.truncate {
                state.change(&mut draft.lock(), |draft, _| draft.truncate(0));
            }
            return Ok(OpenFile::Writer(WriterFile { draft, can_write: flags.write }));
        }
        match entry {
            None if !flags.create => Err(Errno::ENOENT.into()),
            Some(_) if is_made => Err(Errno::EEXIST.into()),
            Some(entry) if !flags.write => {
                check_kind(entry.node.map_or(FileKind::File, |node| node.kind))?;
                let opener = state.opener(&entry)?;
                // Without the lock: this may read from the file system.
                drop(state);
                let content = opener.open(&entry)?;
                let brief = Brief::of(content.node());
                Ok(OpenFile::Reader(Box::new(Mutex::new(ReaderFile { content, path: entry.path, brief }))))
            }
            Some(entry) if !flags.truncate => {
                self.begin(&mut state)?;
                let draft = state.draft_of(&entry)?;
                Ok(state.keep(draft))
            }
            found => {
                found.iter().try_for_each(|entry| state.check_inside(entry))?;
                self.open_empty(&mut state, path, found.and_then(|entry| entry.node), mode)
            }
        }
    }

    /// An empty file, which replaces the existing one.
    fn open_empty(
        &self,
        state: &mut State,
        path: Vec<u8>,
        found: Option<Brief>,
        mode: u16,
    ) -> Result<OpenFile> {
        let mut node = self.new_node(FileKind::File, mode);
        if let Some(Brief { kind, mode, uid, gid, .. }) = found {
            check_kind(kind)?;
            (node.mode, node.uid, node.gid) = (mode, uid, gid);
        }
        self.begin(state)?;
        self.make_parents(state, &path)?;
        Ok(state.keep(Draft::new(path, node)))
    }

    /// Reads at `offset` until `buffer` is full or the file ends; returns the number of bytes read.
    ///
    /// # Errors
    /// `EIO` if the bytes are damaged, and errors of the file system.
    pub fn read_at(&self, file: &OpenFile, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match file {
            OpenFile::Reader(reader) => reader.lock().content.read_at(buffer, offset),
            OpenFile::Writer(WriterFile { draft, .. }) => {
                let reading = {
                    let State { container, writer, .. } = &mut *self.state.lock();
                    draft.lock().begin_read(container, writer.as_mut(), offset, buffer.len())?
                };
                let count = reading.count();
                reading.fill(&mut buffer[..count])?;
                Ok(count)
            }
        }
    }

    /// Passes all data of a file to `show`, by ascending offset; skipped bytes are zeros.
    pub fn visit(&self, file: &OpenFile, show: Show<'_>) -> Result<()> {
        if let OpenFile::Reader(reader) = file {
            let ReaderFile { content, brief, .. } = &mut *reader.lock();
            return content.visit(0..brief.size, show);
        }
        let (mut bytes, mut at) = (vec![0; VISIT_SIZE], 0);
        loop {
            let count = self.read_at(file, &mut bytes, at)?;
            if count == 0 {
                return Ok(());
            }
            show(at, &bytes[..count])?;
            at += count as u64;
        }
    }

    /// Extended attributes of an open file.
    pub fn file_xattrs(&self, file: &OpenFile) -> Vec<Xattr> {
        match file {
            OpenFile::Reader(reader) => reader.lock().content.node().xattrs.clone(),
            OpenFile::Writer(WriterFile { draft, .. }) => draft.lock().node.xattrs.clone(),
        }
    }

    /// Writes at `offset`, or at the end of the file without one. Returns the end of the write.
    ///
    /// # Errors
    /// `EBADF` if the file is not open for writing, `EFBIG` beyond the maximum size, and errors of the file system.
    pub fn write(&self, file: &OpenFile, data: &[u8], offset: Option<u64>) -> Result<u64> {
        let OpenFile::Writer(WriterFile { draft, can_write: true }) = file else {
            return Err(Errno::EBADF.into());
        };
        let mut state = self.state.lock();
        let mut draft = draft.lock();
        let offset = offset.unwrap_or(draft.size);
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        state.change(&mut draft, |draft, writer| match writer {
            Some(writer) => draft.write(writer, data, offset),
            None => Err(Errno::EBADF.into()),
        })?;
        state.bound(&mut draft)?;
        Ok(end)
    }

    /// Truncates a file, or extends it by zeros.
    ///
    /// # Errors
    /// `EBADF` if the file is not open for writing, `EFBIG` beyond the maximum size.
    pub fn truncate(&self, file: &OpenFile, size: u64) -> Result<()> {
        let OpenFile::Writer(WriterFile { draft, can_write: true }) = file else {
            return Err(Errno::EBADF.into());
        };
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        self.state.lock().change(&mut draft.lock(), |draft, _| draft.truncate(size));
        Ok(())
    }

    /// Attributes and size of an open file.
    pub fn status(&self, file: &OpenFile) -> Brief {
        match file {
            OpenFile::Reader(reader) => reader.lock().brief,
            OpenFile::Writer(WriterFile { draft, .. }) => brief(&draft.lock()),
        }
    }

    /// Closes a file. Its content is then in the container, and durable after the next sync.
    pub fn close(&self, file: OpenFile) -> Result<()> {
        let OpenFile::Writer(WriterFile { draft: shared, .. }) = file else { return Ok(()) };
        let mut state = self.state.lock();
        let published = state.publish(&mut shared.lock());
        // At most two references: the session's and this one. Content that could not be written is kept for a retry.
        let path = shared.lock().path.clone();
        match path {
            Some(path) if published.is_ok() && Arc::strong_count(&shared) <= 2 => {
                state.drafts.remove(&path);
            }
            None if Arc::strong_count(&shared) == 1 => {
                state.change(&mut shared.lock(), |draft, _| draft.truncate(0));
            }
            _ => {}
        }
        published
    }

    /// Makes an open file durable, and all files that were closed before.
    pub fn sync_file(&self, file: &OpenFile) -> Result<()> {
        let mut state = self.state.lock();
        if let OpenFile::Writer(WriterFile { draft, .. }) = file {
            state.publish(&mut draft.lock())?;
        }
        state.sync(&*self.fs)
    }

    /// Makes closed files visible to other processes that refresh. They are not durable.
    pub fn write_out(&self) -> Result<()> {
        self.state.lock().writer.as_mut().map_or(Ok(()), LaneWriter::write_pending)
    }

    /// Starts writeback of what was written, so that a later sync is shorter.
    pub fn start_write_back(&self) {
        if let Some(writer) = &self.state.lock().writer {
            writer.start_write_back();
        }
    }

    /// Makes all files durable, in their current state.
    pub fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.publish_all()?;
        state.sync(&*self.fs)
    }

    /// Ends the session and makes everything durable. The last process that ends writes the index. If the index cannot be written, the
    /// container is complete, but slower to open.
    pub fn finish(self) -> Result<()> {
        self.end().map(drop)
    }

    /// Returns the ends of this process's lanes.
    fn end(self) -> Result<(Container, Vec<LaneEnd>)> {
        let mut state = self.state.into_inner();
        state.publish_all()?;
        state.sync(&*self.fs)?;
        let mut container = state.container;
        let Some(writer) = state.writer else { return Ok((container, Vec::new())) };
        let ends = container.end_writer(writer)?;
        if self.options.may_be_last(&container)? {
            container.write_index()?;
        }
        Ok((container, ends))
    }

    /// Begins this process's lane, at the first change at the latest.
    fn begin(&self, state: &mut State) -> Result<()> {
        if self.options.is_read_only {
            return Err(Errno::EROFS.into());
        }
        if state.writer.is_none() {
            let SessionOptions { codec, streams, .. } = self.options;
            let mut writer = state.container.begin_writer(&self.options.writer(), codec, streams)?;
            if streams > 0
                && let Err(fault) = writer.write_behind()
            {
                log::debug!(
                    "cannot start a thread that writes entries; they are written synchronously: {fault}"
                );
            }
            state.writer = Some(writer);
        }
        Ok(())
    }

    fn new_node(&self, kind: FileKind, mode: u16) -> Node {
        let SessionOptions { umask, uid, gid, .. } = self.options;
        Node::new(kind, mode & 0o7777 & !umask, (uid, gid), wall())
    }
}
