//! Many agents with few connections, over real sockets.

mod calls;

use super::*;
use crate::conformance::{patterned, wait};
use crate::ofi::{FRAMES, OfiConfig, Provider};
use crate::socket::{SocketConfig, SocketFabric};
use crate::{Fabric, GrantId, Incoming, Lane, PeerEvent, Receiver};
use std::collections::BTreeMap;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Errno, JobId};
use tameike_io::os::system::System;
use tameike_io::slab::{Payload, Pool, Slab};

/// A time limit beyond any expected delay.
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Tally {
    /// How often each message arrived, by sender and body.
    messages: Mutex<BTreeMap<(NodeId, Vec<u8>), u32>>,
    /// Messages with a wrong payload.
    foreign: AtomicUsize,
    events: Mutex<Vec<(NodeId, PeerEvent)>>,
    expects: AtomicBool,
}

impl Receiver for Tally {
    fn message(&self, Incoming { from, body, payload, .. }: Incoming) {
        let is_of = |bytes: &Payload| {
            let expected = |at: usize| {
                (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(from.0 as u8)
            };
            bytes.iter().enumerate().all(|(at, byte)| *byte == expected(at))
        };
        let is_foreign = payload.is_some_and(|bytes| !is_of(&bytes));
        self.foreign.fetch_add(usize::from(is_foreign), Ordering::Relaxed);
        *self.messages.lock().entry((from, body)).or_default() += 1;
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        self.events.lock().push((peer, event));
    }

    fn is_expecting(&self, _: NodeId) -> bool {
        self.expects.load(Ordering::Relaxed)
    }
}

impl Tally {
    fn count(&self) -> usize {
        self.messages.lock().len()
    }

    /// Checks that no message arrived twice, or with a wrong payload.
    fn check(&self) {
        assert!(self.messages.lock().values().all(|count| *count == 1));
        assert_eq!(self.foreign.load(Ordering::Relaxed), 0);
    }

    fn losses(&self) -> Vec<(NodeId, PeerEvent)> {
        self.events.lock().iter().filter(|(_, event)| *event != PeerEvent::Up).copied().collect()
    }
}

struct Node {
    fabric: Arc<SocketFabric>,
    tally: Arc<Tally>,
}

/// Whether nodes use local sockets, and the provider of libfabric, if any.
type Transports = (bool, Option<Provider>);

const TRANSPORTS: [Transports; 4] =
    [(false, None), (true, None), (false, Some(Provider::Tcp)), (false, Some(Provider::Shm))];

/// Frames of the slab for the tests.
const OWN_FRAMES: u32 = 64;

/// Starts fabrics that do not know each other's address yet.
fn listen(
    count: u32,
    connections: usize,
    (one_host, provider): Transports,
) -> (System, Arc<Slab>, Vec<Arc<SocketFabric>>) {
    let system = System::start(2).expect("threads");
    let slab = Slab::new(count * (8 + FRAMES) + OWN_FRAMES).expect("memory");
    let listen = |node| {
        let config = SocketConfig {
            node: NodeId(node),
            job: JobId::new(if one_host { "few-here" } else { "few" }).expect("a valid name"),
            secret: [7; 32],
            listen: "127.0.0.1:0".into(),
            inline_max: UNIT_SIZE,
            peer_limit: Duration::from_secs(10),
            request_frames: slab.pool(4),
            reply_frames: slab.pool(4),
            slab: one_host.then(|| slab.clone()),
            ofi: provider.map(|provider| OfiConfig {
                provider: Some(provider),
                slab: slab.clone(),
                frames: slab.pool(FRAMES),
            }),
            device: None,
            connections,
        };
        Arc::new(SocketFabric::listen(config, &system).expect("a free port"))
    };
    let fabrics = (0..count).map(listen).collect();
    (system, slab, fabrics)
}

fn introduce(fabrics: &[Arc<SocketFabric>]) {
    let addresses = fabrics.iter().map(|fabric| fabric.local_addr().to_string());
    let addresses: Vec<_> = (0..).map(NodeId).zip(addresses).collect();
    fabrics.iter().for_each(|fabric| fabric.set_peers(addresses.clone()));
}

/// Agents with a low bound on connections.
struct Agents {
    system: System,
    nodes: Vec<Node>,
    own: Pool,
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.fabric.kill());
    }
}

impl Agents {
    fn start(count: u32, connections: usize, transports: Transports) -> Self {
        let (system, slab, fabrics) = listen(count, connections, transports);
        let node = |fabric: &Arc<SocketFabric>| {
            let (fabric, tally) = (fabric.clone(), Arc::new(Tally::default()));
            fabric.attach(tally.clone());
            Node { fabric, tally }
        };
        let nodes = fabrics.iter().map(node).collect();
        introduce(&fabrics);
        Self { system, nodes, own: slab.pool(OWN_FRAMES) }
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let runtime = self.system.runtime();
        let begun = runtime.clock.monotonic();
        while !is_so() {
            assert!(runtime.clock.monotonic() - begun < TIME_LIMIT, "not so: {what}");
            wait(runtime, runtime.sleep(Duration::from_millis(1)));
        }
    }

    fn connections(&self, node: usize) -> usize {
        self.nodes[node].fabric.inner.occupancy.connections.load(Ordering::Relaxed)
    }

    fn send(&self, from: usize, to: u32, lane: Lane, body: &[u8], payload: Option<Payload>) {
        let send = self.nodes[from].fabric.send(NodeId(to), lane, body.to_vec(), payload);
        wait(self.system.runtime(), send).expect("the peer is reachable");
    }

    fn settle(&self, connections: usize) {
        for (number, node) in self.nodes.iter().enumerate() {
            let within = || self.connections(number) <= connections;
            self.until(&format!("node {number} has at most {connections}"), within);
            assert_eq!(node.tally.losses(), [], "no peer was reported as failed");
        }
    }
}

#[test]
fn an_agent_that_contacts_many_peers_keeps_few_connections() {
    for transports in TRANSPORTS {
        let agents = Agents::start(12, 2, transports);
        let payloads: Vec<_> = (0..12).map(|node| patterned(&agents.own, node).slice(0..100_000)).collect();
        let mut most = 0;
        for round in 0..3_u8 {
            for to in 1..12 {
                for lane in [Lane::Request, Lane::Reply] {
                    for (from, to) in [(0, to), (to, 0)] {
                        let payload = payloads[from as usize].clone();
                        agents.send(from as usize, to, lane, &[round, lane as u8], Some(payload));
                    }
                }
                most = most.max(agents.connections(0));
            }
        }
        assert!(most <= PER_PEER * (2 + slack(2)), "{most} connections");
        agents.settle(2 * PER_PEER);
        agents.until("all messages have arrived", || agents.nodes[0].tally.count() == 11 * 6);
        for node in &agents.nodes[1..] {
            agents.until("all messages have arrived", || node.tally.count() == 6);
        }
        agents.nodes.iter().for_each(|node| node.tally.check());
    }
}

/// One agent sends to all others at once: messages, puts, gets and exports.
fn exchange(agents: &Agents, from: usize, grants: &[(GrantId, GrantId)]) {
    let (fabric, runtime) = (&agents.nodes[from].fabric, agents.system.runtime());
    let source = patterned(&agents.own, from as u8);
    for number in 0..60_u32 {
        let to = (from as u32 + 1 + (number * 7 + number / 5) % (agents.nodes.len() as u32 - 1))
            % agents.nodes.len() as u32;
        let (readable, writable) = grants[to as usize];
        let mut body = vec![from as u8];
        body.extend(number.to_le_bytes());
        let size = [10, 40_000, UNIT_SIZE as u32][number as usize % 3];
        let lane = if number % 2 == 0 { Lane::Request } else { Lane::Reply };
        match number % 4 {
            0 | 1 => wait(runtime, fabric.send(NodeId(to), lane, body, Some(source.slice(0..size)))),
            2 => wait(runtime, fabric.put(NodeId(to), writable, source.slice(0..size), body)),
            _ => {
                let frame = wait(runtime, {
                    let own = agents.own.clone();
                    async move { own.take().await }
                });
                let (frame, got) = wait(runtime, fabric.get(NodeId(to), readable, frame, size));
                let expected = patterned(&agents.own, 100 + to as u8);
                assert!(got.is_err() || frame[..size as usize] == expected[..size as usize]);
                got
            }
        }
        .unwrap_or_else(|fault| panic!("{from} to {to}, number {number}: {fault}"));
    }
}

#[test]
fn no_message_is_lost_when_all_agents_send_at_once() {
    for transports in TRANSPORTS {
        let agents = Agents::start(6, 2, transports);
        let grants: Vec<_> = (0..agents.nodes.len())
            .map(|node| {
                let fabric = &agents.nodes[node].fabric;
                let frame = agents.own.try_take().expect("a frame");
                (fabric.grant_read(patterned(&agents.own, 100 + node as u8)), fabric.grant_write(frame))
            })
            .collect();
        std::thread::scope(|scope| {
            for from in 0..agents.nodes.len() {
                let (agents, grants) = (&agents, &grants);
                scope.spawn(move || exchange(agents, from, grants));
            }
        });
        // Of 60 operations, every fourth is a get. A put to a frame that another put is filling is dropped with its body.
        let sent: usize = agents.nodes.iter().map(|node| node.tally.count()).sum();
        assert!(sent <= 6 * 45);
        let sends = |node: &Node| {
            let messages = node.tally.messages.lock();
            let is_send = |body: &[u8]| body[1] % 4 < 2;
            messages.keys().filter(|(_, body)| is_send(body)).count()
        };
        agents.until("all messages have arrived", || agents.nodes.iter().map(sends).sum::<usize>() == 6 * 30);
        agents.nodes.iter().for_each(|node| node.tally.check());
        agents.settle(2 * PER_PEER);
        for (node, (readable, writable)) in agents.nodes.iter().zip(grants) {
            node.fabric.revoke(readable);
            assert!(node.fabric.revoke(writable).is_some());
        }
        // All exports have ended.
        agents.until("no export is left", || {
            agents.nodes.iter().all(|node| (0..6).all(|to| !node.fabric.inner.exports.any(NodeId(to))))
        });
    }
}

#[test]
fn the_failure_of_an_idle_peer_is_detected_on_use() {
    let agents = Agents::start(5, 1, TRANSPORTS[0]);
    agents.send(0, 1, Lane::Request, b"one", None);
    for to in 2..5 {
        agents.send(0, to, Lane::Request, b"one", None);
    }
    agents.settle(PER_PEER);
    agents.until("node 1 is idle", || agents.connections(1) == 0);
    agents.nodes[1].fabric.close();
    let send = agents.nodes[0].fabric.send(NodeId(1), Lane::Request, b"two".to_vec(), None);
    let fault = wait(agents.system.runtime(), send).expect_err("the peer has failed");
    assert_eq!(fault.errno, Errno::EHOSTDOWN);
    assert_eq!(agents.nodes[0].tally.losses(), [(NodeId(1), PeerEvent::Failed)]);
}

#[test]
fn peers_that_are_exempt_or_expect_replies_stay_connected() {
    let agents = Agents::start(6, 1, TRANSPORTS[0]);
    agents.nodes[1].tally.expects.store(true, Ordering::Relaxed);
    for (one, other) in [(0, 2), (2, 0)] {
        agents.nodes[one].fabric.keep(&[NodeId(other)]);
    }
    let is_connected = |with: u32| {
        let peers = agents.nodes[0].fabric.inner.peers.lock();
        peers.get(&NodeId(with)).is_some_and(|peer| peer.opened.is_some())
    };
    for to in 1..6 {
        agents.send(0, to, Lane::Request, b"one", None);
    }
    // Node 0 closes the connections with node 1, which reopens them because it expects a reply.
    for round in 0..5_u8 {
        for to in 3..6 {
            agents.send(0, to, Lane::Request, &[round], None);
        }
        agents.until("a peer that expects a reply is connected", || is_connected(1));
        assert!(is_connected(2), "an exempt peer stays connected");
    }
    agents.nodes[1].fabric.close();
    agents.until("its failure is reported at once", || {
        agents.nodes[0].tally.losses() == [(NodeId(1), PeerEvent::Failed)]
    });
}
