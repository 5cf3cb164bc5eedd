//! Requests that wait, by hand.

use super::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::{JobId, NodeInfo};

const FILE: InodeId = InodeId(77);

fn service() -> LockService {
    let (host, address) = ("host".to_owned(), String::new());
    let nodes = vec![NodeInfo { id: NodeId(0), host, address, group: 0, device: true }];
    let cluster = Cluster::new(JobId::new("job").expect("a name"), nodes).expect("a cluster");
    LockService::new(NodeId(0), Arc::new(cluster))
}

fn lock(node: u32) -> FileLock {
    let owner = LockOwner { node: NodeId(node), number: 5 };
    FileLock { owner, range: LockRange { start: 0, last: 9 }, kind: LockKind::Exclusive, pid: 1 }
}

fn ask(service: &LockService, node: u32, ticket: u64, wait: bool) -> BoxFuture<'_, Result<LockReply>> {
    let request = LockRequest::Lock { inode: FILE, lock: lock(node), ticket, wait };
    service.serve(NodeId(node), request).boxed()
}

fn now(answer: &mut BoxFuture<'_, Result<LockReply>>) -> Option<Result<LockReply>> {
    answer.now_or_never()
}

fn do_now(service: &LockService, node: u32, request: LockRequest) -> Result<LockReply> {
    service.serve(NodeId(node), request).now_or_never().expect("no need to wait")
}

#[test]
fn a_wait_ends_with_the_lock_a_signal_or_a_deadlock() {
    let service = service();
    assert_eq!(now(&mut ask(&service, 1, 1, false)), Some(Ok(LockReply::Done)));
    assert_eq!(now(&mut ask(&service, 2, 1, false)), Some(Err(Errno::EAGAIN.into())));
    let mut waits: Vec<_> = (2..=4).map(|node| ask(&service, node, 9, true)).collect();
    assert!(waits.iter_mut().all(|wait| now(wait).is_none()));
    let end = |end| LockRequest::EndWait { inode: FILE, ticket: 9, end };
    do_now(&service, 2, end(WaitEnd::Interrupted)).expect("a wait");
    do_now(&service, 3, end(WaitEnd::Deadlock)).expect("a wait");
    do_now(&service, 4, end(WaitEnd::Overtake)).expect("a wait");
    assert_eq!(now(&mut waits[0]), Some(Err(Errno::EINTR.into())));
    assert_eq!(now(&mut waits[1]), Some(Err(Errno::EDEADLK.into())));
    assert_eq!(now(&mut waits[2]), None, "somebody has it");
    let unlock = LockRequest::Unlock { inode: FILE, owner: lock(1).owner, range: LockRange::ALL };
    do_now(&service, 1, unlock).expect("an unlock");
    assert_eq!(now(&mut waits[2]), Some(Ok(LockReply::Done)));
    service.peer_dead(NodeId(4));
    assert!(service.state.lock().files.is_empty(), "nothing is left of a file without locks");
}

/// A request whose answer was lost must leave nothing behind, in whatever order it and its withdrawal come.
#[test]
fn what_was_withdrawn_did_not_happen() {
    let service = service();
    let withdraw =
        |ticket| LockRequest::Withdraw { inode: FILE, owner: lock(1).owner, range: lock(1).range, ticket };
    assert_eq!(now(&mut ask(&service, 1, 1, true)), Some(Ok(LockReply::Done)));
    do_now(&service, 1, withdraw(1)).expect("a withdrawal");
    do_now(&service, 1, withdraw(2)).expect("a withdrawal");
    assert_eq!(now(&mut ask(&service, 1, 2, true)), Some(Err(Errno::EINTR.into())), "it came late");
    assert_eq!(now(&mut ask(&service, 2, 1, false)), Some(Ok(LockReply::Done)));
    let mut waits = ask(&service, 1, 3, true);
    assert_eq!(now(&mut waits), None);
    do_now(&service, 1, withdraw(3)).expect("a withdrawal");
    assert_eq!(now(&mut waits), Some(Err(Errno::EINTR.into())));
}

#[test]
fn nobody_locks_for_another_node() {
    let service = service();
    let request = LockRequest::Lock { inode: FILE, lock: lock(1), ticket: 1, wait: false };
    let refused = do_now(&service, 2, request).expect_err("the owner is elsewhere");
    assert_eq!(refused.errno, Errno::EPROTO);
}

/// A program that locks every second byte would otherwise fill its home's memory.
#[test]
fn a_file_has_so_many_locks_and_no_more() {
    let service = service();
    let byte = |start| FileLock { range: LockRange { start, last: start }, ..lock(1) };
    let take = |start| LockRequest::Lock { inode: FILE, lock: byte(start), ticket: start, wait: false };
    let full = LOCKS_PER_FILE_MAX as u64 - 1;
    for number in 0..full {
        do_now(&service, 1, take(10 * number)).expect("there is room");
    }
    let refused = do_now(&service, 1, take(10 * full)).expect_err("no room");
    assert_eq!(refused.errno, Errno::ENOLCK);
    let unlock = |range| LockRequest::Unlock { inode: FILE, owner: byte(0).owner, range };
    do_now(&service, 1, unlock(LockRange { start: 0, last: 5 })).expect("an unlock");
    do_now(&service, 1, take(10 * full)).expect("there is room again");
}
