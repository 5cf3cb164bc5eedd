//! Distributed deadlock detection for waits on locks, along the wait-for graph from home to home.
//!
//! No node knows the whole graph. The home of a file knows which owners block which there; the node of an owner knows the files for whose
//! locks that owner waits. A cycle is followed a second time and counts if it is unchanged: then every owner on it has waited all the time,
//! so none can have released a lock. An owner with several waiting threads counts as waiting for all of them, as in the kernel.
//!
//! If all links of the cycle are held locks, the wait fails with `EDEADLK`. If the first link is only an earlier request in the queue, the
//! wait overtakes that request.

use super::FileLocks;
use std::collections::BTreeSet;
use std::time::Duration;
use tameike_core::InodeId;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::lock::{Blocker, LockOwner, LockReply, LockRequest, WaitEnd};
use tameike_core::wire::{Reply, Request};

/// Largest number of owners in a search; a longer cycle is not found.
const OWNERS_MAX: usize = 1024;

/// Delay between successive owners of a cycle in breaking it.
const HEAD_START: Duration = Duration::from_millis(50);

/// The links of a cycle, from the waiting owner back to itself.
type Chain = Vec<Blocker>;

/// How long an owner leaves it to the other owners to break a cycle: all may find it at the same time, and one is enough.
fn head_start(chain: &[Blocker], owner: LockOwner) -> Duration {
    let others = chain.iter().filter(|link| link.owner > owner).count();
    HEAD_START * u32::try_from(others).unwrap_or(u32::MAX)
}

impl FileLocks {
    /// Returns how to end an owner's wait for a lock of a file, if it is part of a deadlock.
    pub(super) async fn deadlock(&self, waiter: (InodeId, LockOwner)) -> Option<WaitEnd> {
        // An owner without locks blocks other requests only by its place in the queue; those requests then overtake it.
        if !self.has_locks(waiter.1) {
            return None;
        }
        for (end, only_held) in [(WaitEnd::Deadlock, true), (WaitEnd::Overtake, false)] {
            if let Some(chain) = self.chain(waiter, only_held).await
                && (only_held || !chain[0].holds)
            {
                self.runtime.sleep(head_start(&chain, waiter.1)).await;
                if self.chain(waiter, only_held).await.as_ref() == Some(&chain) {
                    return Some(end);
                }
            }
        }
        None
    }

    /// Finds a cycle through the waiting owner. A node or home that does not answer counts as not waiting: it has failed, or a later search
    /// asks it.
    async fn chain(&self, (inode, start): (InodeId, LockOwner), only_held: bool) -> Option<Chain> {
        let mut seen = BTreeSet::from([start]);
        let mut open = vec![(inode, start, Chain::new())];
        while let Some((inode, owner, chain)) = open.pop() {
            let Ok(LockReply::Blockers(blockers)) =
                self.ask(inode, LockRequest::Blockers { inode, owner }).await
            else {
                continue;
            };
            for blocker in blockers.into_iter().filter(|blocker| blocker.holds || !only_held) {
                let chain = [&chain[..], &[blocker]].concat();
                if blocker.owner == start {
                    return Some(chain);
                }
                if seen.len() < OWNERS_MAX && seen.insert(blocker.owner) {
                    let owner = blocker.owner;
                    let request = Request::Client(ClientRequest::LockWaits { owner });
                    if let Ok(Reply::Client(ClientReply::Waits(inodes))) =
                        self.call(owner.node, request).await
                    {
                        open.extend(inodes.into_iter().map(|inode| (inode, owner, chain.clone())));
                    }
                }
            }
        }
        None
    }
}
