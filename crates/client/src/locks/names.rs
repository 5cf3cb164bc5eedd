//! Locks on names of the shared file system, which serialise renames and removals of one name by several nodes.
//!
//! A node must notify the coordinator before it removes a file's last name. Which file has the name is certain only while no other node can
//! rename over it.

use super::{FileLocks, HandleNumber, Ticket, is_answer};
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::SLOT_COUNT;
use tameike_core::wire::lock::{FileLock, LockKind, LockRange};
use tameike_core::{Errno, InodeId, Result};

/// Longest wait for a name: the time limit for an unreachable node, which may be the holder.
const NAME_WAIT_MAX: Duration = Duration::from_secs(10);
/// Names are locked through no handle.
const NO_HANDLE: HandleNumber = HandleNumber(0);

/// Locks on names, released on drop.
pub(crate) struct NameLocks {
    locks: Arc<FileLocks>,
    owner: u64,
    names: Vec<InodeId>,
}

impl FileLocks {
    /// Waits until no other task holds one of these names, see [`InodeId::of_name`], and locks them. If the home of a name has failed, as
    /// all nodes learn, the home of the next slot holds the lock. A name whose home or holder is unreachable is not locked: most often, no
    /// other node wants it.
    pub(crate) async fn hold_names(self: &Arc<Self>, names: BTreeSet<InodeId>) -> Result<NameLocks> {
        let mut held = NameLocks { locks: self.clone(), owner: self.ticket().0, names: Vec::new() };
        // In ascending order: two nodes that lock several names cannot deadlock.
        for name in names {
            let (mut place, mut tried) = (name, BTreeSet::new());
            for _ in 0..SLOT_COUNT {
                if !tried.insert(self.cluster.primary(self.cluster.inode_home(place))) {
                    place = place.in_next_slot();
                    continue;
                }
                held.names.push(place);
                match self.hold_name(place, held.owner, self.ticket()).await {
                    Err(fault) if !is_answer(&fault) => place = place.in_next_slot(),
                    Err(fault) if fault.errno == Errno::EINTR => {
                        log::warn!(
                            "another node held a name for {NAME_WAIT_MAX:?}: continuing without the lock"
                        );
                        break;
                    }
                    taken => {
                        taken?;
                        break;
                    }
                }
            }
        }
        Ok(held)
    }

    async fn hold_name(self: &Arc<Self>, name: InodeId, owner: u64, ticket: Ticket) -> Result<()> {
        let lock =
            FileLock { owner: self.owner(owner), range: LockRange::ALL, kind: LockKind::Exclusive, pid: 0 };
        let taken = pin!(self.take(name, NO_HANDLE, lock, (ticket, true)));
        match select(taken, self.runtime.sleep(NAME_WAIT_MAX)).await {
            Either::Left((taken, _)) => taken,
            Either::Right(((), taken)) => {
                self.interrupt(ticket).await;
                taken.await
            }
        }
    }
}

impl Drop for NameLocks {
    fn drop(&mut self) {
        let (locks, owner, names) = (self.locks.clone(), self.owner, std::mem::take(&mut self.names));
        self.locks.runtime.spawn(async move {
            for name in names {
                locks.closed(name, owner).await;
            }
        });
    }
}
