//! The views as this process sees them: where they are mounted, and whether it is in one.

use crate::kernel;
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use tameike_core::ids::View as Kind;

/// No number; no index.
const NONE: i32 = -1;
const UNKNOWN: u8 = u8::MAX;

/// One view.
#[derive(Debug)]
pub struct View {
    /// Where the environment says that it is mounted.
    mount: OnceLock<CString>,
    device: AtomicU64,
    /// `st_ino` of the working directory when it is on this view; else 0. One word for each view, so that nobody who looks
    /// while another thread goes from one view to another sees a directory of the other one.
    working_directory: AtomicU64,
    /// A descriptor of the root, which those of files are duplicates of.
    root: AtomicI32,
    /// Its index in the ring.
    index: AtomicU8,
}

static VIEWS: [View; Kind::ALL.len()] = [const { View::new() }; Kind::ALL.len()];

/// All views, also those that are not there.
pub fn all() -> &'static [View] {
    &VIEWS
}

/// The view by the library's own number.
pub fn by_number(number: usize) -> Option<&'static View> {
    VIEWS.get(number)
}

/// Learns from the environment where the views are; whether there is one.
pub fn learn() -> bool {
    for (view, kind) in VIEWS.iter().zip(Kind::ALL) {
        if let Some(mount) = std::env::var_os(kind.variable()) {
            view.learn(&mount);
        }
    }
    note_working_directory();
    VIEWS.iter().any(|view| view.mount.get().is_some())
}

/// Relative paths are the kernel's, until [`note_working_directory`].
pub fn forget_working_directory() {
    for view in &VIEWS {
        view.working_directory.store(0, Ordering::SeqCst);
    }
}

/// Learns which view the working directory is on.
pub fn note_working_directory() {
    forget_working_directory();
    if let Ok(found) = kernel::identity(libc::AT_FDCWD, c"")
        && let Some((_, view)) = on_device(found.device)
    {
        view.working_directory.store(found.inode, Ordering::SeqCst);
    }
}

/// The view with this `st_dev`.
pub fn on_device(device: u64) -> Option<(usize, &'static View)> {
    let mut views = VIEWS.iter().enumerate();
    views.find(|(_, view)| view.mount.get().is_some() && view.device() == device)
}

/// The view that the working directory is on, and its `st_ino`.
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

    fn learn(&self, mount: &OsStr) {
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

    /// Where it is mounted, when it is there.
    pub fn mount(&self) -> Option<&CStr> {
        self.mount.get().map(CString::as_c_str)
    }

    /// Its `st_dev`.
    pub fn device(&self) -> u64 {
        self.device.load(Ordering::Relaxed)
    }

    /// The number of the descriptor of its root, while it is served.
    pub fn root(&self) -> Result<i32, Errno> {
        Some(self.root.load(Ordering::SeqCst)).filter(|root| *root != NONE).ok_or(Errno::NOTCONN)
    }

    /// Its index in the ring, while it is served.
    pub fn index(&self) -> Option<u8> {
        Some(self.index.load(Ordering::SeqCst)).filter(|index| *index != UNKNOWN)
    }

    /// It is served under `index`.
    pub fn serve(&self, root: i32, index: u8) {
        self.root.store(root, Ordering::SeqCst);
        self.index.store(index, Ordering::SeqCst);
    }

    /// It is not served any more.
    pub fn withdraw(&self) {
        self.index.store(UNKNOWN, Ordering::SeqCst);
        self.root.store(NONE, Ordering::SeqCst);
    }
}
