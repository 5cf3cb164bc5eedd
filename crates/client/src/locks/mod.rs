//! Client part of `fcntl` and `flock` locks: requests to the homes of files, and release at close.
//!
//! The file's home holds the lock state. This module records what the release needs: the handles through which an owner has locked a file.
//! A close of any descriptor releases all `fcntl` locks of the process; the kernel then names the owner. `flock` and `F_OFD_SETLK` locks
//! end with the open file description, whose end the kernel reports as the release of its handle. The kernel's requests do not distinguish
//! the two kinds. So a lock ends with a close by its owner, or with the last handle through which the owner has locked.
//!
//! The client withdraws a request that got no reply, and repeats that until the home answers. Until then the owner gets no lock of the
//! file, so that the withdrawal cannot release a later lock.
//!
//! It also records the granted locks, which a node reclaims from the next primary of a home. A lock that is being released does not count: the
//! home may have released it already.

mod deadlock;
mod names;
#[cfg(test)]
mod tests;

use crate::replies::unexpected_reply;
use crate::types::HandleNumber;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::lock_table::LockTable;
use tameike_core::wire::lock::{FileLock, LockKind, LockOwner, LockRange, LockReply, LockRequest, WaitEnd};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, FaultKind, HomeId, InodeId, NodeId, Result};
use tameike_fabric::{Destination, PeerEvent, Rpc};
use tameike_io::Runtime;

/// Delay before the first deadlock check of a waiting request; doubles with each check.
const DEADLOCK_CHECK_MIN: Duration = Duration::from_millis(20);
const DEADLOCK_CHECK_MAX: Duration = Duration::from_secs(5);
/// Pauses between attempts to reach an unreachable home.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A lock request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockCall {
    /// The kernel's identifier of the owner.
    pub owner: u64,
    /// The byte range.
    pub range: LockRange,
    /// Shared or exclusive; `None` unlocks.
    pub kind: Option<LockKind>,
    /// The calling process.
    pub pid: u32,
}

/// Identifies a lock request that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// State of an owner for one file.
#[derive(Default)]
struct Owned {
    /// Handles through which the owner has locked since its last close.
    handles: BTreeSet<HandleNumber>,
    /// Number of withdrawals in progress.
    doubts: u32,
}

#[derive(Default)]
struct State {
    owners: BTreeMap<(InodeId, u64), Owned>,
    /// Locks that owners hold, by file.
    held: BTreeMap<InodeId, LockTable>,
    /// Requests that wait.
    waits: BTreeMap<Ticket, (InodeId, u64)>,
    /// Nodes whose agents have failed; the locks of the files with homes there are lost.
    failed: BTreeSet<NodeId>,
}

impl State {
    /// The owner no longer holds these bytes.
    fn unlocked(&mut self, inode: InodeId, owner: LockOwner, range: LockRange) {
        if let Some(held) = self.held.get_mut(&inode) {
            held.unlock(owner, range);
            if held.is_empty() {
                self.held.remove(&inode);
            }
        }
    }
}

/// The locks of one view of this node.
pub struct FileLocks {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    state: Mutex<State>,
    last_ticket: AtomicU64,
}

impl FileLocks {
    pub(crate) fn local(&self) -> NodeId {
        self.rpc.local()
    }

    /// Starts without locks.
    pub fn new(runtime: Runtime, cluster: Arc<Cluster>, rpc: Arc<dyn Rpc>) -> Arc<Self> {
        // Other views of the node, and later incarnations of this one, start from other numbers.
        let last_ticket = AtomicU64::new(runtime.random_u64());
        Arc::new(Self { runtime, cluster, rpc, state: Mutex::default(), last_ticket })
    }

    /// Allocates the identifier of a request.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.last_ticket.fetch_add(1, Ordering::Relaxed))
    }

    /// Records that another node's agent has come up, failed or become unreachable.
    pub fn peer(&self, node: NodeId, event: PeerEvent) {
        let failed = &mut self.state.lock().failed;
        match event {
            PeerEvent::Up => failed.remove(&node),
            PeerEvent::Failed => failed.insert(node),
            PeerEvent::Unreachable => false,
        };
    }

    /// Returns true if an owner has locks of any file, as far as this node knows.
    fn has_locks(&self, owner: LockOwner) -> bool {
        self.state.lock().held.values().any(|held| held.has(owner))
    }

    /// The locks that owners of this node hold of files whose home is `wanted`. Call it after the home map has changed: locks that a home grants
    /// under the earlier map are then either among them, or requested again.
    pub fn held(&self, wanted: impl Fn(HomeId) -> bool) -> Vec<(InodeId, FileLock)> {
        let state = self.state.lock();
        let files = state.held.iter().filter(|(inode, _)| wanted(self.cluster.inode_home(**inode)));
        files.flat_map(|(inode, held)| held.iter().map(|lock| (*inode, *lock))).collect()
    }

    /// Records that the next primary has refused to let these locks be reclaimed: this node was excluded, and another one has taken them.
    pub fn lost(&self, locks: &[(InodeId, FileLock)]) {
        let mut state = self.state.lock();
        for (inode, lock) in locks {
            let is_own = |held: &FileLock| held.owner == lock.owner && held.range.overlaps(lock.range);
            if state.held.get(inode).is_some_and(|held| held.iter().any(is_own)) {
                log::error!("process {} has lost its lock of {inode} to another node", lock.pid);
                state.unlocked(*inode, lock.owner, lock.range);
            }
        }
    }

    /// The files for whose locks an owner waits.
    pub fn waits_of(&self, owner: LockOwner) -> Vec<InodeId> {
        let state = self.state.lock();
        let own = state.waits.values().filter(|(_, number)| *number == owner.number);
        own.map(|(inode, _)| *inode).collect()
    }

    pub(crate) fn owner(&self, number: u64) -> LockOwner {
        LockOwner { node: self.rpc.local(), number }
    }

    async fn call(&self, to: impl Into<Destination>, request: Request) -> Result<Reply> {
        Ok(self.rpc.call(to.into(), request, None, None).await?.reply)
    }

    async fn ask(&self, inode: InodeId, request: LockRequest) -> Result<LockReply> {
        match self.call(self.cluster.inode_home(inode), Request::Lock(request)).await? {
            Reply::Lock(reply) => Ok(reply),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(crate) async fn test(&self, inode: InodeId, lock: FileLock) -> Result<Option<FileLock>> {
        match self.ask(inode, LockRequest::Test { inode, lock }).await? {
            LockReply::Conflict(conflict) => Ok(conflict),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(crate) async fn take(
        self: &Arc<Self>,
        inode: InodeId,
        handle: HandleNumber,
        lock: FileLock,
        (ticket, wait): (Ticket, bool),
    ) -> Result<()> {
        {
            let mut state = self.state.lock();
            let owned = state.owners.entry((inode, lock.owner.number)).or_default();
            if owned.doubts > 0 {
                let problem =
                    "an earlier lock request has not been withdrawn yet: the file's home is unreachable";
                return Err(Fault::new(Errno::EHOSTDOWN, problem));
            }
            owned.handles.insert(handle);
            if wait {
                state.waits.insert(ticket, (inode, lock.owner.number));
            }
        }
        let taken = self.request(inode, handle, lock, (ticket, wait)).await;
        if wait {
            self.state.lock().waits.remove(&ticket);
        }
        if taken.as_ref().is_err_and(|fault| !is_answer(fault)) {
            self.withdraw(inode, (lock.owner, lock.range), ticket);
        }
        taken
    }

    /// Requests a lock, and records it.
    async fn request(
        &self,
        inode: InodeId,
        handle: HandleNumber,
        lock: FileLock,
        (ticket, wait): (Ticket, bool),
    ) -> Result<()> {
        loop {
            let epoch = self.cluster.epoch();
            let answer = self.ask(inode, LockRequest::Lock { inode, lock, ticket: ticket.0, wait });
            match wait {
                true => self.wait((inode, lock.owner), ticket, answer).await?,
                false => answer.await?,
            };
            let mut state = self.state.lock();
            // An earlier primary may have granted the lock, after it was listed for the next one: that one decides. It grants a lock again that
            // the owner has.
            if self.cluster.keeps_primaries_of(epoch) {
                // A close in another thread may have cleared the owner's handles since; the owner has a lock now. If it was released meanwhile, it
                // ends with the handle.
                state.owners.entry((inode, lock.owner.number)).or_default().handles.insert(handle);
                state.held.entry(inode).or_default().take(lock);
                return Ok(());
            }
        }
    }

    /// Waits for the reply to a lock request, and checks for deadlocks meanwhile.
    async fn wait(
        &self,
        waiter: (InodeId, LockOwner),
        ticket: Ticket,
        answer: impl Future<Output = Result<LockReply>>,
    ) -> Result<LockReply> {
        let mut answer = pin!(answer);
        let mut pause = DEADLOCK_CHECK_MIN;
        loop {
            match select(answer, self.runtime.sleep(pause)).await {
                Either::Left((answer, _)) => return answer,
                Either::Right(((), waiting)) => answer = waiting,
            }
            pause = (pause * 2).min(DEADLOCK_CHECK_MAX);
            let end = match select(answer, pin!(self.deadlock(waiter))).await {
                Either::Left((answer, _)) => return answer,
                Either::Right((end, waiting)) => {
                    answer = waiting;
                    end
                }
            };
            if let Some(end) = end {
                let ended = self.end_wait(waiter.0, ticket, end);
                match select(answer, pin!(ended)).await {
                    Either::Left((answer, _)) => return answer,
                    Either::Right(((), waiting)) => answer = waiting,
                }
            }
        }
    }

    /// Asks the home to end the wait of a request; the request's reply then carries the outcome.
    pub async fn interrupt(&self, ticket: Ticket) {
        let waiting = self.state.lock().waits.get(&ticket).copied();
        if let Some((inode, _)) = waiting {
            self.end_wait(inode, ticket, WaitEnd::Interrupted).await;
        }
    }

    async fn end_wait(&self, inode: InodeId, ticket: Ticket, end: WaitEnd) {
        if let Err(fault) = self.ask(inode, LockRequest::EndWait { inode, ticket: ticket.0, end }).await {
            // The end of the request itself informs the home if this message fails.
            log::info!("cannot end the wait for a lock of {inode}: {fault}");
        }
    }

    pub(crate) async fn unlock(self: &Arc<Self>, inode: InodeId, owner: u64, range: LockRange) -> Result<()> {
        let owner = self.owner(owner);
        self.state.lock().unlocked(inode, owner, range);
        let done = self.ask(inode, LockRequest::Unlock { inode, owner, range }).await.map(drop);
        if let Err(fault) = &done
            && !is_answer(fault)
        {
            self.withdraw(inode, (owner, range), self.ticket());
        }
        done
    }

    /// Forgets an owner after its last lock of a file has been released.
    pub(crate) fn forget(&self, inode: InodeId, owner: u64) {
        self.remove_handles(inode, owner, |owned| owned.handles.clear());
    }

    /// Releases an owner's locks of a file after it has closed a descriptor.
    pub(crate) async fn closed(self: &Arc<Self>, inode: InodeId, owner: u64) {
        if self.remove_handles(inode, owner, |owned| owned.handles.clear()) {
            self.unlock_all(inode, owner).await;
        }
    }

    /// Releases the locks of all owners that had this handle only.
    pub(crate) async fn released(self: &Arc<Self>, inode: InodeId, handle: HandleNumber) {
        let owners: Vec<u64> = {
            let state = self.state.lock();
            let owners = state.owners.range((inode, 0)..=(inode, u64::MAX));
            let through = owners.filter(|(_, owned)| owned.handles.contains(&handle));
            through.map(|((_, owner), _)| *owner).collect()
        };
        for owner in owners {
            let forget = |owned: &mut Owned| {
                owned.handles.remove(&handle);
            };
            if self.remove_handles(inode, owner, forget) {
                self.unlock_all(inode, owner).await;
            }
        }
    }

    /// Removes handles of an owner. Returns true if the owner had handles and has none left.
    fn remove_handles(&self, inode: InodeId, owner: u64, forget: impl FnOnce(&mut Owned)) -> bool {
        let mut state = self.state.lock();
        let Some(owned) = state.owners.get_mut(&(inode, owner)).filter(|owned| !owned.handles.is_empty())
        else {
            return false;
        };
        forget(owned);
        let (is_last, idle) = (owned.handles.is_empty(), owned.doubts == 0);
        if is_last && idle {
            state.owners.remove(&(inode, owner));
        }
        is_last
    }

    async fn unlock_all(self: &Arc<Self>, inode: InodeId, owner: u64) {
        if let Err(fault) = self.unlock(inode, owner, LockRange::ALL).await {
            log::warn!("cannot release locks of {inode}, retrying until its home is reachable: {fault}");
        }
    }

    /// Has the home undo a request that it may have executed. Retries until the home answers or has failed.
    fn withdraw(self: &Arc<Self>, inode: InodeId, (owner, range): (LockOwner, LockRange), ticket: Ticket) {
        {
            let mut state = self.state.lock();
            state.owners.entry((inode, owner.number)).or_default().doubts += 1;
            state.unlocked(inode, owner, range);
        }
        let (locks, home) = (self.clone(), self.cluster.inode_home(inode));
        self.runtime.spawn(async move {
            let request = LockRequest::Withdraw { inode, owner, range, ticket: ticket.0 };
            let mut pause = PAUSE_MIN;
            while let Err(fault) = locks.ask(inode, request.clone()).await {
                if is_answer(&fault) {
                    log::error!("the home of {inode} refuses to withdraw a lock request: {fault}");
                    break;
                }
                if locks.state.lock().failed.contains(&locks.cluster.primary(home)) {
                    break;
                }
                locks.runtime.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            let mut state = locks.state.lock();
            if let Some(owned) = state.owners.get_mut(&(inode, owner.number)) {
                owned.doubts -= 1;
                if owned.doubts == 0 && owned.handles.is_empty() {
                    state.owners.remove(&(inode, owner.number));
                }
            }
        });
    }
}

/// Returns true if the error comes from the home itself, not from a failed delivery.
fn is_answer(fault: &Fault) -> bool {
    fault.kind() != FaultKind::Unreachable
}
