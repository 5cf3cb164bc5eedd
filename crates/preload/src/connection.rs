//! The process's connection to the agent: its phase, and the calls that use it.
//!
//! [`crate::session`] decides when to connect, and when the connection ends for good.

use crate::kernel;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use tameike_ring::client::{Answer, Client};

/// There is no ring, it has ended, or the library's constructor has not run: the kernel serves all files.
const OFF: u8 = 0;
/// The first call on a view connects.
const READY: u8 = 1;
const CONNECTING: u8 = 2;
const ON: u8 = 3;

static PHASE: AtomicU8 = AtomicU8::new(OFF);
/// Points to a `Client` that lives as long as the process.
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());
/// Process that may use the connection.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Calls of `vfork` in progress: their children share this memory, but not the descriptors.
static VFORKS: AtomicU32 = AtomicU32::new(0);
/// Signal handlers of this program leave by a jump.
static JUMPS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Calls of the thread in progress, including those that a signal handler has interrupted or left for good.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The connection during a call on it.
pub struct Call {
    client: &'static Client,
    _blocked: Option<kernel::SignalsBlocked>,
}

pub fn allow() {
    PROCESS.store(kernel::process(), Ordering::SeqCst);
    PHASE.store(READY, Ordering::SeqCst);
}

/// Ends the connection for good: no new calls use it.
pub fn end() {
    PHASE.store(OFF, Ordering::SeqCst);
}

/// Forgets the connection in a child process with a copy of the memory, which may connect itself.
pub fn forget() {
    CLIENT.store(std::ptr::null_mut(), Ordering::SeqCst);
    VFORKS.store(0, Ordering::SeqCst);
    allow();
}

/// Returns whether new calls can use the ring. Connects at the first call; if that fails, the ring is off for good.
pub fn is_usable(connect: fn() -> Option<Box<Client>>) -> bool {
    let ours = || PROCESS.load(Ordering::SeqCst) == kernel::process();
    match PHASE.load(Ordering::SeqCst) {
        ON => {}
        READY if ours() && to_phase(READY, CONNECTING) => {
            let next = match connect() {
                Some(client) => {
                    CLIENT.store(Box::into_raw(client), Ordering::SeqCst);
                    ON
                }
                None => OFF,
            };
            // If another thread has turned the ring off since, it stays off.
            to_phase(CONNECTING, next);
        }
        _ => return false,
    }
    own_client().is_some_and(|client| PHASE.load(Ordering::SeqCst) == ON && !client.is_broken() && ours())
}

pub fn descriptors() -> impl Iterator<Item = i32> {
    own_client().into_iter().flat_map(Client::descriptors)
}

/// Returns whether the process uses the ring, or may connect.
#[inline]
pub fn is_enabled() -> bool {
    PHASE.load(Ordering::Acquire) != OFF
}

fn own_client() -> Option<&'static Client> {
    // SAFETY: null, or of a `Client` that was leaked; calls on it take shared references only.
    unsafe { CLIENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the connection for one call.
pub fn client() -> Option<Call> {
    let client = own_client()?;
    let blocked = JUMPS.load(Ordering::Relaxed).then(kernel::SignalsBlocked::new);
    CALLS.with(|calls| calls.set(calls.get() + 1));
    Some(Call { client, _blocked: blocked })
}

/// Records a jump of the thread. A call that is left for good occupies a slot of the ring; from the first such call on, the library
/// blocks signals during calls.
pub fn note_jump() {
    if CALLS.with(Cell::get) > 0 {
        JUMPS.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a file that was just opened may stay a ring file.
pub fn is_on() -> bool {
    PHASE.load(Ordering::SeqCst) == ON
}

/// Closes a handle without a descriptor, ignoring the reply.
pub fn close_handle(handle: u64) {
    let _: Option<Answer<()>> = client().map(|client| client.close(handle));
}

/// Returns true in a child of `vfork`, which shares this memory but not the descriptors: the library must ignore it.
pub fn is_vfork_child() -> bool {
    VFORKS.load(Ordering::SeqCst) > 0 && PROCESS.load(Ordering::SeqCst) != kernel::process()
}

pub fn begin_vfork() {
    VFORKS.fetch_add(1, Ordering::SeqCst);
}

pub fn end_vfork() {
    VFORKS.fetch_sub(1, Ordering::SeqCst);
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
