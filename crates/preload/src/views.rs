//! The views in this process: their mount points, and the one of the working directory.

use crate::kernel;
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use tameike_core::ids::View as Kind;

const NONE: i32 = -1;
const UNKNOWN: u8 = u8::MAX;

#[derive(Debug)]
pub struct View {
    /// Mount point from the environment.
    mount: OnceLock<CString>,
    device: AtomicU64,
    /// `st_ino` of the working directory if it is in this view, else 0. One word per view, so that a thread never combines a view with
    /// a directory of another one while the working directory changes.
    working_directory: AtomicU64,
    /// Descriptor of the root, which descriptors of files duplicate.
    root: AtomicI32,
    index: AtomicU8,
}

static VIEWS: [View; Kind::ALL.len()] = [const { View::new() }; Kind::ALL.len()];

/// Returns all views, including those that the job does not have.
pub fn all() -> &'static [View] {
    &VIEWS
}

/// Returns a view by its number in this library.
pub fn by_number(number: usize) -> Option<&'static View> {
    VIEWS.get(number)
}

/// Reads mount points from the environment. Returns whether there is a view.
pub fn discover() -> bool {
    for (view, kind) in VIEWS.iter().zip(Kind::ALL) {
        if let Some(mount) = std::env::var_os(kind.variable()) {
            view.set_mount(&mount);
        }
    }
    note_working_directory();
    VIEWS.iter().any(|view| view.mount.get().is_some())
}

/// Leaves relative paths to the kernel, until [`note_working_directory`].
pub fn forget_working_directory() {
    for view in &VIEWS {
        view.working_directory.store(0, Ordering::SeqCst);
    }
}

/// Finds the view of the working directory.
pub fn note_working_directory() {
    forget_working_directory();
    if let Ok(found) = kernel::identity(libc::AT_FDCWD, c"")
        && let Some((_, view)) = on_device(found.device)
    {
        view.working_directory.store(found.inode, Ordering::SeqCst);
    }
}

/// Returns the view with this `st_dev`.
pub fn on_device(device: u64) -> Option<(usize, &'static View)> {
    let mut views = VIEWS.iter().enumerate();
    views.find(|(_, view)| view.mount.get().is_some() && view.device() == device)
}

/// Returns the view of the working directory, and the directory's `st_ino`.
pub fn working_directory() -> Option<(usize, u64)> {
    let mut inodes = VIEWS.iter().map(|view| view.working_directory.load(Ordering::SeqCst)).enumerate();
    inodes.find(|(_, inode)| *inode != 0)
}

impl View {
    const fn new() -> Self {
        Self {
            mount: OnceLock::new(),
            device: AtomicU64::new(0),
            working_directory: AtomicU64::new(0),
            root: AtomicI32::new(NONE),
            index: AtomicU8::new(UNKNOWN),
        }
    }

    fn set_mount(&self, mount: &OsStr) {
        let bytes = mount.as_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let Some(Ok(mount)) = bytes.get(..end).map(CString::new) else { return };
        if end < 2 || bytes.first() != Some(&b'/') {
            return;
        }
        if let Ok(found) = kernel::identity(libc::AT_FDCWD, &mount)
            && found.is_directory
        {
            self.device.store(found.device, Ordering::SeqCst);
            let _ = self.mount.set(mount);
        }
    }

    /// Returns the mount point, if the job has the view.
    pub fn mount(&self) -> Option<&CStr> {
        self.mount.get().map(CString::as_c_str)
    }

    pub fn device(&self) -> u64 {
        self.device.load(Ordering::Relaxed)
    }

    /// Returns the descriptor of the root, while the ring serves the view.
    pub fn root(&self) -> Result<i32, Errno> {
        Some(self.root.load(Ordering::SeqCst)).filter(|root| *root != NONE).ok_or(Errno::NOTCONN)
    }

    /// Returns the index in the ring, while the ring serves the view.
    pub fn index(&self) -> Option<u8> {
        Some(self.index.load(Ordering::SeqCst)).filter(|index| *index != UNKNOWN)
    }

    /// Records that the ring serves the view under `index`.
    pub fn serve(&self, root: i32, index: u8) {
        self.root.store(root, Ordering::SeqCst);
        self.index.store(index, Ordering::SeqCst);
    }

    /// Records that the ring no longer serves the view.
    pub fn withdraw(&self) {
        self.index.store(UNKNOWN, Ordering::SeqCst);
        self.root.store(NONE, Ordering::SeqCst);
    }
}
