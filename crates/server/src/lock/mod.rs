//! The lock service of a node: `flock` and `fcntl` locks of the files whose home it is, in the job-shared and the cache view.
//!
//! - Locks are advisory and in memory only: they end with their owner, its node, or this agent. The key is the inode number.
//! - A blocked request gets its reply with its lock, in the order of arrival ([`file`]). The client's node ends the wait early for a signal
//!   or a deadlock.
//! - The RPC layer executes a request at most once, with one exception: a cancelled request may still be in flight. The service refuses it
//!   by its ticket if it arrives after the cancellation.

mod file;
#[cfg(test)]
mod tests;

use file::{FileLocks, Waiter};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tameike_core::limits::LOCKS_PER_FILE_MAX;
use tameike_core::wire::lock::{FileLock, LockOwner, LockRange, LockReply, LockRequest, WaitEnd};
use tameike_core::{Cluster, Errno, Fault, HomeId, InodeId, NodeId, Result};
use tameike_io::os::runtime::{Promise, Resolver, promise};

/// Maximum number of cancelled requests to remember per node. There is one for each time at which the client could not reach this node.
const WITHDRAWN_MAX: usize = 1024;

/// Wakes a blocked request with its reply.
type Wake = Resolver<Result<LockReply>>;
/// A blocked request and its reply.
type Ended = (Wake, Result<LockReply>);
/// Tickets of cancelled requests, by node.
type Withdrawn = BTreeMap<NodeId, VecDeque<u64>>;

#[derive(Default)]
struct State {
    files: BTreeMap<InodeId, FileLocks<Wake>>,
    withdrawn: Withdrawn,
}

/// The lock service of one node.
pub struct LockService {
    node: NodeId,
    cluster: Arc<Cluster>,
    state: Mutex<State>,
}

impl LockService {
    /// Creates the service of `node`, without locks.
    pub fn new(node: NodeId, cluster: Arc<Cluster>) -> Self {
        Self { node, cluster, state: Mutex::default() }
    }

    /// Serves one request. A blocked one returns once it has its lock or its wait has ended.
    ///
    /// # Errors
    /// `EAGAIN` if a lock conflicts with a request that does not wait; `ENOLCK` if the file has too many locks; `EINTR` and `EDEADLK` if
    /// the wait was ended; `EREMCHG` if this node does not serve the inode's home; `EPROTO` if the owner is not on the requesting node.
    pub async fn serve(&self, from: NodeId, request: LockRequest) -> Result<LockReply> {
        match request {
            LockRequest::Test { inode, lock } => {
                self.check(inode, from, lock.owner)?;
                let state = self.state.lock();
                Ok(LockReply::Conflict(state.files.get(&inode).and_then(|file| file.conflict(&lock))))
            }
            LockRequest::Lock { inode, lock, ticket, wait } => {
                self.check(inode, from, lock.owner)?;
                self.lock(inode, lock, ticket, wait).await
            }
            LockRequest::Unlock { inode, owner, range } => {
                self.check(inode, from, owner)?;
                self.unlock(inode, owner, range)
            }
            LockRequest::EndWait { inode, ticket, end } => {
                self.check(inode, from, LockOwner { node: from, number: 0 })?;
                self.end_wait(inode, from, ticket, end);
                Ok(LockReply::Done)
            }
            LockRequest::Withdraw { inode, owner, range, ticket } => {
                self.check(inode, from, owner)?;
                self.withdraw(inode, (owner, range), ticket);
                Ok(LockReply::Done)
            }
            LockRequest::Blockers { inode, owner } => {
                self.check(inode, owner.node, owner)?;
                let state = self.state.lock();
                Ok(LockReply::Blockers(
                    state.files.get(&inode).map_or_else(Vec::new, |file| file.blockers(owner)),
                ))
            }
        }
    }

    /// Releases the locks of a failed node.
    pub fn peer_failed(&self, node: NodeId) {
        let inodes: Vec<InodeId> = {
            let mut state = self.state.lock();
            state.withdrawn.remove(&node);
            state.files.keys().copied().collect()
        };
        for inode in inodes {
            self.change(inode, |file, _| {
                let (gone, granted) = file.drop_node(node);
                // No client waits for the request, but the serving task must end.
                let ended = |wake| (wake, Err(Fault::new(Errno::EHOSTDOWN, format!("{node} has failed"))));
                (granted, gone.into_iter().map(ended).collect())
            });
        }
    }

    /// Takes locks again that nodes hold at homes which another node has served until now. Returns those that conflict with others.
    pub fn reclaim(&self, locks: Vec<(InodeId, FileLock)>) -> Vec<(InodeId, FileLock)> {
        let mut lost = Vec::new();
        for (inode, lock) in locks {
            self.change(inode, |file, _| match file.try_take(lock).filter(|_| !file.is_full()) {
                Some(granted) => (granted, Vec::new()),
                None => {
                    lost.push((inode, lock));
                    (Vec::new(), Vec::new())
                }
            });
        }
        lost
    }

    /// Drops the locks of a home that another node serves now. Requests that wait fail with `EREMCHG`.
    pub fn leave(&self, home: HomeId) {
        let left: Vec<_> = {
            let mut state = self.state.lock();
            let is_left = |inode: &&InodeId| self.cluster.inode_home(**inode) == home;
            let inodes: Vec<_> = state.files.keys().filter(is_left).copied().collect();
            inodes.iter().filter_map(|inode| state.files.remove(inode)).collect()
        };
        let waiting = left.into_iter().flat_map(FileLocks::into_waiting);
        waiting.for_each(|wake| wake.resolve(Err(Errno::EREMCHG.into())));
    }

    fn check(&self, inode: InodeId, from: NodeId, owner: LockOwner) -> Result<()> {
        if self.cluster.primary(self.cluster.inode_home(inode)) != self.node {
            let problem = format!("{} does not serve the home of {inode}", self.node);
            return Err(Fault::new(Errno::EREMCHG, problem));
        }
        if owner.node == from {
            return Ok(());
        }
        let problem =
            format!("{} got a lock request of {from} for {inode} and owner {}", self.node, owner.node);
        Err(Fault::new(Errno::EPROTO, problem))
    }

    /// Takes a lock, or blocks the request.
    fn lock(&self, inode: InodeId, lock: FileLock, ticket: u64, wait: bool) -> Promise<Result<LockReply>> {
        let (wake, woken) = promise();
        self.change(inode, |file, withdrawn| {
            if withdrawn.get(&lock.owner.node).is_some_and(|numbers| numbers.contains(&ticket)) {
                return (Vec::new(), vec![(wake, Err(Errno::EINTR.into()))]);
            }
            if file.is_full() {
                return (Vec::new(), vec![(wake, Err(too_many(inode)))]);
            }
            if wait {
                return (file.wait(Waiter { lock, ticket, wake }), Vec::new());
            }
            match file.try_take(lock) {
                Some(granted) => (granted, vec![(wake, Ok(LockReply::Done))]),
                None => (Vec::new(), vec![(wake, Err(Errno::EAGAIN.into()))]),
            }
        });
        woken
    }

    fn unlock(&self, inode: InodeId, owner: LockOwner, range: LockRange) -> Result<LockReply> {
        let mut answer = Ok(LockReply::Done);
        self.change(inode, |file, _| {
            if file.is_full() && file.splits(owner, range) {
                answer = Err(too_many(inode));
                return (Vec::new(), Vec::new());
            }
            (file.unlock(owner, range), Vec::new())
        });
        answer
    }

    fn end_wait(&self, inode: InodeId, node: NodeId, ticket: u64, end: WaitEnd) {
        self.change(inode, |file, _| {
            let errno = match end {
                WaitEnd::Interrupted => Errno::EINTR,
                WaitEnd::Deadlock => Errno::EDEADLK,
                WaitEnd::Overtake => return (file.overtake(node, ticket), Vec::new()),
            };
            let (ended, granted) = file.end_wait(node, ticket);
            (granted, ended.into_iter().map(|wake| (wake, Err(errno.into()))).collect())
        });
    }

    /// Undoes a cancelled request, and remembers the cancellation.
    fn withdraw(&self, inode: InodeId, (owner, range): (LockOwner, LockRange), ticket: u64) {
        self.change(inode, |file, withdrawn| {
            let numbers = withdrawn.entry(owner.node).or_default();
            numbers.push_back(ticket);
            if numbers.len() > WITHDRAWN_MAX {
                numbers.pop_front();
            }
            let (ended, mut granted) = file.end_wait(owner.node, ticket);
            granted.extend(file.unlock(owner, range));
            (granted, ended.into_iter().map(|wake| (wake, Err(Errno::EINTR.into()))).collect())
        });
    }

    /// Changes the locks of a file, then wakes the requests that no longer wait.
    fn change(
        &self,
        inode: InodeId,
        change: impl FnOnce(&mut FileLocks<Wake>, &mut Withdrawn) -> (Vec<Wake>, Vec<Ended>),
    ) {
        let (granted, ended) = {
            let State { files, withdrawn } = &mut *self.state.lock();
            let file = files.entry(inode).or_default();
            let woken = change(file, withdrawn);
            if file.is_idle() {
                files.remove(&inode);
            }
            woken
        };
        granted.into_iter().for_each(|wake| wake.resolve(Ok(LockReply::Done)));
        ended.into_iter().for_each(|(wake, answer)| wake.resolve(answer));
    }
}

fn too_many(inode: InodeId) -> Fault {
    let problem = format!(
        "{inode}: the limit of {LOCKS_PER_FILE_MAX} locks and blocked requests of one file is reached"
    );
    Fault::new(Errno::ENOLCK, problem)
}
