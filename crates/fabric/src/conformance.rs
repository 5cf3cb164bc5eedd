//! Conformance tests of the [`Fabric`] trait. Each back end runs all of [`TESTS`] over a network of its own kind.

use super::{Fabric, Incoming, Lane, PeerEvent, Receiver};
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Queue, Sender, channel};
use std::time::Duration;
use tameike_core::limits::{MESSAGE_SIZE_MAX, UNIT_SIZE};
use tameike_core::{Cluster, Errno, JobId, NodeId, NodeInfo};
use tameike_io::os::runtime::Runtime;
use tameike_io::slab::{Frame, Payload, Pool};

/// A time limit beyond any expected delay.
const TIME_LIMIT: Duration = Duration::from_secs(30);
pub(super) const A: NodeId = NodeId(0);
pub(super) const B: NodeId = NodeId(1);

pub(super) trait Network {
    /// Starts the agent of a node, or starts it again at the same address.
    fn start(&self, node: NodeId, receiver: Arc<dyn Receiver>) -> Arc<dyn Fabric>;
    /// Ends the agent's process.
    fn kill(&self, node: NodeId);
    fn runtime(&self) -> Runtime;
    /// A pool of at least 8 frames for the tests.
    fn frames(&self) -> Pool;
}

/// Queues what arrives.
pub(super) struct Inbox {
    messages: Sender<Incoming>,
    events: Sender<(NodeId, PeerEvent)>,
}

impl Receiver for Inbox {
    fn message(&self, incoming: Incoming) {
        let _ = self.messages.send(incoming);
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        let _ = self.events.send((peer, event));
    }
}

pub(super) struct Agent {
    pub fabric: Arc<dyn Fabric>,
    pub messages: Queue<Incoming>,
    pub events: Queue<(NodeId, PeerEvent)>,
}

impl Agent {
    pub(super) fn start(network: &dyn Network, node: NodeId) -> Self {
        Self::with(|inbox| network.start(node, inbox))
    }

    /// The agent of a fabric to which `start` attaches the receiver.
    pub(super) fn with(start: impl FnOnce(Arc<dyn Receiver>) -> Arc<dyn Fabric>) -> Self {
        let (message_sender, messages) = channel();
        let (event_sender, events) = channel();
        let inbox = Inbox { messages: message_sender, events: event_sender };
        Self { fabric: start(Arc::new(inbox)), messages, events }
    }

    /// Sends a request without a payload.
    pub(super) fn send(&self, network: &dyn Network, to: NodeId, body: &[u8]) {
        let send = self.fabric.send(to, Lane::Request, body.to_vec(), None);
        wait(&network.runtime(), send).expect("the peer is reachable");
    }

    pub(super) fn next(&self) -> Incoming {
        self.messages.recv_timeout(TIME_LIMIT).expect("a message arrives")
    }

    pub(super) fn expect_event(&self, expected: PeerEvent) {
        loop {
            let (_, event) = self.events.recv_timeout(TIME_LIMIT).expect("an event arrives");
            if event == expected {
                return;
            }
        }
    }
}

/// Runs `future` as a task and blocks this thread until it completes.
pub(super) fn wait<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let (sender, receiver) = channel();
    runtime.spawn(async move {
        let _ = sender.send(future.await);
    });
    receiver.recv_timeout(TIME_LIMIT).expect("the task ends in time and does not panic")
}

/// A job of `nodes` nodes.
pub(super) fn cluster(nodes: u32) -> Arc<Cluster> {
    let info =
        |id| NodeInfo { id: NodeId(id), host: String::new(), address: String::new(), group: 0, device: true };
    let job = JobId::new("job").expect("a name");
    Arc::new(Cluster::new(job, (0..nodes).map(info).collect(), 1).expect("a cluster"))
}

pub(super) fn pattern(frame: &mut Frame, seed: u8) {
    for (index, byte) in frame.iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8).wrapping_add(seed);
    }
}

pub(super) fn patterned(pool: &Pool, seed: u8) -> Payload {
    let mut frame = pool.try_take().expect("a frame for the test");
    pattern(&mut frame, seed);
    Payload::new(Arc::new(frame), 0..UNIT_SIZE as u32)
}

pub(super) type Test = fn(&dyn Network);

/// Every test, with its name. Each needs a fresh network.
pub(super) const TESTS: [(&str, Test); 8] = [
    ("messages of all sizes arrive on both lanes", messages_of_all_sizes_arrive),
    ("messages that are too large are refused", too_large_messages_are_refused),
    ("a put fills the granted frame", a_put_fills_the_granted_frame),
    ("a put to a revoked grant is dropped", a_put_to_a_revoked_grant_is_dropped),
    ("a get reads the granted bytes", a_get_reads_the_granted_bytes),
    ("a revoked frame is never written", a_revoked_frame_is_never_written),
    ("many threads send at once", many_threads_send_at_once),
    ("a peer fails and restarts", a_peer_fails_and_restarts),
];

fn messages_of_all_sizes_arrive(network: &dyn Network) {
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let payload = patterned(&network.frames(), 1);
    for (number, body_size) in [0, 1, 4095, 100_000, MESSAGE_SIZE_MAX].into_iter().enumerate() {
        for lane in [Lane::Request, Lane::Reply] {
            for size in [0, 1, 1000, a.fabric.inline_max() as u32] {
                let body = vec![number as u8; body_size];
                let start = size.min(1);
                let sent = payload.slice(start..size);
                wait(&network.runtime(), a.fabric.send(B, lane, body.clone(), Some(sent.clone())))
                    .expect("b is reachable");
                let found = b.next();
                assert_eq!((found.from, found.lane), (A, lane));
                assert!(found.body == body);
                assert!(found.payload.as_deref().unwrap_or(&[]) == &sent[..]);
                assert_eq!(found.payload.is_some(), size > start);
            }
        }
    }
    wait(&network.runtime(), b.fabric.send(A, Lane::Reply, b"back".to_vec(), None)).expect("a is reachable");
    assert_eq!(a.next().body, b"back");
}

fn too_large_messages_are_refused(network: &dyn Network) {
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let refused = |body, payload| {
        let fault = wait(&network.runtime(), a.fabric.send(B, Lane::Request, body, payload));
        assert_eq!(fault.map_err(|fault| fault.errno), Err(Errno::EINVAL));
    };
    refused(vec![0; MESSAGE_SIZE_MAX + 1], None);
    if a.fabric.inline_max() < UNIT_SIZE {
        refused(Vec::new(), Some(patterned(&network.frames(), 0)));
    }
    a.send(network, B, b"small");
    assert_eq!(b.next().body, b"small");
}

fn a_put_fills_the_granted_frame(network: &dyn Network) {
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let source = patterned(&network.frames(), 7);
    for size in [1, 70_000, UNIT_SIZE as u32] {
        let mut frame = network.frames().try_take().expect("a frame");
        frame.fill(0);
        let grant = a.fabric.grant_write(frame);
        let body = size.to_le_bytes().to_vec();
        wait(&network.runtime(), b.fabric.put(A, grant, source.slice(0..size), body.clone()))
            .expect("a is reachable");
        let found = a.next();
        assert_eq!((found.from, found.lane, &found.body), (B, Lane::Reply, &body));
        let frame = a.fabric.revoke(grant).expect("no peer is writing");
        assert!(frame[..size as usize] == source[..size as usize]);
        assert!(frame[size as usize..].iter().all(|&byte| byte == 0));
    }
}

fn a_put_to_a_revoked_grant_is_dropped(network: &dyn Network) {
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let source = patterned(&network.frames(), 7);
    let mut frame = network.frames().try_take().expect("a frame");
    frame.fill(0);
    let grant = a.fabric.grant_write(frame);
    let frame = a.fabric.revoke(grant).expect("no peer is writing");
    assert!(a.fabric.revoke(grant).is_none());
    wait(&network.runtime(), b.fabric.put(A, grant, source, b"dropped".to_vec())).expect("a is reachable");
    wait(&network.runtime(), b.fabric.send(A, Lane::Reply, b"kept".to_vec(), None)).expect("a is reachable");
    assert_eq!(a.next().body, b"kept");
    assert!(frame.iter().all(|&byte| byte == 0));
}

fn a_get_reads_the_granted_bytes(network: &dyn Network) {
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let source = patterned(&network.frames(), 9);
    let grant = b.fabric.grant_read(source.slice(100..UNIT_SIZE as u32));
    let mut frame = network.frames().try_take().expect("a frame");
    for length in [0, 1, 5000, UNIT_SIZE as u32 - 100] {
        frame.fill(0);
        let (back, result) = wait(&network.runtime(), a.fabric.get(B, grant, frame, length));
        result.expect("the grant is active");
        assert!(back[..length as usize] == source[100..100 + length as usize]);
        assert!(back[length as usize..].iter().all(|&byte| byte == 0));
        frame = back;
    }
    let (frame, result) = wait(&network.runtime(), a.fabric.get(B, grant, frame, UNIT_SIZE as u32));
    assert_eq!(result.expect_err("more than was granted").errno, Errno::ESTALE);
    assert!(b.fabric.revoke(grant).is_none(), "only frames granted for writing are returned");
    let (_, result) = wait(&network.runtime(), a.fabric.get(B, grant, frame, 1));
    assert_eq!(result.expect_err("revoked").errno, Errno::ESTALE);
}

/// Revokes at all points in time of a put. The test overwrites each returned frame, and the put must not change it.
fn a_revoked_frame_is_never_written(network: &dyn Network) {
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let source = patterned(&network.frames(), 3);
    let runtime = network.runtime();
    for round in 0..60_u64 {
        let frame = wait(&runtime, {
            let pool = network.frames();
            async move { pool.take().await }
        });
        let grant = a.fabric.grant_write(frame);
        let put = b.fabric.put(A, grant, source.clone(), b"put".to_vec());
        runtime.spawn(async move { put.await.expect("a is reachable") });
        wait(&runtime, runtime.sleep(Duration::from_micros(round * 23)));
        if let Some(mut frame) = a.fabric.revoke(grant) {
            frame.fill(0x55);
            wait(&runtime, runtime.sleep(Duration::from_millis(3)));
            assert!(frame.iter().all(|&byte| byte == 0x55), "round {round}");
        }
    }
    b.send(network, A, b"end");
    while a.next().body != b"end" {}
}

fn many_threads_send_at_once(network: &dyn Network) {
    const THREADS: u8 = 4;
    const EACH: u32 = 150;
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    let payload = patterned(&network.frames(), 5);
    let size = a.fabric.inline_max().min(100_000) as u32;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (from, to) = if thread % 2 == 0 { (&a, B) } else { (&b, A) };
            let (fabric, payload, runtime) = (from.fabric.clone(), payload.clone(), network.runtime());
            scope.spawn(move || {
                for number in 0..EACH {
                    let lane = if number % 3 == 0 { Lane::Reply } else { Lane::Request };
                    let beside = (number % 2 == 0).then(|| payload.slice(0..size));
                    let mut body = vec![thread];
                    body.extend(number.to_le_bytes());
                    wait(&runtime, fabric.send(to, lane, body, beside)).expect("the peer is reachable");
                }
            });
        }
        for agent in [&a, &b] {
            let mut bodies: Vec<_> = (0..u32::from(THREADS) / 2 * EACH)
                .map(|_| {
                    let found = agent.next();
                    assert!(found.payload.is_none_or(|found| found[..] == payload[..size as usize]));
                    found.body
                })
                .collect();
            bodies.sort();
            bodies.dedup();
            assert_eq!(bodies.len() as u32, u32::from(THREADS) / 2 * EACH);
        }
    });
}

fn a_peer_fails_and_restarts(network: &dyn Network) {
    let runtime = network.runtime();
    let (a, b) = (Agent::start(network, A), Agent::start(network, B));
    a.send(network, B, b"one");
    assert_eq!(b.next().body, b"one");
    a.expect_event(PeerEvent::Up);
    network.kill(B);
    a.expect_event(PeerEvent::Failed);
    let fault = wait(&runtime, a.fabric.send(B, Lane::Request, b"two".to_vec(), None));
    let fault = fault.expect_err("b has failed");
    assert_eq!(fault.errno, Errno::EHOSTDOWN);
    assert!(fault.to_string().contains("node 1"), "{fault}");
    let b = Agent::start(network, B);
    // An attempt to connect that began before b restarted may still fail.
    let mut attempts = 0;
    while let Err(fault) = wait(&runtime, a.fabric.send(B, Lane::Request, b"three".to_vec(), None)) {
        attempts += 1;
        assert!(attempts < 100, "b has restarted, but: {fault}");
        wait(&runtime, runtime.sleep(Duration::from_millis(20)));
    }
    a.expect_event(PeerEvent::Up);
    assert_eq!(b.next().body, b"three");
}
