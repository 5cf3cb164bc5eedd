//! Blocked lock requests, with manually polled futures.

use super::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::{JobId, NodeInfo};

const FILE: InodeId = InodeId(77);

fn service() -> LockService {
    let (host, address) = ("host".to_owned(), String::new());
    let nodes = vec![NodeInfo { id: NodeId(0), host, address, group: 0, device: true }];
    let cluster = Cluster::new(JobId::new("job").expect("a name"), nodes, 1).expect("a cluster");
    LockService::new(NodeId(0), Arc::new(cluster))
}

fn lock(node: u32) -> FileLock {
    let owner = LockOwner { node: NodeId(node), number: 5 };
    FileLock { owner, range: LockRange { start: 0, last: 9 }, kind: LockKind::Exclusive, pid: 1 }
}

fn request_lock(
    service: &LockService,
    node: u32,
    ticket: u64,
    wait: bool,
) -> BoxFuture<'_, Result<LockReply>> {
    let request = LockRequest::Lock { inode: FILE, lock: lock(node), ticket, wait };
    service.serve(NodeId(node), request).boxed()
}

fn poll(answer: &mut BoxFuture<'_, Result<LockReply>>) -> Option<Result<LockReply>> {
    answer.now_or_never()
}

fn serve_now(service: &LockService, node: u32, request: LockRequest) -> Result<LockReply> {
    service.serve(NodeId(node), request).now_or_never().expect("no need to wait")
}

#[test]
fn a_wait_ends_with_the_lock_a_signal_or_a_deadlock() {
    let service = service();
    assert_eq!(poll(&mut request_lock(&service, 1, 1, false)), Some(Ok(LockReply::Done)));
    assert_eq!(poll(&mut request_lock(&service, 2, 1, false)), Some(Err(Errno::EAGAIN.into())));
    let mut waits: Vec<_> = (2..=4).map(|node| request_lock(&service, node, 9, true)).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait).is_none()));
    let end = |end| LockRequest::EndWait { inode: FILE, ticket: 9, end };
    serve_now(&service, 2, end(WaitEnd::Interrupted)).expect("a wait");
    serve_now(&service, 3, end(WaitEnd::Deadlock)).expect("a wait");
    serve_now(&service, 4, end(WaitEnd::Overtake)).expect("a wait");
    assert_eq!(poll(&mut waits[0]), Some(Err(Errno::EINTR.into())));
    assert_eq!(poll(&mut waits[1]), Some(Err(Errno::EDEADLK.into())));
    assert_eq!(poll(&mut waits[2]), None, "node 1 holds the lock");
    let unlock = LockRequest::Unlock { inode: FILE, owner: lock(1).owner, range: LockRange::ALL };
    serve_now(&service, 1, unlock).expect("an unlock");
    assert_eq!(poll(&mut waits[2]), Some(Ok(LockReply::Done)));
    service.peer_failed(NodeId(4));
    assert!(service.state.lock().files.is_empty(), "a file without locks has no state");
}

/// A request whose reply was lost leaves no lock, whichever of request and withdrawal arrives first.
#[test]
fn a_withdrawn_request_leaves_no_lock() {
    let service = service();
    let withdraw =
        |ticket| LockRequest::Withdraw { inode: FILE, owner: lock(1).owner, range: lock(1).range, ticket };
    assert_eq!(poll(&mut request_lock(&service, 1, 1, true)), Some(Ok(LockReply::Done)));
    serve_now(&service, 1, withdraw(1)).expect("a withdrawal");
    serve_now(&service, 1, withdraw(2)).expect("a withdrawal");
    assert_eq!(
        poll(&mut request_lock(&service, 1, 2, true)),
        Some(Err(Errno::EINTR.into())),
        "the withdrawal arrived first"
    );
    assert_eq!(poll(&mut request_lock(&service, 2, 1, false)), Some(Ok(LockReply::Done)));
    let mut waits = request_lock(&service, 1, 3, true);
    assert_eq!(poll(&mut waits), None);
    serve_now(&service, 1, withdraw(3)).expect("a withdrawal");
    assert_eq!(poll(&mut waits), Some(Err(Errno::EINTR.into())));
}

#[test]
fn a_lock_for_another_node_is_refused() {
    let service = service();
    let request = LockRequest::Lock { inode: FILE, lock: lock(1), ticket: 1, wait: false };
    let refused = serve_now(&service, 2, request).expect_err("the owner is on another node");
    assert_eq!(refused.errno, Errno::EPROTO);
}

/// Without the limit, a program that locks every second byte would fill the memory of the home.
#[test]
fn the_number_of_locks_of_a_file_is_limited() {
    let service = service();
    let byte = |start| FileLock { range: LockRange { start, last: start }, ..lock(1) };
    let take = |start| LockRequest::Lock { inode: FILE, lock: byte(start), ticket: start, wait: false };
    let full = LOCKS_PER_FILE_MAX as u64 - 1;
    for number in 0..full {
        serve_now(&service, 1, take(10 * number)).expect("below the limit");
    }
    let refused = serve_now(&service, 1, take(10 * full)).expect_err("above the limit");
    assert_eq!(refused.errno, Errno::ENOLCK);
    let unlock = |range| LockRequest::Unlock { inode: FILE, owner: byte(0).owner, range };
    serve_now(&service, 1, unlock(LockRange { start: 0, last: 5 })).expect("an unlock");
    serve_now(&service, 1, take(10 * full)).expect("below the limit again");
}
