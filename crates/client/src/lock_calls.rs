//! Lock calls of programs on handles of a view: the data flushes and invalidations that POSIX requires, around [`FileLocks`].

use crate::locks::{FileLocks, LockCall, Ticket};
use crate::types::HandleNumber;
use crate::vfs::Vfs;
use std::sync::Arc;
use tameike_core::wire::lock::{FileLock, LockKind};
use tameike_core::{Errno, Generation, Result};

/// The lock that conflicts with one on a handle, if any.
///
/// # Errors
/// `EOPNOTSUPP` if the kernel handles the view's locks; `EHOSTDOWN` if the file's home is unreachable.
pub async fn test<V: Vfs>(vfs: &V, handle: HandleNumber, call: LockCall) -> Result<Option<FileLock>> {
    let (locks, inode) = (locks_of(vfs)?, vfs.locked_inode(handle)?);
    let lock = FileLock {
        owner: locks.owner(call.owner),
        range: call.range,
        kind: call.kind.unwrap_or(LockKind::Shared),
        pid: call.pid,
    };
    let conflict = locks.test(inode, lock).await?;
    let local = locks.local();
    // Processes of other nodes have no number here.
    Ok(conflict.map(|lock| if lock.owner.node == local { lock } else { FileLock { pid: 0, ..lock } }))
}

/// Locks or unlocks bytes through a handle. A write by one owner before its unlock is visible to the next owner on any node: before an
/// unlock or a change of a lock, this node flushes its writes to the homes; after a lock, it revalidates its cache. Returns a generation if
/// the kernel's pages of the file may be stale: the caller must drop them before the program continues.
///
/// # Errors
/// `EAGAIN` if a lock conflicts and `wait` is `None`; `EINTR` after [`FileLocks::interrupt`]; `EDEADLK`; `EHOSTDOWN` if the file's home is
/// unreachable: then the bytes are not locked.
pub async fn set<V: Vfs>(
    vfs: &V,
    handle: HandleNumber,
    call: LockCall,
    (ticket, wait): (Ticket, bool),
) -> Result<Option<Generation>> {
    let (locks, inode) = (locks_of(vfs)?, vfs.locked_inode(handle)?);
    let LockCall { owner, range, kind, pid } = call;
    let published = vfs.publish(handle).await;
    let Some(kind) = kind else {
        locks.unlock(inode, owner, range).await?;
        return published.map(|()| None);
    };
    published?;
    let lock = FileLock { owner: locks.owner(owner), range, kind, pid };
    locks.take(inode, handle, lock, (ticket, wait)).await?;
    let stale = vfs.revalidate(handle).await;
    if stale.is_err() {
        // A caller that gets an error assumes that it has no lock.
        locks.unlock(inode, owner, range).await?;
    }
    stale
}

/// Handles the close of a descriptor of a handle's file by a lock owner.
pub async fn closed<V: Vfs>(vfs: &V, handle: HandleNumber, owner: u64) {
    if let (Some(locks), Ok(inode)) = (vfs.locks(), vfs.locked_inode(handle)) {
        locks.closed(inode, owner).await;
    }
}

/// Releases a handle, then the locks that end with it, after the writes under them have reached the homes.
pub async fn release<V: Vfs>(vfs: &V, handle: HandleNumber) {
    let inode = vfs.locked_inode(handle);
    vfs.release(handle).await;
    if let (Some(locks), Ok(inode)) = (vfs.locks(), inode) {
        locks.released(inode, handle).await;
    }
}

fn locks_of<V: Vfs>(vfs: &V) -> Result<&Arc<FileLocks>> {
    vfs.locks().ok_or_else(|| Errno::EOPNOTSUPP.into())
}
