//! Names of the shared file system that a node renames or removes, held against other nodes that do so at the same time.
//!
//! A coordinator must be told of a file before its last name goes. Which file that is, is known only as long as nobody else
//! gives the name to another one.

use super::{FileLocks, HandleNumber, Ticket, is_answer};
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::lock::{FileLock, LockKind, LockRange};
use tameike_core::{Errno, InodeId, Result};

/// How long a name is waited for: as long as for a node that cannot be reached, which may be the one that holds it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Names are held through no handle.
const NO_HANDLE: HandleNumber = HandleNumber(0);

/// Names, until dropped.
pub(crate) struct HeldNames {
    locks: Arc<FileLocks>,
    owner: u64,
    names: Vec<InodeId>,
}

impl FileLocks {
    /// Waits until no other task holds one of these names, see [`InodeId::of_name`], and holds them. A name whose home is dead, as all nodes
    /// learn, is held by the home of the next slot. One whose home or holder cannot be reached is not held: most often, nobody else wants it.
    ///
    /// # Errors
    /// What the home says.
    pub(crate) async fn hold_names(self: &Arc<Self>, names: BTreeSet<InodeId>) -> Result<HeldNames> {
        let mut held = HeldNames { locks: self.clone(), owner: self.ticket().0, names: Vec::new() };
        // In their order: two nodes that hold several never wait for each other.
        for name in names {
            let mut place = name;
            for _ in self.cluster.device_nodes() {
                held.names.push(place);
                match self.hold_name(place, held.owner, self.ticket()).await {
                    Err(fault) if !is_answer(&fault) => place = place.in_next_slot(),
                    Err(fault) if fault.errno == Errno::EINTR => {
                        log::warn!(
                            "a name was held by another node for {PATIENCE:?}: it is no longer waited for"
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
        match select(taken, self.runtime.sleep(PATIENCE)).await {
            Either::Left((taken, _)) => taken,
            Either::Right(((), taken)) => {
                self.interrupt(ticket).await;
                taken.await
            }
        }
    }
}

impl Drop for HeldNames {
    fn drop(&mut self) {
        let (locks, owner, names) = (self.locks.clone(), self.owner, std::mem::take(&mut self.names));
        self.locks.runtime.spawn(async move {
            for name in names {
                locks.closed(name, owner).await;
            }
        });
    }
}
