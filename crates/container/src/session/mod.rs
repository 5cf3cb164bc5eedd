//! Files of a container as programs have them: opened, read, written and closed, by any number of processes at the same time.
//!
//! Each process has a lane of its own. What it puts is seen by itself at once, and by others when it was synced, or when some MiB were full, once
//! they look again: who misses a name does, and [`Session::refresh`].

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

pub use crate::{Brief, Codec, Known, Report, Xattr};

pub use options::{LookAgain, Openness, Rank, SUBFILES_MAX, SessionOptions, block_size_of};

use crate::{Container, Content, FileReader, LaneEnd, Node, Show, check_path};
use draft::Draft;
use links::Led;
use parking_lot::Mutex;
use state::{State, brief, check_kind};
use std::sync::Arc;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::wall;
use tameike_io::shared::SharedFs;

/// Bytes of a file that is being written that are shown at once.
const VISIT_SIZE: usize = 1 << 20;

/// A container that a process reads and adds to.
pub struct Session {
    fs: Arc<dyn SharedFs>,
    options: SessionOptions,
    state: Mutex<State>,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// For writing.
    pub write: bool,
    /// It is made where it is missing.
    pub create: bool,
    /// It must be missing, as far as this process can see.
    pub exclusive: bool,
    /// Its content goes.
    pub truncate: bool,
}

/// An open file.
pub enum OpenFile {
    /// As it was when it was opened.
    Reader(Box<Mutex<ReaderFile>>),
    /// As all of this process see it now.
    Writer(WriterFile),
}

/// A file that is open for reading alone.
pub struct ReaderFile {
    content: FileReader,
    /// Where it was opened.
    path: Vec<u8>,
    brief: Brief,
}

/// A file that is open for writing.
pub struct WriterFile {
    draft: Arc<Mutex<Draft>>,
    /// Whoever opens it for reading alone sees the same, and changes nothing.
    can_write: bool,
}

impl Session {
    /// Opens the container whose directory `fs` is; it is made where there is none, if the options say so.
    ///
    /// # Errors
    /// `EINVAL` when it is no container and is not to be made, and what the file system says.
    pub fn open(fs: Arc<dyn SharedFs>, options: SessionOptions) -> Result<Self> {
        let superblock = options.make_or_wait(&*fs)?;
        let container = Container::open_as(fs.clone(), superblock)?;
        Self::of(container, fs, options)
    }

    fn of(container: Container, fs: Arc<dyn SharedFs>, options: SessionOptions) -> Result<Self> {
        let session = Self { fs, state: Mutex::new(State::new(container, options.look_again)), options };
        if session.options.is_collective && !session.options.is_read_only {
            // Ranks that do all together write all together: who cannot is told before.
            session.begin(&mut session.state.lock())?;
        }
        Ok(session)
    }

    /// Looks for what others have added.
    ///
    /// # Errors
    /// What the file system says.
    pub fn refresh(&self) -> Result<()> {
        let mut state = self.state.lock();
        // Others may have removed some.
        state.dirs.clear();
        state.container.refresh()
    }

    /// Opens a regular file; links are followed, as by [`Self::resolve`]. `mode` are the permission bits of one that is made.
    ///
    /// # Errors
    /// As open(2); `EEXIST` for a link that is to be made, and as [`Self::resolve`].
    pub fn open_file(&self, path: &[u8], flags: OpenFlags, mode: u16) -> Result<OpenFile> {
        check_path(path)?;
        let mut state = self.state.lock();
        let is_made = flags.create && flags.exclusive;
        // Whose content goes needs not be known.
        let Led { path, draft, entry } = match flags.create && flags.truncate && !is_made {
            true => state.lead(path, true)?,
            false => state.lead_or_look(path, !is_made)?,
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
                // It reads what may take its time.
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

    /// A file without content, in place of what there may be.
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

    /// Reads at an offset until `buffer` is full or the file ends; the number of bytes read.
    ///
    /// # Errors
    /// `EIO` when the bytes are damaged, and what the file system says.
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

    /// Shows all that is in a file, in order; between what is shown are zeros.
    ///
    /// # Errors
    /// As [`Self::read_at`], and what `show` says.
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

    /// Writes at an offset; at the end without one. Where the write has ended.
    ///
    /// # Errors
    /// `EBADF` when it is not open for writing, `EFBIG` beyond the largest size, and what the file system says.
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

    /// Cuts a file, or makes it longer by zeros.
    ///
    /// # Errors
    /// `EBADF` when it is not open for writing, `EFBIG` beyond the largest size.
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

    /// Closes a file. Its content is in the container then: safe when this process syncs.
    ///
    /// # Errors
    /// What the file system says of what was written and could not be put.
    pub fn close(&self, file: OpenFile) -> Result<()> {
        let OpenFile::Writer(WriterFile { draft: shared, .. }) = file else { return Ok(()) };
        let mut state = self.state.lock();
        let published = state.publish(&mut shared.lock());
        // One is the session's, one ours; what could not be put is kept, and tried again.
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

    /// Makes an open file safe, and all that was closed before.
    ///
    /// # Errors
    /// What the file system says.
    pub fn sync_file(&self, file: &OpenFile) -> Result<()> {
        let mut state = self.state.lock();
        if let OpenFile::Writer(WriterFile { draft, .. }) = file {
            state.publish(&mut draft.lock())?;
        }
        state.sync(&*self.fs)
    }

    /// What was closed is seen by others that look again. It is not safe by that.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write_out(&self) -> Result<()> {
        match &mut self.state.lock().writer {
            Some(writer) => writer.write_pending(),
            None => Ok(()),
        }
    }

    /// Has what was written out be on its way to the disk: a sync waits less then.
    pub fn start_write_back(&self) {
        if let Some(writer) = &self.state.lock().writer {
            writer.start_write_back();
        }
    }

    /// Makes all files safe, as they are now.
    ///
    /// # Errors
    /// What the file system says.
    pub fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.publish_all()?;
        state.sync(&*self.fs)
    }

    /// Ends: all is made safe. The last process that ends writes the index.
    ///
    /// # Errors
    /// What the file system says; of the index, too, without which all is there and opening takes longer.
    pub fn finish(self) -> Result<()> {
        self.end().map(drop)
    }

    /// Where the lanes of this process end.
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

    /// From the first change on, at the latest, this process has a lane.
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
                log::debug!("entries are written by who puts them: {fault}");
            }
            state.writer = Some(writer);
        }
        Ok(())
    }

    fn new_node(&self, kind: FileKind, mode: u16) -> Node {
        let now = wall();
        Node {
            kind,
            mode: mode & 0o7777 & !self.options.umask,
            uid: self.options.uid,
            gid: self.options.gid,
            rdev: 0,
            atime: now,
            mtime: now,
            target: Vec::new(),
            xattrs: Vec::new(),
            size: 0,
            content: Content::Here,
        }
    }
}
