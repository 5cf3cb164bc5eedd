//! The process's one connection to the agent: when it is made, who may use it, and when it ends for good.

use crate::{kernel, mounts, table, upgrade, views};
use rustix::process::Resource;
use std::cell::Cell;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use tameike_ring::client::{Answer, Client};

/// The variable that names the ring's socket.
const SOCKET_VARIABLE: &str = "TAMEIKE_RING";

/// There is no ring, or none any more. Also before the library's constructor has run: what is opened then is the kernel's.
const OFF: u8 = 0;
/// The first call on a view connects.
const READY: u8 = 1;
const CONNECTING: u8 = 2;
const ON: u8 = 3;

/// Not known, as no umask is.
const NO_UMASK: u32 = u32::MAX;
/// As no user is.
const NO_USER: u32 = u32::MAX;

static PHASE: AtomicU8 = AtomicU8::new(OFF);
static SOCKET: OnceLock<PathBuf> = OnceLock::new();
/// Of a `Client` that lives as long as the process.
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());
/// The process that may use it.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Calls of `vfork` under way: children that share this memory, but not the descriptors.
static BORROWERS: AtomicU32 = AtomicU32::new(0);
/// Signal handlers of this program leave by a jump.
static JUMPS: AtomicBool = AtomicBool::new(false);
static UMASK: AtomicU32 = AtomicU32::new(NO_UMASK);
/// The user of the process, while that is one. Calls that change it turn the ring off.
static USER: AtomicU32 = AtomicU32::new(NO_USER);

thread_local! {
    /// Calls of the thread under way, with those that a signal handler has interrupted, or left for good.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The connection during a call on it.
pub struct Call {
    client: &'static Client,
    _blocked: Option<kernel::SignalsBlocked>,
}

/// Learns from the environment whether there is a ring.
pub fn begin() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty()) else { return };
    if views::learn() && !has_size_limit() && SOCKET.set(socket.into()).is_ok() {
        PROCESS.store(kernel::process(), Ordering::SeqCst);
        USER.store(kernel::user().unwrap_or(NO_USER), Ordering::SeqCst);
        PHASE.store(READY, Ordering::SeqCst);
    }
}

/// Whether paths on views concern the ring.
#[inline]
pub fn is_of_use() -> bool {
    PHASE.load(Ordering::Acquire) != OFF
}

fn own_client() -> Option<&'static Client> {
    // SAFETY: null, or of a `Client` that was leaked; calls on it take shared references only.
    unsafe { CLIENT.load(Ordering::Acquire).as_ref() }
}

/// The connection, for one call.
pub fn client() -> Option<Call> {
    let client = own_client()?;
    let blocked = JUMPS.load(Ordering::Relaxed).then(kernel::SignalsBlocked::new);
    CALLS.with(|calls| calls.set(calls.get() + 1));
    Some(Call { client, _blocked: blocked })
}

/// The thread is about to jump. A call that is left for good takes a place on the ring with it: it stays with the first one, as from
/// then on signals are held back during calls.
pub fn note_jump() {
    if CALLS.with(Cell::get) > 0 {
        JUMPS.store(true, Ordering::Relaxed);
    }
}

/// Whether calls on paths can be answered. The connection is made when it is not there yet.
pub fn for_path() -> bool {
    let ours = || PROCESS.load(Ordering::SeqCst) == kernel::process();
    match PHASE.load(Ordering::SeqCst) {
        ON => {}
        READY if ours() && to_phase(READY, CONNECTING) => connect(),
        _ => return false,
    }
    own_client().is_some_and(|client| PHASE.load(Ordering::SeqCst) == ON && !client.is_broken() && ours())
}

/// As [`for_path`], for calls that change something: none once a view may only be read here.
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

/// Whether a file that was just opened may stay the ring's.
pub fn admits() -> bool {
    PHASE.load(Ordering::SeqCst) == ON
}

/// Ends a handle whose number is not the ring's any more; nobody is told how.
pub fn close_handle(handle: u64) {
    let _: Option<Answer<()>> = client().map(|client| client.close(handle));
}

/// Ends the ring for good: all its files become the kernel's, and no more come.
pub fn turn_off() {
    if !is_foreign() {
        PHASE.store(OFF, Ordering::SeqCst);
        upgrade::all();
        // They stay open, for calls under way; but the program may have their numbers.
        private_numbers()
            .filter_map(table::entry)
            .filter(|entry| entry.is_private())
            .for_each(table::Entry::free);
    }
}

/// In a child that shares this memory, but not the descriptors: nothing here is about it.
pub fn is_foreign() -> bool {
    BORROWERS.load(Ordering::SeqCst) > 0 && PROCESS.load(Ordering::SeqCst) != kernel::process()
}

/// A child is about to borrow the memory of this process.
pub fn lend() {
    BORROWERS.fetch_add(1, Ordering::SeqCst);
}

/// The child has given the memory back.
pub fn take_back() {
    BORROWERS.fetch_sub(1, Ordering::SeqCst);
}

/// In a child with its own copy of the memory and only the calling thread: it begins without a connection.
pub fn begin_as_child() {
    if PHASE.load(Ordering::SeqCst) == OFF {
        return;
    }
    for number in private_numbers() {
        // While a copy of the socket is open, the agent would take the parent for alive.
        kernel::close(number);
        table::entry(number).into_iter().for_each(table::Entry::free);
    }
    views::all().iter().for_each(views::View::withdraw);
    mounts::forget();
    table::reset();
    CLIENT.store(std::ptr::null_mut(), Ordering::SeqCst);
    BORROWERS.store(0, Ordering::SeqCst);
    PROCESS.store(kernel::process(), Ordering::SeqCst);
    PHASE.store(READY, Ordering::SeqCst);
}

/// The descriptors that the library keeps.
pub fn private_numbers() -> impl Iterator<Item = i32> {
    let roots = views::all().iter().filter_map(|view| view.root().ok());
    roots.chain(mounts::number()).chain(own_client().into_iter().flat_map(Client::descriptors))
}

/// The user for whom the process asks, where that is the same for all calls.
pub fn user() -> Option<u32> {
    Some(USER.load(Ordering::SeqCst)).filter(|user| *user != NO_USER)
}

/// The umask, where it is known.
pub fn umask() -> Option<u32> {
    Some(UMASK.load(Ordering::SeqCst)).filter(|umask| *umask != NO_UMASK)
}

/// The program has set its umask.
pub fn note_umask(mask: u32) {
    if !is_foreign() {
        UMASK.store(mask & 0o777, Ordering::SeqCst);
    }
}

impl Deref for Call {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.with(|calls| calls.set(calls.get() - 1));
    }
}

fn to_phase(from: u8, to: u8) -> bool {
    PHASE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

fn connect() {
    let errno = tameike_interpose::errno();
    let client = SOCKET.get().and_then(|socket| Client::connect(socket, reserve).ok());
    let next = match client {
        Some(client) if watch_mounts() && serve(&client) => {
            learn_umask();
            CLIENT.store(Box::into_raw(Box::new(client)), Ordering::SeqCst);
            ON
        }
        _ => OFF,
    };
    // Turned off meanwhile: it stays so.
    to_phase(CONNECTING, next);
    tameike_interpose::set_errno(errno);
}

/// Keeps a number from the program.
fn reserve(number: i32) {
    table::entry(number).into_iter().for_each(table::Entry::reserve);
}

/// Has the kernel tell of changes of mounts, before the mounts are looked at.
fn watch_mounts() -> bool {
    let Ok(number) = mounts::watch(lowest_private()) else { return false };
    reserve(number);
    true
}

/// Finds the views of the environment among those that the agent serves.
fn serve(client: &Client) -> bool {
    let served = client.views().iter().zip(0_u8..);
    let mut any = false;
    for (served, index) in served {
        let same = |view: &&views::View| view.mount().is_some_and(|mount| mount.to_bytes() == served.mount);
        if let Some(view) = views::all().iter().find(same)
            && let Some(root) = open_root(view)
        {
            view.serve(root, index);
            any = true;
        }
    }
    any
}

/// A descriptor of the view's root, out of the way of the program's.
fn open_root(view: &views::View) -> Option<i32> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let root = kernel::open(libc::AT_FDCWD, view.mount()?, flags).ok()?;
    let root = kernel::move_up(root, lowest_private());
    let found = kernel::identity(root, c"").ok();
    let is_view = found.is_some_and(|found| found.device == view.device()) && kernel::is_writable(root);
    let entry = table::entry(root).filter(|_| is_view);
    match entry {
        Some(entry) => {
            entry.reserve();
            Some(root)
        }
        None => {
            kernel::close(root);
            None
        }
    }
}

/// From where on the library's own descriptors are: high, but within what every process may have without a larger table.
fn lowest_private() -> i32 {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1024).min(1024);
    i32::try_from(limit).map_or(0, |limit| (limit - 16).max(0))
}

/// Whether files may have a certain size only, and a signal tells of more: the kernel's to say.
fn has_size_limit() -> bool {
    rustix::process::getrlimit(Resource::Fsize).current.is_some()
}

/// Asking the kernel for the umask would be setting it, if only for a moment.
fn learn_umask() {
    let mut text = [0_u8; 2048];
    let Ok(text) = kernel::read_start(c"/proc/self/status", &mut text) else { return };
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(mask) = lines.find_map(|line| line.strip_prefix(b"Umask:\t")) else { return };
    let digit = |mask: u32, byte: &u8| mask * 8 + u32::from(byte.wrapping_sub(b'0') & 7);
    UMASK.store(mask.iter().take(4).fold(0, digit), Ordering::SeqCst);
}
