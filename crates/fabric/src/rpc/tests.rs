mod failover;
mod locations;
mod maps;

use super::*;
use crate::conformance::{A, Agent, B, Network, cluster, patterned, wait};
use crate::socket::tests::SocketNetwork;
use crate::{Carried, FabricLayer, RequestContext, SendFuture, ServeFuture, Service, Target};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::{AdminReply, AdminRequest};
use tameike_core::wire::codec::encode;
use tameike_core::wire::unit::{Backing, UnitReply, UnitRequest};
use tameike_core::{Generation, InodeId, UnitId, View};

const INODE: InodeId = InodeId(77);

/// Keeps units in memory, and counts truncations.
struct Memory {
    runtime: Runtime,
    pool: Pool,
    units: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// How often each truncation was executed.
    executed: Mutex<BTreeMap<u64, u32>>,
    events: Mutex<Vec<(NodeId, PeerEvent)>>,
    /// Requests to homes wait forever.
    hangs: AtomicBool,
    /// The numbers of the requests that were executed.
    calls: Mutex<Vec<Option<NumberedCall>>>,
}

impl Memory {
    async fn unit(
        self: Arc<Self>,
        request: UnitRequest,
        payload: Option<Payload>,
    ) -> (UnitReply, Option<Payload>) {
        match request {
            UnitRequest::Write { unit, .. } => {
                let bytes = payload.expect("a write has bytes").to_vec();
                self.units.lock().insert(unit.index, bytes);
                self.runtime.sleep(Duration::from_millis(1)).await;
                (UnitReply::Done, None)
            }
            UnitRequest::Read { unit, length, .. } => {
                let mut frame = self.pool.take().await;
                let units = self.units.lock();
                frame[..length as usize].copy_from_slice(&units[&unit.index][..length as usize]);
                (UnitReply::Read, Some(Payload::new(Arc::new(frame), 0..length)))
            }
            UnitRequest::Truncate { size, .. } => {
                *self.executed.lock().entry(size).or_default() += 1;
                self.runtime.sleep(Duration::from_millis(size % 3)).await;
                (UnitReply::Done, None)
            }
            other => panic!("unexpected request: {other:?}"),
        }
    }
}

struct MemoryService(Arc<Memory>, Arc<Cluster>);

impl Service for MemoryService {
    fn admit(&self, context: &RequestContext, _: &Request) -> Option<BoxFuture<'static, Result<()>>> {
        let hangs = context.home.is_some() && self.0.hangs.load(Ordering::SeqCst);
        let memory = self.0.clone();
        // Longer than any test waits.
        let hang = async move {
            memory.runtime.sleep(Duration::from_secs(3600)).await;
            Ok(())
        };
        hangs.then(|| hang.boxed())
    }

    fn serve(
        &self,
        RequestContext { from, call, .. }: RequestContext,
        request: Request,
        payload: Option<Payload>,
        _target: Target,
    ) -> ServeFuture {
        self.0.calls.lock().push(call);
        let (memory, cluster) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            match request {
                Request::Unit(request) => {
                    let (reply, payload) = memory.unit(request, payload).await;
                    (Reply::Unit(reply), payload.map_or(Carried::Nothing, Carried::Payload))
                }
                Request::Admin(AdminRequest::Map(map)) => {
                    let is_ours = cluster.fits(&map);
                    cluster.replace_map(map);
                    let reply = if is_ours {
                        Reply::Admin(AdminReply::Done)
                    } else {
                        Reply::Fault(Errno::EPROTO.into())
                    };
                    (reply, Carried::Nothing)
                }
                Request::Admin(AdminRequest::Space { view: View::Cache }) => {
                    memory.runtime.sleep(Duration::from_millis(3500)).await;
                    (Reply::Admin(AdminReply::Space(Default::default())), Carried::Nothing)
                }
                Request::Admin(AdminRequest::Space { view: View::NodeLocal }) => {
                    (Reply::Fault(Fault::new(Errno::ENOENT, format!("from {from}"))), Carried::Nothing)
                }
                Request::Admin(AdminRequest::Status) => {
                    // Longer than any test waits.
                    memory.runtime.sleep(Duration::from_secs(3600)).await;
                    (Reply::Fault(Errno::EIO.into()), Carried::Nothing)
                }
                other => panic!("unexpected request: {other:?}"),
            }
        })
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        self.0.events.lock().push((peer, event));
    }
}

struct Node {
    rpc: RpcNode,
    memory: Arc<Memory>,
    cluster: Arc<Cluster>,
}

fn node(network: &SocketNetwork, id: NodeId, wrap: impl Fn(Arc<dyn Fabric>) -> Arc<dyn Fabric>) -> Node {
    node_of(network, id, cluster(2), wrap)
}

fn node_of(
    network: &SocketNetwork,
    id: NodeId,
    cluster: Arc<Cluster>,
    wrap: impl Fn(Arc<dyn Fabric>) -> Arc<dyn Fabric>,
) -> Node {
    let fabric = network.begin(network.config(id));
    let runtime = network.systems[id.0 as usize].runtime().clone();
    let rpc = RpcNode::new(wrap(fabric), runtime.clone(), network.pool(network.frames));
    let memory = Arc::new(Memory {
        runtime,
        pool: network.pool(network.frames),
        units: Mutex::default(),
        executed: Mutex::default(),
        events: Mutex::default(),
        hangs: AtomicBool::default(),
        calls: Mutex::default(),
    });
    rpc.attach(Arc::new(MemoryService(memory.clone(), cluster.clone())), cluster.clone());
    Node { rpc, memory, cluster }
}

fn pair(network: &SocketNetwork) -> (Node, Node) {
    pair_of(network, [2, 2])
}

/// Two nodes that take the job to have so many nodes.
fn pair_of(network: &SocketNetwork, nodes: [u32; 2]) -> (Node, Node) {
    let start = |id, nodes| node_of(network, id, cluster(nodes), |fabric| fabric);
    (start(A, nodes[0]), start(B, nodes[1]))
}

fn write(index: u64) -> Request {
    let unit = UnitId { inode: INODE, index };
    Request::Unit(UnitRequest::Write { unit, ranges: RangeSet::new(), generation: Generation(0) })
}

fn read(index: u64, length: u32) -> Request {
    let unit = UnitId { inode: INODE, index };
    let (generation, backing) = (Generation(0), Backing::Zeros);
    Request::Unit(UnitRequest::Read { unit, offset: 0, length, generation, backing })
}

fn count(number: u64) -> Request {
    Request::Unit(UnitRequest::Truncate { inode: INODE, size: number })
}

fn done(answer: Result<Answer>) {
    assert_eq!(answer.expect("served").reply, Reply::Unit(UnitReply::Done));
}

#[test]
fn written_bytes_are_read_back() {
    for inline_max in [UNIT_SIZE, 3000] {
        for network in SocketNetwork::both(inline_max, 2) {
            let (a, b) = pair(&network);
            let runtime = network.runtime();
            for (index, size) in [1, 2999, 3001, UNIT_SIZE as u32].into_iter().enumerate() {
                let payload = patterned(&network.frames(), size as u8).slice(0..size);
                for to in [A, B] {
                    done(wait(
                        &runtime,
                        a.rpc.call(to.into(), write(index as u64), Some(payload.clone()), None),
                    ));
                    for into in [None, Some(network.frames().try_take().expect("a frame"))] {
                        let answer =
                            wait(&runtime, a.rpc.call(to.into(), read(index as u64, size), None, into));
                        let answer = answer.expect("the unit was written");
                        assert_eq!(answer.reply, Reply::Unit(UnitReply::Read));
                        assert!(answer.payload.as_deref() == Some(&payload[..]));
                    }
                }
            }
            assert_eq!(a.memory.units.lock().len(), 4);
            assert!(*a.memory.units.lock() == *b.memory.units.lock());
        }
    }
}

#[test]
fn a_fault_arrives_as_an_error() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let (a, _b) = pair(&network);
    let call =
        a.rpc.call(B.into(), Request::Admin(AdminRequest::Space { view: View::NodeLocal }), None, None);
    let fault = wait(&network.runtime(), call).err().expect("a fault");
    assert_eq!((fault.errno, fault.to_string()), (Errno::ENOENT, "from node 0".to_owned()));
}

#[test]
fn a_request_that_cannot_be_decoded_or_served_returns_a_fault() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let a = Agent::start(&network, A);
    let _b = node(&network, B, |fabric| fabric);
    let mut sequence = 0;
    let mut ask = |request: &[u8]| {
        sequence += 1;
        let id = CallId { epoch: 1, slot: 0, sequence };
        let mut body = encode(&RequestHeader {
            id,
            source: None,
            target: None,
            places: false,
            scope: Scope::Node,
            number: None,
        })
        .expect("small");
        body.extend(request);
        wait(&network.runtime(), a.fabric.send(B, Lane::Request, body, None)).expect("b is reachable");
        let incoming = a.next();
        let (header, rest) = decode_first::<ReplyHeader>(&incoming.body).expect("a reply");
        assert_eq!(header.id, id);
        match decode::<Reply>(rest).expect("a reply") {
            Reply::Fault(fault) => fault.errno,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&[0xff, 0xff, 0xff]), Errno::EBADMSG);
    assert_eq!(ask(b""), Errno::EBADMSG);
    // The service panics on this request.
    let unwanted = Request::Unit(UnitRequest::Sync { inode: INODE, durable: false });
    assert_eq!(ask(&encode(&unwanted).expect("small")), Errno::EIO);
    wait(&network.runtime(), a.fabric.send(B, Lane::Request, b"\xff".to_vec(), None)).expect("no header");
    wait(&network.runtime(), a.fabric.send(B, Lane::Reply, b"\xff".to_vec(), None)).expect("no header");
    assert_eq!(ask(&[9]), Errno::EBADMSG);
}

#[test]
fn each_request_is_executed_once_while_connections_break() {
    const THREADS: u64 = 3;
    const EACH: u64 = 120;
    for network in SocketNetwork::both(UNIT_SIZE, 2) {
        let (a, b) = pair(&network);
        let payload = patterned(&network.frames(), 8);
        let fabrics: Vec<_> = network.fabrics.lock().iter().flatten().cloned().collect();
        let left = AtomicU32::new(THREADS as u32);
        let breaks = std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (a, payload, network, left) = (&a, &payload, &network, &left);
                scope.spawn(move || {
                    for round in 0..EACH {
                        let number = thread * EACH + round;
                        done(wait(&network.runtime(), a.rpc.call(B.into(), count(number), None, None)));
                        if round % 8 == 0 {
                            let write = a.rpc.call(B.into(), write(thread), Some(payload.clone()), None);
                            done(wait(&network.runtime(), write));
                            let into = network.frames().try_take();
                            let read = a.rpc.call(B.into(), read(thread, UNIT_SIZE as u32), None, into);
                            let found = wait(&network.runtime(), read).expect("the unit was written").payload;
                            assert!(found.as_deref() == Some(&payload[..]));
                        }
                    }
                    left.fetch_sub(1, Ordering::SeqCst);
                });
            }
            let mut breaks = 0;
            while left.load(Ordering::SeqCst) > 0 {
                wait(&network.runtime(), network.runtime().sleep(Duration::from_millis(7)));
                fabrics[breaks % 2].break_connections();
                breaks += 1;
            }
            breaks
        });
        assert!(breaks > 5);
        let executed = b.memory.executed.lock();
        assert_eq!(executed.len() as u64, THREADS * EACH);
        assert!(executed.values().all(|&times| times == 1));
        assert!(!a.memory.events.lock().iter().any(|(_, event)| *event == PeerEvent::Failed));
    }
}

/// Sends every request twice, and loses the first reply to each.
struct Unreliable {
    fabric: Arc<dyn Fabric>,
    lost: Arc<Mutex<BTreeMap<Vec<u8>, u32>>>,
}

impl FabricLayer for Unreliable {
    fn inner(&self) -> &dyn Fabric {
        &*self.fabric
    }

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        if lane == Lane::Reply {
            let times = *self.lost.lock().entry(body.clone()).and_modify(|times| *times += 1).or_default();
            if times == 0 {
                return Box::pin(async { Ok(()) });
            }
            return self.fabric.send(to, lane, body, payload);
        }
        let first = self.fabric.send(to, lane, body.clone(), payload.clone());
        let second = self.fabric.send(to, lane, body, payload);
        Box::pin(async move { first.await.and(second.await) })
    }
}

#[test]
fn lost_and_duplicate_messages_are_masked() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let lost: Arc<Mutex<_>> = Arc::default();
    let unreliable = |fabric| -> Arc<dyn Fabric> { Arc::new(Unreliable { fabric, lost: lost.clone() }) };
    let (a, b) = (node(&network, A, unreliable), node(&network, B, unreliable));
    let (sender, receiver) = channel();
    for number in 0..50 {
        let (call, sender) = (a.rpc.call(B.into(), count(number), None, None), sender.clone());
        network.runtime().spawn(async move {
            done(call.await);
            sender.send(()).expect("the test listens");
        });
    }
    for _ in 0..50 {
        receiver.recv_timeout(Duration::from_secs(20)).expect("every call returns");
    }
    let executed = b.memory.executed.lock();
    assert_eq!(executed.len(), 50);
    assert!(executed.values().all(|&times| times == 1));
    assert!(!lost.lock().is_empty());
}

#[test]
fn hundreds_of_large_writes_both_ways_through_two_frames_do_not_deadlock() {
    for inline_max in [UNIT_SIZE, 3000] {
        for network in SocketNetwork::both(inline_max, 2) {
            let (a, b) = pair(&network);
            let payload = patterned(&network.frames(), 2);
            let (sender, receiver) = channel();
            for index in 0..100 {
                for (node, to) in [(&a, B), (&b, A)] {
                    let (call, sender) =
                        (node.rpc.call(to.into(), write(index), Some(payload.clone()), None), sender.clone());
                    node.memory.runtime.spawn(async move {
                        done(call.await);
                        sender.send(()).expect("the test listens");
                    });
                }
            }
            for _ in 0..200 {
                receiver.recv_timeout(Duration::from_secs(30)).expect("every write returns");
            }
            for node in [&a, &b] {
                let units = node.memory.units.lock();
                assert_eq!(units.len(), 100);
                assert!(units.values().all(|unit| unit[..] == payload[..]));
            }
        }
    }
}

#[test]
fn calls_to_a_failed_agent_fail_and_to_its_restart_succeed() {
    for network in SocketNetwork::both(UNIT_SIZE, 2) {
        let (a, b) = pair(&network);
        let runtime = network.runtime();
        done(wait(&runtime, a.rpc.call(B.into(), count(1), None, None)));
        let hanging =
            a.rpc.call(B.into(), Request::Admin(AdminRequest::Status), None, network.frames().try_take());
        let (sender, receiver) = channel();
        runtime.spawn(async move { drop(sender.send(hanging.await.err())) });
        network.kill(B);
        drop(b);
        let fault =
            receiver.recv_timeout(Duration::from_secs(5)).expect("the call ends").expect("with a fault");
        assert_eq!(fault.errno, Errno::EHOSTDOWN);
        assert!(fault.to_string().contains("node 1 has failed"), "{fault}");
        let fault = wait(&runtime, a.rpc.call(B.into(), count(2), None, None)).err().expect("b has failed");
        assert_eq!(fault.errno, Errno::EHOSTDOWN);
        let b = node(&network, B, |fabric| fabric);
        done(wait(&runtime, a.rpc.call(B.into(), count(3), None, None)));
        assert_eq!(*b.memory.executed.lock(), [(3, 1)].into());
        assert!(a.memory.events.lock().contains(&(B, PeerEvent::Failed)));
    }
}

#[test]
fn a_slow_reply_is_awaited_and_a_hung_agent_times_out() {
    for mut network in SocketNetwork::both(UNIT_SIZE, 2) {
        network.peer_limit = Duration::from_millis(1500);
        let (a, b) = pair(&network);
        let runtime = network.runtime();
        let slow =
            a.rpc.call(B.into(), Request::Admin(AdminRequest::Space { view: View::Cache }), None, None);
        wait(&runtime, slow).expect("a reply after the time limit");
        // Blocks the reactor of b until the sender is dropped.
        let (sender, receiver) = channel::<()>();
        let resume = b.memory.runtime.sleep(Duration::from_millis(1));
        b.memory.runtime.spawn(async move {
            resume.await;
            let _ = receiver.recv();
        });
        wait(&runtime, runtime.sleep(Duration::from_millis(20)));
        let fault = wait(&runtime, a.rpc.call(B.into(), count(1), None, None)).err().expect("b hangs");
        assert_eq!(fault.errno, Errno::EHOSTDOWN);
        assert!(fault.to_string().contains("node 1 is unreachable"), "{fault}");
        drop(sender);
        // Back-off may still be running: a new call ends it, and may see one more failed attempt.
        let back = (0..5).any(|_| wait(&runtime, a.rpc.call(B.into(), count(2), None, None)).is_ok());
        assert!(back);
    }
}

#[test]
fn a_dropped_call_revokes_its_grants() {
    for network in SocketNetwork::both(3000, 2) {
        let (a, _b) = pair(&network);
        let frames = network.pool(2);
        let payload = patterned(&frames, 1);
        let into = frames.try_take();
        let mut call = a.rpc.call(B.into(), Request::Admin(AdminRequest::Status), Some(payload), into);
        assert!((&mut call).now_or_never().is_none());
        assert!(frames.try_take().is_none());
        drop(call);
        let taken = wait(&network.runtime(), async move { (frames.take().await, frames.take().await) });
        drop(taken);
    }
}
