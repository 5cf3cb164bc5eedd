//! Lock calls of programs on handles of a view: what POSIX requires of data before and after a lock, around [`FileLocks`].

use crate::locks::{FileLocks, LockCall, Ticket};
use crate::types::HandleNumber;
use crate::vfs::Vfs;
use std::sync::Arc;
use tameike_core::wire::lock::{FileLock, LockKind};
use tameike_core::{Errno, Generation, Result};

/// The lock that conflicts with one on a handle, if any.
///
/// # Errors
/// `EOPNOTSUPP` when the view leaves locks to the kernel; `EHOSTDOWN` when the file's home cannot be reached.
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

/// Takes a lock through a handle, or gives it back. What one owner writes before it gives a lock back, the next one
/// reads, on any node: before a lock is given back, or changed, what this node has written is at its homes; after it
/// is taken, what this node has cached is true. Tells a version when the kernel's pages of the file may be of another
/// one: as long as they are not dropped, the lock is of no use.
///
/// # Errors
/// `EAGAIN` when a lock is in the way and `wait` is `None`; `EINTR` after [`FileLocks::interrupt`]; `EDEADLK`;
/// `EHOSTDOWN` when the file's home cannot be reached: then the bytes are not locked.
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
        locks.give_back(inode, owner, range).await?;
        return published.map(|()| None);
    };
    published?;
    let lock = FileLock { owner: locks.owner(owner), range, kind, pid };
    locks.take(inode, handle, lock, (ticket, wait)).await?;
    let stale = vfs.revalidate(handle).await;
    if stale.is_err() {
        // Who is told of a failure does not believe to have a lock.
        locks.give_back(inode, owner, range).await?;
    }
    stale
}

/// An owner has closed a descriptor of the file of a handle.
pub async fn closed<V: Vfs>(vfs: &V, handle: HandleNumber, owner: u64) {
    if let (Some(locks), Ok(inode)) = (vfs.locks(), vfs.locked_inode(handle)) {
        locks.closed(inode, owner).await;
    }
}

/// Releases a handle, and the locks that end with it once what was written under them is at its homes.
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
