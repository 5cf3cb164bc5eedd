//! The process's connection to its node's agent, established at the first call that can use it.

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Pid, Uid, geteuid, getpid};
use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_ring::client::path::{ROOT, below, is_plain, without_dots};
use tameike_ring::client::{Client, Start, mounts};

/// The variable that names the ring's socket.
const SOCKET_VARIABLE: &str = "TAMEIKE_RING";

/// A connection. It lives as long as the process, as files may do.
pub struct Connection {
    pub client: Client,
    /// Effective user at the time of connection, with whose rights the agent serves it.
    user: Uid,
    /// Roots of the views in the kernel, by [`Start::view`]; `None` if this process cannot see the view, or only read it.
    roots: Vec<Option<OwnedFd>>,
    /// Watch of mounts.
    mounts: OwnedFd,
    /// A view has become read-only: the kernel serves all later calls.
    withdrawn: AtomicBool,
}

/// Result of connecting, and the process that it belongs to.
static CONNECTION: Mutex<Option<(Pid, Option<&'static Connection>)>> = Mutex::new(None);

/// Returns the connection, if it is usable. Connects at the first call.
pub fn get() -> Option<&'static Connection> {
    let mut connection = CONNECTION.lock();
    let process = getpid();
    let made = match *connection {
        // A child connects itself.
        Some((owner, made)) if owner == process => made,
        _ => {
            let made = connect();
            *connection = Some((process, made));
            made
        }
    };
    // After a change of the user, the kernel must check permissions.
    let made = made.filter(|connection| connection.user == geteuid());
    made.filter(|connection| !connection.client.is_broken() && !connection.withdrawn.load(Ordering::Relaxed))
}

fn connect() -> Option<&'static Connection> {
    // SAFETY: reads a value of the auxiliary vector.
    let has_rights_of_others = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_rights_of_others {
        // The environment of a set-user-ID program is not trusted.
        return None;
    }
    let socket = std::env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty())?;
    let user = geteuid();
    let client = Client::connect(Path::new(&socket), |_| {}).ok()?;
    // Before the mounts are examined.
    let mounts = mounts::watch().ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |mount: &[u8]| {
        let root = rustix::fs::openat(CWD, mount, flags, Mode::empty()).ok()?;
        mounts::is_writable(root.as_fd()).then_some(root)
    };
    let roots = client.views().iter().map(|mount| open(mount)).collect();
    let withdrawn = AtomicBool::new(false);
    Some(Box::leak(Box::new(Connection { client, user, roots, mounts, withdrawn })))
}

impl Connection {
    /// Returns the root of a view in the kernel.
    pub fn root(&self, view: u8) -> Option<&OwnedFd> {
        self.roots.get(usize::from(view))?.as_ref()
    }

    /// Finds the view of an absolute path; `None` leaves it to the kernel.
    fn find<'a>(&self, path: &'a [u8]) -> Option<(Start, &'a [u8])> {
        let views = self.client.views().iter().zip(0..);
        let (path, view) = views.filter_map(|(mount, index)| Some((below(path, mount)?, index))).next()?;
        self.root(view).filter(|_| is_plain(path))?;
        Some((Start { view, dir: ROOT }, path))
    }
}

/// Returns the connection for a modifying call, unless a view has become read-only.
pub fn get_for_change() -> Option<&'static Connection> {
    let connection = get()?;
    if mounts::have_changed(connection.mounts.as_fd()) != Ok(false) {
        let mut roots = connection.roots.iter().flatten();
        let may_change = roots.all(|root| mounts::is_writable(root.as_fd()));
        connection.withdrawn.fetch_or(!may_change, Ordering::Relaxed);
    }
    get()
}

/// Calls `ask` with the view of `path`; `None` if it is in no view, or there is no connection.
pub fn on_path<T>(
    connection: Option<&'static Connection>,
    path: &[u8],
    ask: impl FnOnce(&'static Connection, Start, &[u8]) -> Option<T>,
) -> Option<T> {
    let connection = connection?;
    if path.len() >= PATH_SIZE_MAX {
        return None;
    }
    let path = if path.starts_with(b"/") {
        Cow::Borrowed(path)
    } else {
        // The kernel returns the working directory without links and dots.
        let directory = std::env::current_dir().ok()?;
        [directory.as_os_str().as_bytes(), b"/", without_dots(path)].concat().into()
    };
    let (start, path) = connection.find(&path)?;
    ask(connection, start, path)
}
