//! Packed files that are open, by number and by path.

use super::entries::packed_stat;
use super::entry_log::EntryLog;
use super::succession::is_removed;
use std::collections::BTreeMap;
use tameike_container::format::external::{ContentLocation, Identity};
use tameike_container::session::draft::{Draft, Reading};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::wall;

/// Bytes that open files buffer in memory, at most.
const BUFFERED_MAX: usize = 32 << 20;

/// An open file.
pub struct OpenFile {
    draft: Draft,
    identity: Identity,
    opens: u64,
    /// The address of the last entry that this job has put for it.
    put_at: Option<u64>,
}

impl OpenFile {
    /// A file that is opened once.
    pub fn new(draft: Draft, identity: Identity, put_at: Option<u64>) -> Self {
        Self { draft, identity, opens: 1, put_at }
    }

    /// Its attributes.
    pub fn stat(&self) -> PackedStat {
        let nlink = u32::from(self.path().is_some_and(|path| !is_removed(path)));
        packed_stat(&self.identity, &self.draft.node, self.draft.size, nlink)
    }

    /// Its path, unless it was removed.
    pub fn path(&self) -> Option<&[u8]> {
        self.draft.path.as_deref()
    }

    /// Where its content is.
    pub fn location(&self) -> ContentLocation {
        self.identity.location
    }

    /// The address of the last entry that this job has put for it.
    pub fn put_at(&self) -> Option<u64> {
        self.put_at
    }

    /// Whether the next close is the last one.
    pub fn is_last_open(&self) -> bool {
        self.opens == 1
    }

    fn touch(&mut self) {
        self.identity.ctime = wall().max(self.identity.ctime);
        self.draft.node.mtime = self.identity.ctime;
    }

    /// Begins a read, which ends without the log.
    pub fn begin_read(&mut self, log: &mut EntryLog, offset: u64, length: usize) -> Result<Reading> {
        log.begin_read(&mut self.draft, offset, length)
    }

    /// Writes, at the end of the file without an offset. `buffered` is what all open files buffer. Fails with `EFBIG` beyond the largest
    /// size.
    pub fn write(
        &mut self,
        log: &mut EntryLog,
        bytes: &[u8],
        offset: Option<u64>,
        buffered: usize,
    ) -> Result<()> {
        let writer = log.writer()?;
        let offset = offset.unwrap_or(self.draft.size);
        offset.checked_add(bytes.len() as u64).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        self.draft.write(writer, bytes, offset)?;
        self.touch();
        if buffered + bytes.len() > BUFFERED_MAX { self.draft.flush(writer) } else { Ok(()) }
    }

    /// Sets the size.
    pub fn truncate(&mut self, size: u64) {
        self.draft.truncate(size);
        self.touch();
    }

    /// Changes attributes.
    pub fn change(&mut self, change: &AttrChange) {
        let now = wall();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let node = &mut self.draft.node;
        node.mode = change.mode.map_or(node.mode, |mode| mode & 0o7777);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.atime = change.atime.map_or(node.atime, time);
        node.mtime = change.mtime.map_or(node.mtime, time);
        self.identity.ctime = now.max(self.identity.ctime);
        self.draft.is_changed = true;
    }

    /// Moves the content to another location.
    pub fn set_location(&mut self, location: ContentLocation) {
        self.identity.location = location;
        self.draft.is_changed = true;
    }

    /// Drops the content in the container: an external file has it.
    pub fn drop_content(&mut self) {
        if let Some(path) = self.draft.path.clone() {
            self.draft = Draft::new(path, self.draft.node.clone());
        }
    }

    /// Whether it has changes that its entry lacks. A file without a path has no entry.
    pub fn is_unpublished(&self) -> bool {
        self.draft.is_changed && self.draft.path.is_some()
    }

    /// Puts an entry of its present state.
    pub fn publish(&mut self, log: &mut EntryLog) -> Result<()> {
        let Some(path) = self.draft.path.clone() else { return Ok(()) };
        self.draft.node.target = self.identity.encode();
        self.put_at = Some(log.put_draft(path, &mut self.draft)?);
        Ok(())
    }
}

/// The open files.
#[derive(Default)]
pub struct OpenFiles {
    files: BTreeMap<u64, OpenFile>,
    /// The numbers of those that have a path.
    paths: BTreeMap<Vec<u8>, u64>,
}

impl OpenFiles {
    /// An open file. Fails with `ESTALE` if it is not open.
    pub fn get(&mut self, number: u64) -> Result<&mut OpenFile> {
        let unknown = || Fault::new(Errno::ESTALE, "the packer was restarted and has no such open file");
        self.files.get_mut(&number).ok_or_else(unknown)
    }

    /// The open file at a path.
    pub fn at(&self, path: &[u8]) -> Option<&OpenFile> {
        self.paths.get(path).and_then(|number| self.files.get(number))
    }

    /// The number of the open file at a path.
    pub fn number_at(&self, path: &[u8]) -> Option<u64> {
        self.paths.get(path).copied()
    }

    /// Whether a file is open.
    pub fn is_open(&self, number: u64) -> bool {
        self.files.contains_key(&number)
    }

    /// The numbers of all open files.
    pub fn numbers(&self) -> Vec<u64> {
        self.files.keys().copied().collect()
    }

    /// Attributes of the open files that have no path any more.
    pub fn nameless(&self) -> impl Iterator<Item = PackedStat> {
        self.files.values().filter(|file| file.path().is_none()).map(OpenFile::stat)
    }

    /// Bytes that open files buffer.
    pub fn buffered(&self) -> usize {
        self.files.values().map(|file| file.draft.buffered()).sum()
    }

    /// Counts another open of the file at a path, and returns its attributes; nothing where it is not open.
    pub fn reopen(&mut self, path: &[u8]) -> Option<PackedStat> {
        self.reopen_number(*self.paths.get(path)?)
    }

    /// Counts another open of a file, and returns its attributes; nothing where it is not open.
    pub fn reopen_number(&mut self, number: u64) -> Option<PackedStat> {
        let file = self.files.get_mut(&number)?;
        file.opens += 1;
        Some(file.stat())
    }

    /// Adds a file that was just opened, and returns its attributes.
    pub fn insert(&mut self, file: OpenFile) -> PackedStat {
        let stat = file.stat();
        if let Some(path) = file.path() {
            self.paths.insert(path.to_vec(), stat.number);
        }
        self.files.insert(stat.number, file);
        stat
    }

    /// Ends one open. Returns the attributes of a file without a path that this closed.
    pub fn close(&mut self, number: u64) -> Option<PackedStat> {
        match self.files.get_mut(&number) {
            Some(file) if file.opens > 1 => {
                file.opens -= 1;
                None
            }
            _ => {
                let file = self.files.remove(&number)?;
                if let Some(path) = file.path() {
                    self.paths.remove(path);
                    return None;
                }
                Some(file.stat())
            }
        }
    }

    /// Takes the path from the open file there, which stays open without one.
    pub fn remove_path(&mut self, path: &[u8]) {
        if let Some(file) = self.paths.remove(path).and_then(|number| self.files.get_mut(&number)) {
            file.draft.path = None;
        }
    }

    /// Gives the open file at a path another path.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some(number) = self.paths.remove(from) else { return };
        self.paths.insert(to.to_vec(), number);
        if let Some(file) = self.files.get_mut(&number) {
            file.draft.path = Some(to.to_vec());
        }
    }
}
