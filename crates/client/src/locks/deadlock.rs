//! Whether a wait for a lock would last for ever, found by following from home to home who waits for whom.
//!
//! Nobody has the whole picture: the home of a file knows who is in whose way there, the node of an owner for which
//! files that one waits. A chain that leads back to its start is followed a second time, and believed if it is the
//! same: each owner on it waited all the time, so none can have given anything back meanwhile. Owners that keep
//! several threads waiting are taken to need all of them, as the kernel does.
//!
//! All links being locks held, the wait fails. When the first one is only the courtesy to somebody who came before,
//! the wait goes ahead of that one.

use super::{FileLocks, out_of_turn};
use std::collections::BTreeSet;
use std::time::Duration;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::lock::{Blocker, LockOwner, LockReply, LockRequest, WaitEnd};
use tameike_core::wire::{Reply, Request};
use tameike_core::{InodeId, Result};

/// Owners that are asked about before a chain is given up as too long.
const OWNERS_MAX: usize = 1024;

/// By how much each owner on a chain is ahead of the next one in ending it.
const HEAD_START: Duration = Duration::from_millis(50);

/// The links of a chain, from the one that waits back to itself.
type Chain = Vec<Blocker>;

/// How long an owner leaves it to others to end a chain: all may find it at the same time, and one is enough.
fn head_start(chain: &[Blocker], owner: LockOwner) -> Duration {
    let others = chain.iter().filter(|link| link.owner > owner).count();
    HEAD_START * u32::try_from(others).unwrap_or(u32::MAX)
}

impl FileLocks {
    /// How the wait of an owner for a lock of a file must end, if it would last for ever.
    pub(super) async fn deadlock(&self, waiter: (InodeId, LockOwner)) -> Option<WaitEnd> {
        // Nobody waits for who has nothing, but out of courtesy; then that one goes ahead.
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

    /// A chain that leads back to its start. Who cannot be asked is taken not to wait: a node or home that is
    /// gone, or will be asked again.
    async fn chain(&self, (inode, start): (InodeId, LockOwner), only_held: bool) -> Option<Chain> {
        let mut seen = BTreeSet::from([start]);
        let mut open = vec![(inode, start, Chain::new())];
        while let Some((inode, owner, chain)) = open.pop() {
            let blockers = self.blockers(inode, owner).await.unwrap_or_default();
            for blocker in blockers.into_iter().filter(|blocker| blocker.holds || !only_held) {
                let chain = [&chain[..], &[blocker]].concat();
                if blocker.owner == start {
                    return Some(chain);
                }
                if seen.len() < OWNERS_MAX && seen.insert(blocker.owner) {
                    let waits = self.waits_elsewhere(blocker.owner).await.unwrap_or_default();
                    open.extend(waits.into_iter().map(|inode| (inode, blocker.owner, chain.clone())));
                }
            }
        }
        None
    }

    async fn blockers(&self, inode: InodeId, owner: LockOwner) -> Result<Vec<Blocker>> {
        match self.ask(inode, LockRequest::Blockers { inode, owner }).await? {
            LockReply::Blockers(blockers) => Ok(blockers),
            other => Err(out_of_turn(&other)),
        }
    }

    async fn waits_elsewhere(&self, owner: LockOwner) -> Result<Vec<InodeId>> {
        match self.call(owner.node, Request::Client(ClientRequest::LockWaits { owner })).await? {
            Reply::Client(ClientReply::Waits(inodes)) => Ok(inodes),
            other => Err(out_of_turn(&other)),
        }
    }
}
