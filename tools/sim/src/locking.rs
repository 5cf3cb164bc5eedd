//! What the kernel and the door do of a program's `flock` or `fcntl`: name the owner, send its signals on while it waits.

use crate::kernel::Kernel;
use crate::op::SLOTS;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_client::lock_calls;
use tameike_client::locks::LockCall;
use tameike_client::vfs::{HandleNumber, Vfs};
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::{Errno, Result, View};
use tameike_io::Runtime;

/// Between two looks at the signals of a program that waits.
const SIGNAL_LOOK: Duration = Duration::from_millis(100);
/// Processes that share the slots of a node and view among them.
const PROCESSES: u8 = 2;
/// Open file descriptions have numbers beyond those of processes.
const DESCRIPTIONS: u64 = 1 << 32;

/// The owner of `fcntl` locks that are taken through a slot: its process. That of the checks is one of its own, as a
/// process loses its locks of a file when it closes any descriptor of it.
pub fn process_of(slot: u8) -> u64 {
    if slot < SLOTS { 1 + u64::from(slot % PROCESSES) } else { 0 }
}

/// The owner of a lock: a process where bytes are locked, an open file description where the whole file is.
pub fn owner_of(slot: u8, handle: HandleNumber, range: Option<LockRange>) -> u64 {
    if range.is_some() { process_of(slot) } else { DESCRIPTIONS + handle.0 }
}

/// What the kernel calls an owner in a view: in each another number.
fn number_of(owner: u64, view: View) -> u64 {
    owner | (view.index() as u64) << 48
}

/// A program that makes a call.
pub struct Caller {
    /// Its node's time.
    pub runtime: Runtime,
    /// Where its file is.
    pub view: View,
    /// What the kernel of its node has cached of that.
    pub kernel: Arc<Kernel>,
    /// Whether it was sent a signal: if it waits, it is to wait no longer.
    pub signalled: Arc<AtomicBool>,
}

/// Takes a lock, or with `None` gives it back.
///
/// # Errors
/// What the program is told.
pub async fn set<V: Vfs>(
    vfs: &V,
    caller: &Caller,
    (slot, handle): (u8, HandleNumber),
    range: Option<LockRange>,
    (kind, wait): (Option<LockKind>, bool),
) -> Result<()> {
    let locks = vfs.locks().ok_or(Errno::EOPNOTSUPP)?;
    let (owner, pid) = (owner_of(slot, handle, range), process_of(slot) as u32);
    let owner = number_of(owner, caller.view);
    let call = LockCall { owner, range: range.unwrap_or(LockRange::ALL), kind, pid };
    let ticket = locks.ticket();
    let mut set = pin!(lock_calls::set(vfs, handle, call, (ticket, wait)));
    let stale = loop {
        match select(set, caller.runtime.sleep(SIGNAL_LOOK)).await {
            Either::Left((done, _)) => break done?,
            Either::Right(((), waiting)) => set = waiting,
        }
        if wait && caller.signalled.load(Ordering::Relaxed) {
            match select(set, pin!(locks.interrupt(ticket))).await {
                Either::Left((done, _)) => break done?,
                Either::Right(((), waiting)) => set = waiting,
            }
        }
    };
    if let Some(generation) = stale {
        caller.kernel.drop_stale(vfs, handle, generation);
    }
    Ok(())
}

/// A program closes a descriptor.
///
/// # Errors
/// What it is told.
pub async fn close<V: Vfs>(vfs: &V, caller: &Caller, slot: u8, handle: HandleNumber) -> Result<()> {
    let flushed = vfs.flush(handle).await;
    lock_calls::closed(vfs, handle, number_of(process_of(slot), caller.view)).await;
    lock_calls::release(vfs, handle).await;
    flushed
}
