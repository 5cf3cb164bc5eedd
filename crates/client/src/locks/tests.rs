//! Release, withdrawal and deadlock detection of locks, against homes in memory.

use super::*;
use crate::fixtures;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::lock::Blocker;
use tameike_fabric::{Answer, Destination};
use tameike_io::os::runtime::{Resolver, promise};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload};

const FILE: InodeId = InodeId(77);
const OTHER: InodeId = InodeId(78);
const ONE: HandleNumber = HandleNumber(1);
const TWO: HandleNumber = HandleNumber(2);
const ALL: LockRange = LockRange::ALL;

/// A home that records requests and sends configured replies.
#[derive(Default)]
struct Home {
    requests: Vec<LockRequest>,
    /// Number of requests that still fail.
    failing: u32,
    /// True if lock requests wait, and the waiting requests.
    busy: bool,
    waiting: Vec<Resolver<Result<LockReply>>>,
    /// Wait-for graph: file, waiting owner, blocking owner, and true if the latter holds a lock.
    links: Vec<(InodeId, u64, u64, bool)>,
}

struct HomeRpc(Mutex<Home>);

fn owner(number: u64) -> LockOwner {
    LockOwner { node: NodeId(0), number }
}

impl Home {
    fn grant_all(&mut self) {
        self.busy = false;
        self.waiting.drain(..).for_each(|wait| wait.resolve(Ok(LockReply::Done)));
    }

    fn answer(&mut self, request: Request) -> Result<Reply> {
        let reply = match request {
            Request::Client(ClientRequest::LockWaits { owner }) => {
                let own = self.links.iter().filter(|link| link.1 == owner.number);
                return Ok(Reply::Client(ClientReply::Waits(own.map(|link| link.0).collect())));
            }
            Request::Lock(LockRequest::Blockers { inode, owner: waiter }) => {
                let own = self.links.iter().filter(|link| (link.0, link.1) == (inode, waiter.number));
                let blocker = |link: &(_, u64, u64, bool)| Blocker {
                    ticket: link.1,
                    owner: owner(link.2),
                    holds: link.3,
                };
                LockReply::Blockers(own.map(blocker).collect())
            }
            Request::Lock(request) => {
                if let LockRequest::EndWait { end: WaitEnd::Interrupted | WaitEnd::Deadlock, .. } = &request {
                    self.waiting.drain(..).for_each(|wait| wait.resolve(Err(Errno::EINTR.into())));
                }
                self.requests.push(request);
                LockReply::Done
            }
            other => panic!("{other:?}"),
        };
        Ok(Reply::Lock(reply))
    }
}

impl Rpc for HomeRpc {
    fn local(&self) -> NodeId {
        NodeId(0)
    }

    fn call(
        &self,
        _: Destination,
        request: Request,
        _: Option<Payload>,
        _: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let mut home = self.0.lock();
        if home.failing > 0 {
            home.failing -= 1;
            return async { Err(Errno::EHOSTDOWN.into()) }.boxed();
        }
        if home.busy && matches!(request, Request::Lock(LockRequest::Lock { .. })) {
            let (resolver, waiting) = promise();
            home.waiting.push(resolver);
            return async { Ok(Answer { reply: Reply::Lock(waiting.await?), payload: None }) }.boxed();
        }
        let reply = home.answer(request);
        async move { Ok(Answer { reply: reply?, payload: None }) }.boxed()
    }
}

struct Bed {
    simulation: Simulation,
    cluster: Arc<Cluster>,
    home: Arc<HomeRpc>,
    locks: Arc<FileLocks>,
}

impl Bed {
    fn new() -> Self {
        let simulation = Simulation::new(5);
        let home = Arc::new(HomeRpc(Mutex::default()));
        // As in a job with replicas, the home of a file may move from the first node to the second.
        let cluster = fixtures::cluster(2);
        let locks = FileLocks::new(simulation.runtime(), cluster.clone(), home.clone());
        Self { simulation, cluster, home, locks }
    }

    /// Takes a lock. Returns its outcome, set when the request ends.
    fn take(&self, number: u64, handle: HandleNumber, wait: bool) -> Arc<Mutex<Option<Result<()>>>> {
        self.take_range(number, handle, ALL, wait)
    }

    fn take_range(
        &self,
        number: u64,
        handle: HandleNumber,
        range: LockRange,
        wait: bool,
    ) -> Arc<Mutex<Option<Result<()>>>> {
        let lock = FileLock { owner: owner(number), range, kind: LockKind::Exclusive, pid: 1 };
        let (locks, outcome) = (self.locks.clone(), Arc::new(Mutex::new(None)));
        let (ticket, result) = (locks.ticket(), outcome.clone());
        self.simulation.runtime().spawn(async move {
            let taken = locks.take(FILE, handle, lock, (ticket, wait)).await;
            *result.lock() = Some(taken);
        });
        outcome
    }

    fn run_now(&self, change: impl Future<Output = ()>) {
        change.now_or_never().expect("the call does not block");
    }

    /// The requests that the home got since the last call.
    fn requests(&self) -> Vec<LockRequest> {
        std::mem::take(&mut self.home.0.lock().requests)
    }

    /// The locks to reclaim: number of the owner, first and last byte.
    fn held(&self) -> Vec<(u64, u64, u64)> {
        let home = self.cluster.inode_home(FILE);
        assert_eq!(self.locks.held(|other| other != home), [], "locks of other homes");
        let held = self.locks.held(|other| other == home).into_iter().map(|(inode, lock)| {
            assert_eq!(inode, FILE);
            (lock.owner.number, lock.range.start, lock.range.last)
        });
        let mut held: Vec<_> = held.collect();
        held.sort_unstable();
        held
    }

    fn unlocked_owners(&self) -> Vec<u64> {
        let unlocked = self.requests().into_iter().map(|request| match request {
            LockRequest::Unlock { owner, range: ALL, .. } => owner.number,
            other => panic!("{other:?}"),
        });
        unlocked.collect()
    }

    fn run_for(&self, time: Duration) {
        let end = self.simulation.runtime().clock.monotonic() + time;
        while self.simulation.runtime().clock.monotonic() < end && self.simulation.step() {}
    }
}

#[test]
fn locks_end_with_their_owners_close_or_its_last_handle() {
    let bed = Bed::new();
    for (number, handle) in [(1, ONE), (1, TWO), (2, ONE), (3, ONE), (3, TWO)] {
        assert_eq!(*bed.take(number, handle, false).lock(), Some(Ok(())));
    }
    bed.requests();
    bed.run_now(bed.locks.closed(FILE, 9));
    bed.run_now(bed.locks.closed(OTHER, 1));
    assert_eq!(bed.unlocked_owners(), [], "the owner has no locks");
    bed.run_now(bed.locks.closed(FILE, 1));
    assert_eq!(bed.unlocked_owners(), [1], "a process, with any handle");
    bed.run_now(bed.locks.released(FILE, ONE));
    assert_eq!(bed.unlocked_owners(), [2], "an open file; the third owner has another handle");
    bed.run_now(bed.locks.released(FILE, TWO));
    assert_eq!(bed.unlocked_owners(), [3]);
    bed.run_now(bed.locks.closed(FILE, 1));
    assert_eq!(bed.unlocked_owners(), [], "no lock is left");
    assert!(bed.locks.state.lock().owners.is_empty());
}

/// A thread waited for a lock while another one closed a descriptor of the file. The lock was granted later and never released.
#[test]
fn a_lock_granted_after_a_close_is_released_with_its_handle() {
    let bed = Bed::new();
    bed.home.0.lock().busy = true;
    let outcome = bed.take(1, ONE, true);
    bed.run_now(bed.locks.closed(FILE, 1));
    assert_eq!(*outcome.lock(), None);
    bed.home.0.lock().grant_all();
    bed.simulation.settle();
    assert_eq!(*outcome.lock(), Some(Ok(())));
    bed.requests();
    bed.run_now(bed.locks.released(FILE, ONE));
    assert_eq!(bed.unlocked_owners(), [1]);
}

/// Each failed call left a task that sent requests to a failed agent for ever.
#[test]
fn withdrawals_stop_when_the_home_has_failed() {
    let bed = Bed::new();
    bed.home.0.lock().failing = u32::MAX;
    assert!(bed.take(1, ONE, false).lock().as_ref().is_some_and(Result::is_err));
    bed.locks.peer(NodeId(0), PeerEvent::Failed);
    while bed.simulation.step() {}
    bed.run_now(bed.locks.released(FILE, ONE));
    while bed.simulation.step() {}
    assert!(bed.requests().len() < 6);
}

/// A lock whose reply was lost would have no owner and stay for ever.
///
/// S21h.
#[test]
fn a_request_without_a_reply_is_withdrawn_before_the_next_lock() {
    let bed = Bed::new();
    bed.home.0.lock().failing = 2; // the request, and the first attempt to withdraw it
    let failed = |outcome: &Mutex<Option<Result<()>>>| {
        let outcome = outcome.lock().clone();
        outcome.is_some_and(|taken| taken.is_err_and(|fault| fault.errno == Errno::EHOSTDOWN))
    };
    assert!(failed(&bed.take(1, ONE, false)));
    assert_eq!(bed.home.0.lock().failing, 0);
    assert!(failed(&bed.take(1, ONE, false)), "the withdrawal has not reached the home");
    assert_eq!(*bed.take(2, TWO, false).lock(), Some(Ok(())), "another owner");
    bed.requests();
    while bed.simulation.step() {}
    let requests = bed.requests();
    assert!(matches!(requests[..], [LockRequest::Withdraw { .. }]), "{requests:?}");
    assert_eq!(*bed.take(1, ONE, false).lock(), Some(Ok(())));
}

const fn bytes(start: u64, last: u64) -> LockRange {
    LockRange { start, last }
}

#[test]
fn granted_locks_are_reclaimed_until_they_are_released() {
    let bed = Bed::new();
    let taken = |number, handle, range| {
        assert_eq!(*bed.take_range(number, handle, range, false).lock(), Some(Ok(())));
    };
    taken(1, ONE, bytes(0, 99));
    taken(2, ONE, bytes(200, 299));
    taken(3, TWO, bytes(300, 399));
    assert_eq!(bed.held(), [(1, 0, 99), (2, 200, 299), (3, 300, 399)]);
    bed.simulation.run(bed.locks.unlock(FILE, 1, bytes(40, 59))).expect("unlocked");
    assert_eq!(bed.held(), [(1, 0, 39), (1, 60, 99), (2, 200, 299), (3, 300, 399)]);
    bed.run_now(bed.locks.closed(FILE, 1));
    assert_eq!(bed.held(), [(2, 200, 299), (3, 300, 399)], "a close");
    bed.run_now(bed.locks.released(FILE, ONE));
    assert_eq!(bed.held(), [(3, 300, 399)], "a release");
    let lost = FileLock { owner: owner(3), range: ALL, kind: LockKind::Exclusive, pid: 1 };
    bed.locks.lost(&[(OTHER, lost)]);
    assert_eq!(bed.held(), [(3, 300, 399)], "a lock of another file");
    bed.locks.lost(&[(FILE, lost)]);
    assert_eq!(bed.held(), []);
    assert!(bed.locks.state.lock().held.is_empty());
}

#[test]
fn locks_that_the_home_may_have_released_are_not_reclaimed() {
    let bed = Bed::new();
    assert_eq!(*bed.take_range(1, ONE, bytes(0, 99), false).lock(), Some(Ok(())));
    // Neither reply arrives. The home may have executed the requests, and withdraws them later.
    bed.home.0.lock().failing = 1;
    bed.simulation.run(bed.locks.unlock(FILE, 1, bytes(0, 9))).expect_err("no reply");
    assert_eq!(bed.held(), [(1, 10, 99)]);
    bed.simulation.finish();
    bed.home.0.lock().failing = 1;
    assert!(bed.take_range(1, ONE, bytes(90, 119), false).lock().as_ref().is_some_and(Result::is_err));
    assert_eq!(bed.held(), [(1, 10, 89)], "a change of a lock");
    bed.simulation.finish();
    bed.home.0.lock().busy = true;
    let refused = bed.take_range(2, TWO, bytes(200, 299), true);
    assert_eq!(bed.held(), [(1, 10, 89)], "a request that waits");
    let ticket = *bed.locks.state.lock().waits.keys().next().expect("it waits");
    bed.run_now(bed.locks.interrupt(ticket));
    bed.simulation.settle();
    assert_eq!(*refused.lock(), Some(Err(Errno::EINTR.into())));
    assert_eq!(bed.held(), [(1, 10, 89)]);
}

/// The next primary got the list of locks before the reply of the earlier one arrived: no other lock would exclude this one there.
#[test]
fn a_lock_that_an_earlier_primary_has_granted_is_requested_again() {
    let bed = Bed::new();
    bed.home.0.lock().busy = true;
    let outcome = bed.take(1, ONE, true);
    let home = bed.cluster.inode_home(FILE);
    assert!(bed.cluster.replace_map(bed.cluster.map().with_primary(home, NodeId(1))));
    assert_eq!(bed.held(), []);
    bed.home.0.lock().grant_all();
    bed.simulation.settle();
    assert_eq!(*outcome.lock(), Some(Ok(())));
    let requests = bed.requests();
    assert!(matches!(requests[..], [LockRequest::Lock { .. }]), "{requests:?}");
    assert_eq!(bed.held(), [(1, 0, u64::MAX)]);
    assert!(bed.locks.state.lock().waits.is_empty());
}

#[test]
fn a_wait_is_listed_and_interrupted_once() {
    let bed = Bed::new();
    bed.home.0.lock().busy = true;
    let outcome = bed.take(1, ONE, true);
    assert_eq!((bed.locks.waits_of(owner(1)), bed.locks.waits_of(owner(2))), (vec![FILE], vec![]));
    bed.run_for(Duration::from_secs(20));
    assert_eq!(*outcome.lock(), None, "no owner waits for it: no deadlock");
    let ticket = *bed.locks.state.lock().waits.keys().next().expect("it waits");
    bed.run_now(bed.locks.interrupt(ticket));
    bed.simulation.settle();
    assert_eq!(*outcome.lock(), Some(Err(Errno::EINTR.into())));
    bed.requests();
    bed.run_now(bed.locks.interrupt(ticket));
    assert_eq!(bed.requests(), [], "the wait has ended");
}

fn ends(links: &[(InodeId, u64, u64, bool)]) -> Vec<WaitEnd> {
    let bed = Bed::new();
    assert_eq!(*bed.take(1, TWO, false).lock(), Some(Ok(())), "an owner without locks is granted one");
    {
        let mut home = bed.home.0.lock();
        (home.busy, home.links) = (true, links.to_vec());
    }
    drop(bed.take(1, ONE, true));
    bed.run_for(Duration::from_millis(300));
    let ends = bed.requests().into_iter().filter_map(|request| match request {
        LockRequest::EndWait { end, .. } => Some(end),
        _ => None,
    });
    ends.take(1).collect()
}

/// S21m S21o.
#[test]
fn cycles_of_waits_are_deadlocks() {
    assert_eq!(ends(&[(FILE, 1, 2, true), (OTHER, 2, 1, true)]), [WaitEnd::Deadlock]);
    let longer = [(FILE, 1, 2, true), (OTHER, 2, 3, true), (FILE, 3, 4, true), (OTHER, 4, 1, true)];
    assert_eq!(ends(&longer), [WaitEnd::Deadlock]);
    assert_eq!(ends(&longer[..3]), [], "the last owner does not wait");
    let several_threads = [(FILE, 1, 2, true), (OTHER, 2, 3, true), (FILE, 2, 1, true)];
    assert_eq!(ends(&several_threads), [WaitEnd::Deadlock], "one thread of an owner is enough");
    let elsewhere = [(FILE, 1, 2, true), (OTHER, 2, 3, true), (FILE, 3, 2, true)];
    assert_eq!(ends(&elsewhere), [], "a deadlock of other owners");
    assert_eq!(ends(&[(FILE, 1, 2, false), (OTHER, 2, 1, true)]), [WaitEnd::Overtake]);
    assert_eq!(ends(&[(FILE, 1, 2, true), (OTHER, 2, 1, false)]), [], "the other request overtakes");
}
