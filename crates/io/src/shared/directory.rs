//! An open directory of a [`PosixTree`](super::PosixTree).

use super::attributes::StatContext;
use super::{FileStat, NamedFile, SharedDir, attributes, translate};
use parking_lot::Mutex;
use rustix::fs::{RawDir, RawDirEntry, SeekFrom};
use rustix::io::Errno as Os;
use std::os::fd::{AsFd, OwnedFd};
use tameike_core::{InodeId, Result};

/// Buffer of one `getdents`: about a thousand entries with short names.
const READ_SIZE: usize = 32 << 10;

/// A descriptor, and its path for messages.
pub(super) struct PosixDir {
    descriptor: OwnedFd,
    path: Vec<u8>,
    context: StatContext,
    /// Device of the directory's files, as [`FileStat::device`].
    device: u64,
    /// The cursor of the descriptor. Locked during reads.
    position: Mutex<u64>,
}

impl PosixDir {
    pub(super) fn new(descriptor: OwnedFd, path: &[u8], context: StatContext) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(&descriptor)?;
        let device = if stat.st_dev == context.root_device { 0 } else { stat.st_dev };
        Ok(Self { descriptor, path: path.to_vec(), context, device, position: Mutex::new(0) })
    }

    /// Reads one buffer of entries. True if it was the last.
    fn read_piece(&self, position: &mut u64) -> rustix::io::Result<(Vec<NamedFile>, bool)> {
        let (mut names, mut is_end) = (Vec::new(), true);
        let mut buffer = Vec::with_capacity(READ_SIZE);
        let mut piece = RawDir::new(&self.descriptor, buffer.spare_capacity_mut());
        while let Some(entry) = piece.next() {
            let entry = entry?;
            is_end = false;
            *position = entry.next_entry_cookie();
            names.extend(self.named(&entry)?);
            if piece.is_buffer_empty() {
                break;
            }
        }
        Ok((names, is_end))
    }

    /// The file of an entry; `None` if it has been removed.
    fn named(&self, entry: &RawDirEntry<'_>) -> rustix::io::Result<Option<NamedFile>> {
        let name = entry.file_name();
        let kind = match translate::kind(entry.file_type()) {
            Some(kind) => kind,
            None => match attributes::at(self.context, self.descriptor.as_fd(), name.to_bytes()) {
                Ok(stat) => stat.kind,
                Err(Os::NOENT) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let inode = InodeId::cached(self.device, entry.ino());
        Ok(Some(NamedFile { name: name.to_bytes().to_vec(), inode, kind, next: entry.next_entry_cookie() }))
    }
}

impl SharedDir for PosixDir {
    fn stat(&self) -> Result<FileStat> {
        attributes::open(self.context, &self.descriptor)
            .map_err(|error| translate::fault("stat", &self.path, error))
    }

    fn read(&self, after: u64) -> Result<Vec<NamedFile>> {
        let mut position = self.position.lock();
        let mut read = || {
            // A read from the start lists the directory again, with entries added meanwhile.
            if after == 0 || after != *position {
                rustix::fs::seek(&self.descriptor, SeekFrom::Start(after))?;
                *position = after;
            }
            loop {
                let (names, is_end) = self.read_piece(&mut position)?;
                if is_end || !names.is_empty() {
                    return Ok(names);
                }
            }
        };
        read().map_err(|error| translate::fault("read the directory", &self.path, error))
    }
}
