//! Calls to homes between agents with different home maps.

use super::*;
use tameike_core::{HomeId, HomeMap};

const HOME: HomeId = HomeId(4);

/// The map after `cluster`'s in which `node` serves [`HOME`].
fn next_map(cluster: &Cluster, node: NodeId) -> HomeMap {
    (*cluster.map()).clone().with_primary(HOME, node)
}

/// The numbers of requests that a node has executed.
fn executed(node: &Node) -> Vec<u64> {
    node.memory.executed.lock().iter().flat_map(|(&number, &count)| vec![number; count as usize]).collect()
}

#[test]
fn a_request_to_a_home_follows_the_newer_map_and_is_executed_once() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = pair(&network);
    let ask = |number| done(wait(&network.runtime(), a.rpc.call(HOME.into(), count(number), None, None)));
    assert_eq!(a.cluster.primary(HOME), A);
    ask(1);
    // The caller's map is newer: the server gets it.
    assert!(a.cluster.replace_map(next_map(&a.cluster, B)));
    ask(2);
    assert_eq!(b.cluster.map(), a.cluster.map());
    // The server's map is newer: the caller gets it. The next node is the caller itself.
    assert!(b.cluster.replace_map(next_map(&b.cluster, A)));
    ask(3);
    assert_eq!(b.cluster.map(), a.cluster.map());
    // The same, and the next node is the server.
    assert!(b.cluster.replace_map(next_map(&b.cluster, B)));
    assert!(b.cluster.replace_map(next_map(&b.cluster, B)));
    assert!(a.cluster.replace_map((*b.cluster.map()).clone()));
    assert!(b.cluster.replace_map(next_map(&b.cluster, B)));
    ask(4);
    assert_eq!((executed(&a), executed(&b)), (vec![1, 3], vec![2, 4]));
}

#[test]
fn payloads_survive_a_refusal() {
    for inline_max in [UNIT_SIZE, 3000] {
        let network = SocketNetwork::new(inline_max, 2);
        let (a, b) = pair(&network);
        let payload = patterned(&network.frames(), 7).slice(0..UNIT_SIZE as u32);
        for cluster in [&a.cluster, &b.cluster, &b.cluster] {
            assert!(cluster.replace_map(next_map(cluster, B)));
            let write = a.rpc.call(HOME.into(), write(0), Some(payload.clone()), None);
            done(wait(&network.runtime(), write));
            assert!(cluster.replace_map(next_map(cluster, B)));
            let frame = network.frames().try_take().expect("a frame");
            let place = frame.as_ptr();
            let read = a.rpc.call(HOME.into(), read(0, UNIT_SIZE as u32), None, Some(frame));
            let bytes = wait(&network.runtime(), read).expect("the unit was written").payload.expect("bytes");
            assert!(bytes[..] == payload[..]);
            assert_eq!(bytes.as_ptr(), place, "the bytes are in the frame of the caller");
        }
    }
}

#[test]
fn a_caller_chooses_its_nodes_again_if_the_map_has_changed() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = pair(&network);
    let ask = |to, epoch| {
        wait(&network.runtime(), a.rpc.call(Destination::Primary(to, epoch), count(1), None, None))
    };
    let old = a.cluster.map().epoch;
    assert!(b.cluster.replace_map(next_map(&b.cluster, B)));
    for to in [B, B, A] {
        assert_eq!(ask(to, old).err().map(|fault| fault.errno), Some(Errno::EREMCHG));
        assert_eq!(a.cluster.map(), b.cluster.map());
    }
    assert_eq!((executed(&a), executed(&b)), (vec![], vec![]));
    done(ask(B, a.cluster.map().epoch));
    assert_eq!(executed(&b), [1]);
}

#[test]
fn nodes_that_were_chosen_stay_chosen_while_no_primary_changes() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = pair(&network);
    let ask = |to| wait(&network.runtime(), a.rpc.call(to, count(1), None, None));
    let old = a.cluster.map().epoch;
    assert!(b.cluster.replace_map(b.cluster.map().readmitting(B)));
    done(ask(Destination::Primary(B, old)));
    assert_eq!(executed(&b), [1]);
    assert!(a.cluster.epoch() > old);
    // Backups may be others.
    assert_eq!(ask(Destination::Backup(B, old)).err().map(|fault| fault.errno), Some(Errno::EREMCHG));
    // The caller has not seen the map under which another node was the primary.
    assert!(b.cluster.replace_map(next_map(&b.cluster, B).with_primary(HOME, A)));
    let answer = ask(Destination::Primary(B, old));
    assert_eq!(answer.err().map(|fault| fault.errno), Some(Errno::EREMCHG));
    assert_eq!(executed(&b), [1]);
}

#[test]
fn work_is_done_again_under_the_next_map() {
    let cluster = cluster(2);
    let epochs = Mutex::new(Vec::new());
    let worked = crate::under_one_map(&cluster, |map| {
        epochs.lock().push(map.epoch.0);
        let is_refused = epochs.lock().len() < 3 && cluster.replace_map(next_map(&cluster, B));
        std::future::ready(if is_refused { Err(Errno::EREMCHG.into()) } else { Ok(map.primary(HOME)) })
    });
    assert_eq!(worked.now_or_never(), Some(Ok(B)));
    assert_eq!(*epochs.lock(), [1, 2, 3]);
    let failed = crate::under_one_map(&cluster, |_| std::future::ready(Err::<(), _>(Errno::EIO.into())));
    assert_eq!(failed.now_or_never(), Some(Err(Errno::EIO.into())));
}

#[test]
fn calls_to_an_agent_of_another_job_fail() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, b) = pair_of(&network, [2, 3]);
    for (cluster, steps) in [(&a.cluster, 1), (&b.cluster, 5)] {
        (0..steps).for_each(|_| assert!(cluster.replace_map(next_map(cluster, B))));
        let call = a.rpc.call(HOME.into(), count(1), None, None);
        assert_eq!(wait(&network.runtime(), call).err().map(|fault| fault.errno), Some(Errno::EPROTO));
    }
    assert_eq!((executed(&a), executed(&b)), (vec![], vec![]));
}

/// Regression: a refused request that arrived twice was executed after the server had got the map.
#[test]
fn a_refused_request_that_arrives_again_is_refused_again() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let a = Agent::start(&network, A);
    let b = node(&network, B, |fabric| fabric);
    let newer = next_map(&b.cluster, B);
    let id = CallId { epoch: 1, slot: 0, sequence: 1 };
    let header = RequestHeader {
        id,
        source: None,
        target: None,
        places: false,
        scope: Scope::Home(HOME, newer.epoch),
        number: None,
    };
    let ask = || {
        let body = encode(&(header, count(1))).expect("small");
        wait(&network.runtime(), a.fabric.send(B, Lane::Request, body, None)).expect("b is reachable");
        let incoming = a.next();
        let (header, rest) = decode_first::<ReplyHeader>(&incoming.body).expect("a reply");
        assert_eq!(header.id, id);
        decode::<Reply>(rest).expect("a reply")
    };
    assert_eq!(ask(), Reply::OtherMap((*b.cluster.map()).clone()));
    assert!(b.cluster.replace_map(newer.clone()));
    assert_eq!(ask(), Reply::OtherMap(newer));
    assert_eq!(executed(&b), []);
}
