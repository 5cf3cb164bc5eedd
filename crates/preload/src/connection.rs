//! The process's one connection to the agent: in which phase it is, and which calls may use it.
//!
//! [`crate::session`] decides when the connection is made, and when it ends for good.

use crate::kernel;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use tameike_ring::client::{Answer, Client};

/// There is no ring, or none any more. Also before the library's constructor has run: what is opened then is the kernel's.
const OFF: u8 = 0;
/// The first call on a view connects.
const READY: u8 = 1;
const CONNECTING: u8 = 2;
const ON: u8 = 3;

static PHASE: AtomicU8 = AtomicU8::new(OFF);
/// Of a `Client` that lives as long as the process.
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());
/// The process that may use it.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Calls of `vfork` under way: children that share this memory, but not the descriptors.
static BORROWERS: AtomicU32 = AtomicU32::new(0);
/// Signal handlers of this program leave by a jump.
static JUMPS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Calls of the thread under way, with those that a signal handler has interrupted, or left for good.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The connection during a call on it.
pub struct Call {
    client: &'static Client,
    _blocked: Option<kernel::SignalsBlocked>,
}

/// This process may connect from now on.
pub fn allow() {
    PROCESS.store(kernel::process(), Ordering::SeqCst);
    PHASE.store(READY, Ordering::SeqCst);
}

/// Ends the connection for good: no new calls begin on it.
pub fn end() {
    PHASE.store(OFF, Ordering::SeqCst);
}

/// Forgets the connection, in a child process with its own copy of the memory: the child may make one of its own.
pub fn forget() {
    CLIENT.store(std::ptr::null_mut(), Ordering::SeqCst);
    BORROWERS.store(0, Ordering::SeqCst);
    allow();
}

/// Whether new calls can be answered. If the process has not connected yet, `connect` makes the connection; without one, the ring
/// is off for good.
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
            // If it was turned off meanwhile, it stays off.
            to_phase(CONNECTING, next);
        }
        _ => return false,
    }
    own_client().is_some_and(|client| PHASE.load(Ordering::SeqCst) == ON && !client.is_broken() && ours())
}

/// The descriptors of the connection.
pub fn descriptors() -> impl Iterator<Item = i32> {
    own_client().into_iter().flat_map(Client::descriptors)
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

/// Whether a file that was just opened may stay the ring's.
pub fn admits() -> bool {
    PHASE.load(Ordering::SeqCst) == ON
}

/// Closes a handle whose number is not the ring's any more; the answer is ignored.
pub fn close_handle(handle: u64) {
    let _: Option<Answer<()>> = client().map(|client| client.close(handle));
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
