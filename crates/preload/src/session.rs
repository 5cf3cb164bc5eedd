//! Start and end of the process's use of the ring: when it connects, and when it upgrades all files for good.

use crate::{connection, kernel, mounts, table, upgrade, views};
use rustix::process::Resource;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tameike_ring::client::Client;

/// The variable that names the ring's socket.
const SOCKET_VARIABLE: &str = "TAMEIKE_RING";

const NO_UMASK: u32 = u32::MAX;
const NO_USER: u32 = u32::MAX;

static SOCKET: OnceLock<PathBuf> = OnceLock::new();
static UMASK: AtomicU32 = AtomicU32::new(NO_UMASK);
/// User of the process, if its real and effective users are the same. Calls that change it turn the ring off.
static USER: AtomicU32 = AtomicU32::new(NO_USER);

/// Enables the ring if the environment names one.
pub fn begin() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty()) else { return };
    if views::discover() && !has_size_limit() && SOCKET.set(socket.into()).is_ok() {
        USER.store(kernel::user().unwrap_or(NO_USER), Ordering::SeqCst);
        connection::allow();
    }
}

/// Returns whether the ring can serve calls on paths. The first call connects.
pub fn for_path() -> bool {
    connection::is_usable(connect)
}

/// As [`for_path`], for modifying calls. If a view has become read-only here, turns the ring off.
pub fn for_change() -> bool {
    if !for_path() {
        return false;
    }
    let allowed = mounts::allow_changes();
    if !allowed {
        turn_off();
    }
    allowed
}

/// Turns the ring off for good: upgrades all files, and opens no new ones.
pub fn turn_off() {
    if !connection::is_vfork_child() {
        connection::end();
        upgrade::all();
        // They stay open for calls in flight, but the program may replace them.
        private_numbers()
            .filter_map(table::entry)
            .filter(|entry| entry.is_private())
            .for_each(table::Entry::free);
    }
}

/// Resets the library in a child with a copy of the memory and only the calling thread: it begins without a connection.
pub fn begin_as_child() {
    if !connection::is_enabled() {
        return;
    }
    for number in private_numbers() {
        // While a copy of the socket is open, the agent would consider the parent alive.
        kernel::close(number);
        table::entry(number).into_iter().for_each(table::Entry::free);
    }
    views::all().iter().for_each(views::View::withdraw);
    mounts::forget();
    table::reset();
    connection::forget();
}

/// Returns the descriptors of the library.
pub fn private_numbers() -> impl Iterator<Item = i32> {
    let roots = views::all().iter().filter_map(|view| view.root().ok());
    roots.chain(mounts::number()).chain(connection::descriptors())
}

/// Returns the user of the process, if it is known and the same for all calls.
pub fn user() -> Option<u32> {
    Some(USER.load(Ordering::SeqCst)).filter(|user| *user != NO_USER)
}

/// Returns the umask, if it is known.
pub fn umask() -> Option<u32> {
    Some(UMASK.load(Ordering::SeqCst)).filter(|umask| *umask != NO_UMASK)
}

/// Records a new umask of the program.
pub fn note_umask(mask: u32) {
    if !connection::is_vfork_child() {
        UMASK.store(mask & 0o777, Ordering::SeqCst);
    }
}

fn connect() -> Option<Box<Client>> {
    let errno = tameike_interpose::errno();
    let client = SOCKET.get().and_then(|socket| Client::connect(socket, reserve).ok());
    let client = client.filter(|client| watch_mounts() && serve(client)).map(Box::new);
    if client.is_some() {
        learn_umask();
    }
    tameike_interpose::set_errno(errno);
    client
}

fn reserve(number: i32) {
    table::entry(number).into_iter().for_each(table::Entry::reserve);
}

/// Starts to watch mounts, before they are examined.
fn watch_mounts() -> bool {
    mounts::watch(lowest_private()).map(reserve).is_ok()
}

/// Matches the views of the environment with those that the agent serves.
fn serve(client: &Client) -> bool {
    let served = client.views().iter().zip(0_u8..);
    let mut any = false;
    for (served, index) in served {
        let same = |view: &&views::View| view.mount().is_some_and(|mount| mount.to_bytes() == served);
        if let Some(view) = views::all().iter().find(same)
            && let Some(root) = open_root(view)
        {
            view.serve(root, index);
            any = true;
        }
    }
    any
}

/// Opens the view's root at a number out of the way of the program's.
fn open_root(view: &views::View) -> Option<i32> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let root = kernel::open(libc::AT_FDCWD, view.mount()?, flags).ok()?;
    let root = kernel::move_up(root, lowest_private());
    let found = kernel::identity(root, c"").ok();
    let is_view = found.is_some_and(|found| found.device == view.device()) && kernel::is_writable(root);
    let Some(entry) = table::entry(root).filter(|_| is_view) else {
        kernel::close(root);
        return None;
    };
    entry.reserve();
    Some(root)
}

/// Lowest number of the library's descriptors: high, but small enough not to grow the process's descriptor table.
fn lowest_private() -> i32 {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1024).min(1024);
    i32::try_from(limit).map_or(0, |limit| (limit - 16).max(0))
}

/// Returns whether the process has a file size limit, which the kernel must enforce with a signal.
fn has_size_limit() -> bool {
    rustix::process::getrlimit(Resource::Fsize).current.is_some()
}

/// Reads the umask from `/proc`, as `umask()` would change it for a moment.
fn learn_umask() {
    let mut text = [0_u8; 2048];
    let Ok(text) = kernel::read_start(c"/proc/self/status", &mut text) else { return };
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(mask) = lines.find_map(|line| line.strip_prefix(b"Umask:\t")) else { return };
    let digit = |mask: u32, byte: &u8| mask * 8 + u32::from(byte.wrapping_sub(b'0') & 7);
    UMASK.store(mask.iter().take(4).fold(0, digit), Ordering::SeqCst);
}
