//! Calls to homes with replicas, whose primary fails.

use super::*;
use tameike_core::{Generation, HomeId, InodeId, JobId, NodeInfo};

/// Two nodes that both have all homes.
fn replicated() -> Arc<Cluster> {
    let node =
        |id| NodeInfo { id, host: format!("host{}", id.0), address: String::new(), group: 0, device: true };
    let job = JobId::new("job").expect("a name");
    Arc::new(Cluster::new(job, vec![node(A), node(B)], 2).expect("two nodes"))
}

fn replicated_pair(network: &SocketNetwork) -> (Node, Node) {
    let start = |id| node_of(network, id, replicated(), |fabric| fabric);
    (start(A), start(B))
}

/// A home that a node serves.
fn home_of(cluster: &Cluster, node: NodeId) -> HomeId {
    cluster.map().served_by(node).next().expect("both serve homes")
}

/// Waits until the other node has got a request.
fn wait_until(runtime: &Runtime, is_there: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_there() {
            return;
        }
        wait(runtime, runtime.sleep(Duration::from_millis(5)));
    }
    panic!("it never came");
}

#[test]
fn a_call_to_an_excluded_node_goes_to_the_next_primary_with_its_number() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = replicated_pair(&network);
    let (runtime, home) = (network.runtime(), home_of(&a.cluster, B));
    done(wait(&runtime, a.rpc.call(home.into(), count(1), None, None)));
    done(wait(&runtime, a.rpc.call(B.into(), count(2), None, None)));
    let numbers = b.memory.calls.lock().clone();
    let first = numbers[0].expect("it may be repeated");
    assert_eq!((first.node, first.number.number, numbers[1]), (A, 1, None));
    // The node does not answer any more.
    b.memory.hangs.store(true, Ordering::SeqCst);
    let (resolver, answer) = promise();
    let call = a.rpc.call(home.into(), count(3), None, None);
    runtime.spawn(async move { resolver.resolve(call.await) });
    wait(&runtime, runtime.sleep(Duration::from_millis(50)));
    assert!(a.cluster.replace_map(a.cluster.map().excluding(B)));
    done(wait(&runtime, answer));
    assert_eq!(*a.memory.executed.lock(), BTreeMap::from([(3, 1)]));
    let repeated = a.memory.calls.lock()[0].expect("it may be repeated");
    assert_eq!((repeated.node, repeated.incarnation), (A, first.incarnation));
    assert_eq!((repeated.number.number, repeated.number.finished), (2, 2));
}

/// A failed fsync is reported to the first flush only, whose answer may be lost.
#[test]
fn only_the_caller_repeats_a_flush() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = replicated_pair(&network);
    drop(b);
    network.kill(B);
    let flush = UnitRequest::Flush {
        inode: InodeId(1),
        path: b"file".to_vec(),
        size: 1,
        generation: Generation(1),
        patient: false,
        distrust: false,
        round: 1,
        ending: None,
    };
    let to = Destination::Primary(B, a.cluster.epoch());
    let answer = wait(&network.runtime(), a.rpc.call(to, Request::Unit(flush), None, None));
    assert_eq!(answer.err().map(|fault| fault.errno), Some(Errno::EREMCHG));
}

#[test]
fn a_call_to_a_failed_primary_waits_for_the_next_one() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = replicated_pair(&network);
    let (runtime, home) = (network.runtime(), home_of(&a.cluster, B));
    done(wait(&runtime, a.rpc.call(home.into(), count(1), None, None)));
    drop(b);
    network.kill(B);
    let payload = patterned(&network.frames(), 9).slice(0..1000);
    let (resolver, answer) = promise();
    let call = a.rpc.call(home.into(), write(5), Some(payload.clone()), None);
    runtime.spawn(async move { resolver.resolve(call.await) });
    wait_until(&runtime, || a.memory.events.lock().contains(&(B, PeerEvent::Failed)));
    assert!(a.memory.units.lock().is_empty());
    assert!(a.cluster.replace_map(a.cluster.map().excluding(B)));
    done(wait(&runtime, answer));
    assert!(a.memory.units.lock()[&5] == payload[..]);
}

#[test]
fn a_call_fails_if_no_other_node_has_the_home() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = replicated_pair(&network);
    let (runtime, home) = (network.runtime(), home_of(&a.cluster, B));
    assert!(a.cluster.replace_map(a.cluster.map().without_backup(home, A).excluding(B)));
    assert_eq!(a.cluster.primary(home), B);
    drop(b);
    network.kill(B);
    let failed = wait(&runtime, a.rpc.call(home.into(), count(1), None, None)).err();
    assert_eq!(failed.map(|fault| fault.errno), Some(Errno::EHOSTDOWN));
    // Calls to the node itself do not move.
    let failed = wait(&runtime, a.rpc.call(B.into(), count(1), None, None)).err();
    assert_eq!(failed.map(|fault| fault.errno), Some(Errno::EHOSTDOWN));
}

/// Regression: when an agent had stopped, a call to a home waited for the next primary, on a thread that the timers needed.
#[test]
fn calls_end_with_the_agent() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = replicated_pair(&network);
    let (runtime, home) = (network.runtime(), home_of(&a.cluster, B));
    done(wait(&runtime, a.rpc.call(home.into(), count(1), None, None)));
    drop(b);
    network.kill(B);
    let (resolver, answer) = promise();
    let call = a.rpc.call(home.into(), count(2), None, None);
    runtime.spawn(async move { resolver.resolve(call.await) });
    wait_until(&runtime, || a.memory.events.lock().contains(&(B, PeerEvent::Failed)));
    a.rpc.close();
    let later = wait(&runtime, a.rpc.call(home.into(), count(3), None, None));
    for answer in [wait(&runtime, answer), later] {
        assert_eq!(answer.err().map(|fault| fault.errno), Some(Errno::EHOSTDOWN));
    }
    assert!(a.memory.executed.lock().is_empty());
}
