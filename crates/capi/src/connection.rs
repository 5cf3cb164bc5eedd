//! The process's connection to the agent of its node, made at the first call that can use it.

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Pid, Uid, geteuid, getpid};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_ring::client::path::{ROOT, below, is_plain, without_dots};
use tameike_ring::client::{Client, Start, mounts};

/// The variable that names the ring's socket.
const SOCKET_VARIABLE: &str = "TAMEIKE_RING";

/// A connection, which lives as long as the process: files of it may do so, too.
pub struct Connection {
    pub client: Client,
    /// The effective user with which it was made, and by whose rights the agent answers.
    user: Uid,
    /// The roots of the views in the kernel, by [`Start::view`]; none where this process does not see it, or may only read.
    roots: Vec<Option<OwnedFd>>,
    /// By which the kernel tells of changes of mounts.
    mounts: OwnedFd,
    /// A view has come to be for reading only: what is opened or changed from now on is the kernel's affair.
    withdrawn: AtomicBool,
}

/// Whether there was a connection to be had, and of which process.
static CONNECTION: Mutex<Option<(Pid, Option<&'static Connection>)>> = Mutex::new(None);

/// The connection, unless there is none to be had.
pub fn get() -> Option<&'static Connection> {
    let mut connection = CONNECTION.lock();
    let process = getpid();
    let made = match *connection {
        // A child has its own.
        Some((owner, made)) if owner == process => made,
        _ => {
            let made = connect();
            *connection = Some((process, made));
            made
        }
    };
    // With another user the kernel is asked: it knows what that one may do.
    let made = made.filter(|connection| connection.user == geteuid());
    made.filter(|connection| !connection.client.is_broken() && !connection.withdrawn.load(Ordering::Relaxed))
}

fn connect() -> Option<&'static Connection> {
    // SAFETY: it reads a value that the kernel has given to the process.
    let has_rights_of_others = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_rights_of_others {
        // Who started the program has chosen its environment.
        return None;
    }
    let socket = std::env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty())?;
    let user = geteuid();
    let client = Client::connect(Path::new(&socket), |_| {}).ok()?;
    // Before the mounts are looked at.
    let mounts = mounts::watch().ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |mount: &[u8]| {
        let root = rustix::fs::openat(CWD, mount, flags, Mode::empty()).ok()?;
        mounts::is_writable(root.as_fd()).then_some(root)
    };
    let roots = client.views().iter().map(|view| open(&view.mount)).collect();
    let withdrawn = AtomicBool::new(false);
    Some(Box::leak(Box::new(Connection { client, user, roots, mounts, withdrawn })))
}

impl Connection {
    /// The root of a view in the kernel.
    pub fn root(&self, view: u8) -> Option<&OwnedFd> {
        self.roots.get(usize::from(view))?.as_ref()
    }

    /// Where an absolute path is on a view; `None` leaves it to the kernel.
    fn find<'a>(&self, path: &'a [u8]) -> Option<(Start, &'a [u8])> {
        let views = self.client.views().iter().zip(0..);
        let (path, view) =
            views.filter_map(|(view, index)| Some((below(path, &view.mount)?, index))).next()?;
        self.root(view).filter(|_| is_plain(path))?;
        Some((Start { view, dir: ROOT }, path))
    }
}

/// The connection for a call that changes something, unless a view may only be read here by now.
fn get_to_change() -> Option<&'static Connection> {
    let connection = get()?;
    if mounts::have_changed(connection.mounts.as_fd()) != Ok(false) {
        let mut roots = connection.roots.iter().flatten();
        let may_change = roots.all(|root| mounts::is_writable(root.as_fd()));
        connection.withdrawn.fetch_or(!may_change, Ordering::Relaxed);
    }
    get()
}

/// Asks the ring about `path` where that is on a view.
pub fn on_path<T>(path: &[u8], ask: impl FnOnce(&'static Connection, Start, &[u8]) -> T) -> Option<T> {
    ask_by(get()?, path, ask)
}

/// As [`on_path`], for a call that changes something.
pub fn on_path_to_change<T>(
    path: &[u8],
    ask: impl FnOnce(&'static Connection, Start, &[u8]) -> T,
) -> Option<T> {
    ask_by(get_to_change()?, path, ask)
}

fn ask_by<T>(
    connection: &'static Connection,
    path: &[u8],
    ask: impl FnOnce(&'static Connection, Start, &[u8]) -> T,
) -> Option<T> {
    if path.len() >= PATH_SIZE_MAX {
        return None;
    }
    if path.first() == Some(&b'/') {
        let (start, path) = connection.find(path)?;
        return Some(ask(connection, start, path));
    }
    // The kernel tells the working directory without links and dots.
    let directory = std::env::current_dir().ok()?;
    let path = [directory.as_os_str().as_bytes(), b"/", without_dots(path)].concat();
    let (start, path) = connection.find(&path)?;
    Some(ask(connection, start, path))
}
