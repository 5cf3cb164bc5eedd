//! Locks that programs of this node have or want of files that live elsewhere.
//!
//! The truth is at the file's home. Here is what must be known to give locks back: through which handles an owner
//! came by locks of a file. A process gives its `fcntl` locks back with the close of any descriptor (the kernel then
//! names the owner); `flock` and `F_OFD_SETLK` locks end with the open file description, of which the kernel tells
//! when its handle is released. The kernel's requests do not say which of the two a lock is, and need not: a lock
//! goes with its owner's close, or with the last handle through which the owner has locked.
//!
//! A request whose answer never came is withdrawn until the home answers; until then the owner gets no lock of the
//! file, so that nothing it got later is withdrawn with it.

mod deadlock;
mod names;
#[cfg(test)]
mod tests;

use crate::types::HandleNumber;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::wire::lock::{FileLock, LockKind, LockOwner, LockRange, LockReply, LockRequest, WaitEnd};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, FaultKind, InodeId, NodeId, Result};
use tameike_fabric::{PeerEvent, Rpc};
use tameike_io::Runtime;

/// How long a request waits until it is first looked whether it would wait for ever; then twice as long each time.
const DEADLOCK_LOOK_MIN: Duration = Duration::from_millis(20);
const DEADLOCK_LOOK_MAX: Duration = Duration::from_secs(5);
/// Pauses between two attempts to tell a home that cannot be reached.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A lock as the kernel asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockCall {
    /// What the kernel calls the owner.
    pub owner: u64,
    /// Of which bytes.
    pub range: LockRange,
    /// Which; `None` gives back.
    pub kind: Option<LockKind>,
    /// The process that asks.
    pub pid: u32,
}

/// Names a request for a lock that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What an owner may have of a file.
#[derive(Default)]
struct Owned {
    /// Handles through which it has locked since its last close.
    handles: BTreeSet<HandleNumber>,
    /// Whether it has had a lock of the file since its last close.
    locked: bool,
    /// Requests being withdrawn.
    doubts: u32,
}

#[derive(Default)]
struct State {
    owners: BTreeMap<(InodeId, u64), Owned>,
    /// Requests that wait.
    waits: BTreeMap<Ticket, (InodeId, u64)>,
    /// Nodes whose agents are dead, and with them the locks of the files whose homes they were.
    dead: BTreeSet<NodeId>,
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
    /// This node.
    pub(crate) fn local(&self) -> NodeId {
        self.rpc.local()
    }

    /// No locks yet.
    pub fn new(runtime: Runtime, cluster: Arc<Cluster>, rpc: Arc<dyn Rpc>) -> Arc<Self> {
        // Another view of the node, or another life of it, draws other numbers.
        let last_ticket = AtomicU64::new(runtime.random_u64());
        Arc::new(Self { runtime, cluster, rpc, state: Mutex::default(), last_ticket })
    }

    /// A number for a request.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.last_ticket.fetch_add(1, Ordering::Relaxed))
    }

    /// Another node's agent has come or gone.
    pub fn peer(&self, node: NodeId, event: PeerEvent) {
        let dead = &mut self.state.lock().dead;
        match event {
            PeerEvent::Up => dead.remove(&node),
            PeerEvent::Failed => dead.insert(node),
            PeerEvent::Unreachable => false,
        };
    }

    /// Whether an owner has locks of any file, as far as this node knows.
    fn has_locks(&self, owner: LockOwner) -> bool {
        let state = self.state.lock();
        state.owners.iter().any(|((_, number), owned)| *number == owner.number && owned.locked)
    }

    /// For locks of which files an owner waits.
    pub fn waits_of(&self, owner: LockOwner) -> Vec<InodeId> {
        let state = self.state.lock();
        let own = state.waits.values().filter(|(_, number)| *number == owner.number);
        own.map(|(inode, _)| *inode).collect()
    }

    pub(crate) fn owner(&self, number: u64) -> LockOwner {
        LockOwner { node: self.rpc.local(), number }
    }

    async fn call(&self, to: NodeId, request: Request) -> Result<Reply> {
        Ok(self.rpc.call(to, request, None, None).await?.reply)
    }

    async fn ask(&self, inode: InodeId, request: LockRequest) -> Result<LockReply> {
        match self.call(self.cluster.inode_home(inode), Request::Lock(request)).await? {
            Reply::Lock(reply) => Ok(reply),
            other => Err(out_of_turn(&other)),
        }
    }

    pub(crate) async fn test(&self, inode: InodeId, lock: FileLock) -> Result<Option<FileLock>> {
        match self.ask(inode, LockRequest::Test { inode, lock }).await? {
            LockReply::Conflict(conflict) => Ok(conflict),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Takes a lock through a handle.
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
                let problem = "the file's home cannot yet be told that an earlier lock is given up";
                return Err(Fault::new(Errno::EHOSTDOWN, problem));
            }
            owned.handles.insert(handle);
            if wait {
                state.waits.insert(ticket, (inode, lock.owner.number));
            }
        }
        let request = LockRequest::Lock { inode, lock, ticket: ticket.0, wait };
        let taken = if wait {
            let taken = self.wait((inode, lock.owner), ticket, self.ask(inode, request)).await;
            self.state.lock().waits.remove(&ticket);
            taken
        } else {
            self.ask(inode, request).await
        };
        match &taken {
            Ok(_) => {
                // Again: with a close in another thread meanwhile, the owner had none. It has one now.
                let mut state = self.state.lock();
                let owned = state.owners.entry((inode, lock.owner.number)).or_default();
                owned.handles.insert(handle);
                owned.locked = true;
            }
            Err(fault) if !is_answer(fault) => self.withdraw(inode, (lock.owner, lock.range), ticket),
            Err(_) => {}
        }
        taken.map(drop)
    }

    /// Waits for the answer to a request, and looks now and then whether it can ever come.
    async fn wait(
        &self,
        waiter: (InodeId, LockOwner),
        ticket: Ticket,
        answer: impl Future<Output = Result<LockReply>>,
    ) -> Result<LockReply> {
        let mut answer = pin!(answer);
        let mut pause = DEADLOCK_LOOK_MIN;
        loop {
            match select(answer, self.runtime.sleep(pause)).await {
                Either::Left((answer, _)) => return answer,
                Either::Right(((), waiting)) => answer = waiting,
            }
            pause = (pause * 2).min(DEADLOCK_LOOK_MAX);
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

    /// Has the wait of a request end; its answer says how it did.
    pub async fn interrupt(&self, ticket: Ticket) {
        let waiting = self.state.lock().waits.get(&ticket).copied();
        if let Some((inode, _)) = waiting {
            self.end_wait(inode, ticket, WaitEnd::Interrupted).await;
        }
    }

    async fn end_wait(&self, inode: InodeId, ticket: Ticket, end: WaitEnd) {
        if let Err(fault) = self.ask(inode, LockRequest::EndWait { inode, ticket: ticket.0, end }).await {
            // What cannot be told to the home is told by the end of the request itself.
            log::info!("cannot end the wait for a lock of {inode}: {fault}");
        }
    }

    pub(crate) async fn give_back(
        self: &Arc<Self>,
        inode: InodeId,
        owner: u64,
        range: LockRange,
    ) -> Result<()> {
        let owner = self.owner(owner);
        let done = self.ask(inode, LockRequest::Unlock { inode, owner, range }).await.map(drop);
        if let Err(fault) = &done
            && !is_answer(fault)
        {
            self.withdraw(inode, (owner, range), self.ticket());
        }
        done
    }

    /// An owner has closed a descriptor of a file: it has no locks of it any more.
    pub(crate) async fn closed(self: &Arc<Self>, inode: InodeId, owner: u64) {
        if self.let_go(inode, owner, |owned| owned.handles.clear()) {
            self.give_all_back(inode, owner).await;
        }
    }

    /// A handle is gone, and with it the locks of owners that have none other.
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
            if self.let_go(inode, owner, forget) {
                self.give_all_back(inode, owner).await;
            }
        }
    }

    /// Forgets handles of an owner; whether it had some, and has none any more.
    fn let_go(&self, inode: InodeId, owner: u64, forget: impl FnOnce(&mut Owned)) -> bool {
        let mut state = self.state.lock();
        let Some(owned) = state.owners.get_mut(&(inode, owner)).filter(|owned| !owned.handles.is_empty())
        else {
            return false;
        };
        forget(owned);
        let (is_last, idle) = (owned.handles.is_empty(), owned.doubts == 0);
        owned.locked &= !is_last;
        if is_last && idle {
            state.owners.remove(&(inode, owner));
        }
        is_last
    }

    async fn give_all_back(self: &Arc<Self>, inode: InodeId, owner: u64) {
        if let Err(fault) = self.give_back(inode, owner, LockRange::ALL).await {
            log::warn!("locks of {inode} are given back as soon as its home can be reached: {fault}");
        }
    }

    /// Has the home forget a request that it may or may not have executed, as soon as it can be told, or is dead.
    fn withdraw(self: &Arc<Self>, inode: InodeId, (owner, range): (LockOwner, LockRange), ticket: Ticket) {
        self.state.lock().owners.entry((inode, owner.number)).or_default().doubts += 1;
        let (locks, home) = (self.clone(), self.cluster.inode_home(inode));
        self.runtime.spawn(async move {
            let request = LockRequest::Withdraw { inode, owner, range, ticket: ticket.0 };
            let mut pause = PAUSE_MIN;
            while let Err(fault) = locks.ask(inode, request.clone()).await {
                if is_answer(&fault) {
                    log::error!("the home of {inode} does not take a lock back: {fault}");
                    break;
                }
                if locks.state.lock().dead.contains(&home) {
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

/// Whether the home itself has answered so.
fn is_answer(fault: &Fault) -> bool {
    fault.kind() != FaultKind::Unreachable
}

fn out_of_turn(reply: &impl std::fmt::Debug) -> Fault {
    Fault::new(Errno::EPROTO, format!("a lock service answered out of turn: {reply:?}"))
}
