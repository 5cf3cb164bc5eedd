//! The numbers of files and handles that an attachment got from the agent, which ends what is left of them.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode};
use tameike_core::{Errno, Result};

/// Most open files of an attachment, and most open directories. A client may withhold the kernel's releases.
const HANDLES_MAX: usize = 1 << 17;

/// An open file of an attachment.
#[derive(Clone, Copy)]
pub(super) struct OpenFile {
    pub file: FileNumber,
    pub mode: OpenMode,
}

#[derive(Default)]
struct State {
    /// The attachment has ended: nothing new is opened.
    is_over: bool,
    files: BTreeMap<FileNumber, u64>,
    handles: BTreeMap<HandleNumber, OpenFile>,
    directories: BTreeSet<HandleNumber>,
}

/// Files by their lookups, and handles.
#[derive(Default)]
pub(super) struct Numbers(Mutex<State>);

/// What an attachment has left when it ends.
pub(super) struct Left {
    pub files: Vec<(FileNumber, u64)>,
    pub handles: Vec<HandleNumber>,
    pub directories: Vec<HandleNumber>,
}

impl Numbers {
    /// Counts one more lookup of a file.
    pub(super) fn found(&self, file: FileNumber) {
        *self.0.lock().files.entry(file).or_default() += 1;
    }

    /// Removes lookups, and returns how many the attachment had of them.
    pub(super) fn forget(&self, file: FileNumber, count: u64) -> u64 {
        let mut state = self.0.lock();
        let Some(lookups) = state.files.get_mut(&file) else { return 0 };
        let removed = count.min(*lookups);
        *lookups -= removed;
        if *lookups == 0 {
            state.files.remove(&file);
        }
        removed
    }

    /// Fails with `ESTALE` unless the attachment has looked the file up.
    pub(super) fn check_file(&self, file: FileNumber) -> Result<()> {
        let is_known = file == FileNumber::ROOT || self.0.lock().files.contains_key(&file);
        if is_known { Ok(()) } else { Err(Errno::ESTALE.into()) }
    }

    /// Registers an open file. Returns false if the attachment has ended, or has too many.
    pub(super) fn opened(&self, handle: HandleNumber, open: OpenFile) -> bool {
        let mut state = self.0.lock();
        let may_open = !state.is_over && state.handles.len() < HANDLES_MAX;
        if may_open {
            state.handles.insert(handle, open);
        }
        may_open
    }

    pub(super) fn opened_directory(&self, handle: HandleNumber) -> bool {
        let mut state = self.0.lock();
        let may_open = !state.is_over && state.directories.len() < HANDLES_MAX;
        if may_open {
            state.directories.insert(handle);
        }
        may_open
    }

    /// Returns an open file, or `EBADF`.
    pub(super) fn open_file(&self, handle: HandleNumber) -> Result<OpenFile> {
        self.0.lock().handles.get(&handle).copied().ok_or_else(|| Errno::EBADF.into())
    }

    pub(super) fn check_directory(&self, handle: HandleNumber) -> Result<()> {
        if self.0.lock().directories.contains(&handle) { Ok(()) } else { Err(Errno::EBADF.into()) }
    }

    /// Returns whether the attachment has the file open for writing.
    pub(super) fn is_writing(&self, file: FileNumber) -> bool {
        self.0.lock().handles.values().any(|open| open.file == file && open.mode.write)
    }

    /// Removes an open file. Returns whether the attachment had it.
    pub(super) fn closed(&self, handle: HandleNumber) -> bool {
        self.0.lock().handles.remove(&handle).is_some()
    }

    pub(super) fn closed_directory(&self, handle: HandleNumber) -> bool {
        self.0.lock().directories.remove(&handle)
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().is_over
    }

    /// Opens nothing from now on.
    pub(super) fn end(&self) {
        self.0.lock().is_over = true;
    }

    /// Takes everything that is left.
    pub(super) fn take(&self) -> Left {
        let State { files, handles, directories, .. } =
            std::mem::replace(&mut *self.0.lock(), State { is_over: true, ..State::default() });
        Left {
            files: files.into_iter().collect(),
            handles: handles.into_keys().collect(),
            directories: directories.into_iter().collect(),
        }
    }
}
