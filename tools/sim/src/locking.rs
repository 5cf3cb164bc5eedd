//! `flock` and `fcntl` in the kernel and the FUSE frontend: names the lock owner, forwards signals while a call waits.

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

/// How often a waiting call checks for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
/// Processes that share the slots of a node and view.
const PROCESSES: u8 = 2;
/// Owner numbers of open file descriptions begin here, above those of processes.
const DESCRIPTIONS: u64 = 1 << 32;

/// Returns the owner of `fcntl` locks taken through a slot: its process. Checks use a separate process, since a process loses its
/// locks of a file when it closes any descriptor of it.
pub fn process_of(slot: u8) -> u64 {
    if slot < SLOTS { 1 + u64::from(slot % PROCESSES) } else { 0 }
}

/// Returns the owner of a lock: a process for a byte range, an open file description for `flock`.
pub fn owner_of(slot: u8, handle: HandleNumber, range: Option<LockRange>) -> u64 {
    if range.is_some() { process_of(slot) } else { DESCRIPTIONS + handle.0 }
}

/// Returns the kernel's number of an owner, which differs between views.
fn number_of(owner: u64, view: View) -> u64 {
    owner | (view.index() as u64) << 48
}

/// The process that makes a call.
pub struct Caller {
    /// The runtime of its node.
    pub runtime: Runtime,
    /// The view of its file.
    pub view: View,
    /// The kernel's caches of that view.
    pub kernel: Arc<Kernel>,
    /// Set when a signal interrupts its wait.
    pub signalled: Arc<AtomicBool>,
}

/// Acquires a lock; with `None` as `kind`, releases it.
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
        match select(set, caller.runtime.sleep(SIGNAL_POLL)).await {
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

/// Closes a descriptor.
pub async fn close<V: Vfs>(vfs: &V, caller: &Caller, slot: u8, handle: HandleNumber) -> Result<()> {
    let flushed = vfs.flush(handle).await;
    lock_calls::closed(vfs, handle, number_of(process_of(slot), caller.view)).await;
    lock_calls::release(vfs, handle).await;
    flushed
}
