use super::handshake::{Channel, Identity};
use super::seal::Stream;
use super::*;
use crate::conformance::{A, Agent, B, Network, TESTS, patterned, wait};
use crate::ofi::{FRAMES, Provider};
use crate::{Incoming, PeerEvent};
use std::io::{Read, Write};
use std::net::TcpStream;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::slab::{BlockSums, Slab};

/// Two nodes on this machine, each with a reactor.
pub(crate) struct SocketNetwork {
    pub systems: [System; 2],
    /// The job's secret, which determines the names of local sockets. Concurrent tests may need different ones.
    pub secret: [u8; 32],
    pub fabrics: Mutex<[Option<Arc<SocketFabric>>; 2]>,
    addresses: Mutex<[Option<String>; 2]>,
    slab: Arc<Slab>,
    own: Pool,
    pub inline_max: usize,
    pub frames: u32,
    pub peer_limit: Duration,
    /// Whether the nodes use local sockets.
    pub one_host: bool,
    /// The libfabric provider, if any.
    pub ofi: Option<Provider>,
    /// The device of both nodes.
    pub device: Option<Arc<HostDevice>>,
}

impl SocketNetwork {
    pub(crate) fn new(inline_max: usize, frames: u32) -> Self {
        let slab = Slab::new(frames * 8 + 64).expect("memory");
        let systems = [System::start(2).expect("threads"), System::start(2).expect("threads")];
        let own = slab.pool(60);
        let (fabrics, addresses) = Default::default();
        Self {
            systems,
            secret: [7; 32],
            fabrics,
            addresses,
            slab,
            own,
            inline_max,
            frames,
            peer_limit: Duration::from_secs(10),
            one_host: false,
            ofi: None,
            device: None,
        }
    }

    /// A network over TCP, and one over local sockets.
    pub(crate) fn both(inline_max: usize, frames: u32) -> [Self; 2] {
        [false, true].map(|one_host| {
            let mut network = Self::new(inline_max, frames);
            network.one_host = one_host;
            network
        })
    }

    pub(crate) fn config(&self, node: NodeId) -> SocketConfig {
        let known = self.addresses.lock()[node.0 as usize].clone();
        SocketConfig {
            node,
            job: JobId::new("test").expect("a valid name"),
            secret: self.secret,
            listen: known.unwrap_or_else(|| "127.0.0.1:0".into()),
            inline_max: self.inline_max,
            peer_limit: self.peer_limit,
            request_frames: self.slab.pool(self.frames),
            reply_frames: self.slab.pool(self.frames),
            slab: self.one_host.then(|| self.slab.clone()),
            ofi: self.ofi.map(|provider| OfiConfig {
                provider: Some(provider),
                slab: self.slab.clone(),
                frames: self.slab.pool(FRAMES),
            }),
            device: self.device.clone(),
            connections: CONNECTIONS_DEFAULT,
        }
    }

    pub(crate) fn begin(&self, config: SocketConfig) -> Arc<SocketFabric> {
        let node = config.node.0 as usize;
        let fabric = Arc::new(SocketFabric::listen(config, &self.systems[node]).expect("a free port"));
        let mut addresses = self.addresses.lock();
        let mut fabrics = self.fabrics.lock();
        addresses[node] = Some(fabric.local_addr().to_string());
        fabrics[node] = Some(fabric.clone());
        for fabric in fabrics.iter().flatten() {
            let peers = [A, B].into_iter().filter_map(|id| Some((id, addresses[id.0 as usize].clone()?)));
            fabric.set_peers(peers.collect());
        }
        fabric
    }

    pub(super) fn fabric(&self, node: NodeId) -> Arc<SocketFabric> {
        self.fabrics.lock()[node.0 as usize].clone().expect("started")
    }

    /// Waits until both lanes to the peer use libfabric in both directions.
    fn wait_for_links(&self, fabric: &SocketFabric, peer: NodeId) {
        let (inner, runtime) = (fabric.inner.clone(), self.runtime());
        wait(&self.runtime(), async move {
            for lane in [Lane::Request, Lane::Reply] {
                let connection = inner.connection(peer, lane).await.expect("the peer is reachable");
                while !connection.link.get().is_some_and(|link| link.is_usable()) {
                    assert!(connection.closed().is_none(), "{:?}", connection.closed());
                    runtime.sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }

    pub(crate) fn pool(&self, share: u32) -> Pool {
        self.slab.pool(share)
    }
}

impl Network for SocketNetwork {
    fn start(&self, node: NodeId, receiver: Arc<dyn Receiver>) -> Arc<dyn Fabric> {
        let fabric = self.begin(self.config(node));
        fabric.attach(receiver);
        let others = self.fabrics.lock().iter().flatten().count() > 1;
        if self.ofi.is_some() && others {
            self.wait_for_links(&fabric, if node == A { B } else { A });
        }
        fabric
    }

    fn kill(&self, node: NodeId) {
        if let Some(fabric) = self.fabrics.lock()[node.0 as usize].take() {
            fabric.kill();
        }
    }

    fn runtime(&self) -> Runtime {
        self.systems[0].runtime().clone()
    }

    fn frames(&self) -> Pool {
        self.own.clone()
    }
}

impl Drop for SocketNetwork {
    fn drop(&mut self) {
        [A, B].into_iter().for_each(|node| self.kill(node));
    }
}

#[test]
fn sockets_pass_the_conformance_tests() {
    for inline_max in [UNIT_SIZE, 3000] {
        for (name, test) in TESTS {
            for network in SocketNetwork::both(inline_max, 4) {
                println!("{name} (inline_max {inline_max}, on one host: {})", network.one_host);
                test(&network);
            }
        }
    }
}

#[test]
fn sockets_with_libfabric_pass_the_conformance_tests() {
    for provider in [Provider::Tcp, Provider::Shm] {
        for (name, test) in TESTS {
            println!("{name} (libfabric: {provider})");
            let mut network = SocketNetwork::new(UNIT_SIZE, 4);
            network.ofi = Some(provider);
            test(&network);
        }
    }
}

/// Messages in flight are lost with an endpoint, and so are its connections: both ends reconnect, and use sockets.
#[test]
fn agents_continue_over_sockets_after_libfabric_ends() {
    let mut network = SocketNetwork::new(UNIT_SIZE, 4);
    network.ofi = Some(Provider::Tcp);
    let (a, b) = (Agent::start(&network, A), Agent::start(&network, B));
    let fabric = network.fabric(B);
    fabric.inner.close_links();
    let payload = patterned(&network.frames(), 1);
    for (from, to, number) in [(&a, &b, 0), (&b, &a, 1), (&a, &b, 2)] {
        let peer = to.fabric.local();
        let send = || from.fabric.send(peer, Lane::Request, vec![number], Some(payload.clone()));
        // A message lost with its connection is sent again, as requests are.
        while let Err(fault) = wait(&network.runtime(), send()) {
            assert_eq!(fault.errno, Errno::ECONNRESET, "{fault}");
        }
        let found = to.next();
        assert!(found.body == [number] && found.payload.as_deref() == Some(&payload[..]));
    }
    let peers = fabric.inner.peers.lock();
    let is_usable =
        |connection: &Arc<connection::Connection>| connection.link.get().is_some_and(|link| link.is_usable());
    assert!(!peers[&A].connections().any(is_usable));
    drop(peers);
    let counted = fabric.counters();
    assert!(counted.iter().any(|counter| counter.value > 0), "libfabric was used before: {counted:?}");
}

/// Frames in use by a write return when it ends, and not before.
#[test]
fn frames_of_gets_from_a_failed_peer_return() {
    for provider in [None, Some(Provider::Tcp), Some(Provider::Shm)] {
        let mut network = SocketNetwork::new(UNIT_SIZE, 4);
        network.ofi = provider;
        for _ in 0..5 {
            let (a, b) = (Agent::start(&network, A), Agent::start(&network, B));
            let (runtime, pool) = (network.runtime(), network.frames());
            let source = patterned(&pool, 1);
            let grant = b.fabric.grant_read(source.clone());
            let (report, reports) = std::sync::mpsc::channel();
            for _ in 0..40 {
                let frame = pool.try_take().expect("a frame");
                let (get, report) = (a.fabric.get(B, grant, frame, UNIT_SIZE as u32), report.clone());
                runtime.spawn(async move { drop(report.send(get.await)) });
            }
            let (first, got) = reports.recv_timeout(Duration::from_secs(10)).expect("the transfer ends");
            assert!(got.is_err() || first[..] == source[..]);
            network.kill(B);
            for _ in 1..40 {
                let (frame, got) = reports.recv_timeout(Duration::from_secs(30)).expect("the transfer ends");
                assert!(got.is_err() || frame[..] == source[..], "{provider:?}");
            }
            network.kill(A);
        }
    }
}

fn neighbours(frames: u32) -> SocketNetwork {
    let [_, one_host] = SocketNetwork::both(UNIT_SIZE, frames);
    one_host
}

#[test]
fn agents_of_one_host_export_large_payloads_and_regain_the_frames() {
    let network = neighbours(4);
    let (a, b) = (Agent::start(&network, A), Agent::start(&network, B));
    let pool = network.frames();
    let held = pool.clone();
    let sent = wait(&network.runtime(), async move {
        let payload = patterned(&held, 1);
        a.fabric.send(B, Lane::Request, b"exported".to_vec(), Some(payload)).await.map(|()| a)
    });
    let a = sent.expect("b is reachable");
    // The peer's report of the copy has arrived, and the frame is free.
    let all: Vec<_> = (0..pool.share()).map(|_| pool.try_take().expect("a frame")).collect();
    drop(all);
    let found = b.next();
    assert_eq!(found.body, b"exported");
    assert!(found.payload.as_deref() == Some(&patterned(&pool, 1)[..]));
    let fabric = network.fabric(A);
    assert!(fabric.inner.is_neighbour(B));
    drop(a);
}

#[test]
fn exports_to_a_failed_peer_end() {
    let network = neighbours(1);
    let (a, b) = (Agent::start(&network, A), Agent::start(&network, B));
    let (runtime, pool) = (network.runtime(), network.frames());
    // B keeps its only frame for requests, so it cannot copy the second payload.
    let first = a.fabric.send(B, Lane::Request, b"first".to_vec(), Some(patterned(&pool, 1)));
    wait(&runtime, first).expect("b is reachable");
    let kept = b.next();
    let (report, reports) = std::sync::mpsc::channel();
    let second = a.fabric.send(B, Lane::Request, b"second".to_vec(), Some(patterned(&pool, 2)));
    runtime.spawn(async move { drop(report.send(second.await)) });
    let early = reports.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "the payload is not copied: {early:?}");
    network.kill(B);
    let fault =
        reports.recv_timeout(Duration::from_secs(10)).expect("the transfer ends").expect_err("b has failed");
    assert!(matches!(fault.errno, Errno::ECONNRESET | Errno::EHOSTDOWN), "{fault}");
    drop(kept);
    let all: Vec<_> = (0..pool.share()).map_while(|_| pool.try_take()).collect();
    assert_eq!(all.len() as u32, pool.share());
}

#[test]
fn an_agent_without_exports_is_reached_by_tcp() {
    let network = neighbours(2);
    let a = Agent::start(&network, A);
    let b = Agent::with(|inbox| {
        let fabric = network.begin(SocketConfig { slab: None, ..network.config(B) });
        fabric.attach(inbox);
        fabric
    });
    let payload = patterned(&network.frames(), 3);
    wait(&network.runtime(), a.fabric.send(B, Lane::Request, b"over".to_vec(), Some(payload.clone())))
        .expect("b is reachable");
    let found = b.next();
    assert!(found.payload.as_deref() == Some(&payload[..]));
    let fabric = network.fabric(A);
    assert!(!fabric.inner.is_neighbour(B));
}

fn refusal(change: impl Fn(&mut SocketConfig)) -> Fault {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let a = Agent::start(&network, A);
    let mut config = network.config(B);
    change(&mut config);
    let b = network.begin(config);
    let sent = wait(&network.runtime(), a.fabric.send(B, Lane::Request, b"secret".to_vec(), None));
    let back = wait(&network.runtime(), b.send(A, Lane::Request, b"secret".to_vec(), None));
    assert_eq!(back.expect_err("a refuses b").errno, Errno::EHOSTDOWN);
    assert!(a.messages.try_recv().is_err());
    sent.expect_err("a refuses b")
}

#[test]
fn an_agent_without_the_secret_is_refused() {
    let fault = refusal(|config| config.secret[31] ^= 1);
    assert!(fault.to_string().contains("does not know the secret of job test"), "{fault}");
}

#[test]
fn an_agent_of_another_job_is_refused() {
    let fault = refusal(|config| config.job = JobId::new("other").expect("valid"));
    assert!(fault.to_string().contains("belongs to another job"), "{fault}");
}

/// A fake peer that authenticates, and is then driven by the test.
pub(super) fn impostor(network: &SocketNetwork, to: &SocketFabric) -> (TcpStream, Stream) {
    let config = network.config(B);
    let stream = TcpStream::connect(to.local_addr()).expect("a listens");
    stream.set_nonblocking(true).expect("a socket");
    let ours = stream.try_clone().expect("a descriptor").into();
    let socket = Watched::<OwnedFd>::new(network.systems[1].reactor(), ours).expect("a socket");
    let proven = wait(&network.runtime(), async move {
        let identity = Identity { config: &config, channel: Channel::Tcp, incarnation: 5, nonce: [1; 32] };
        identity.open(&socket, A).await.expect("the secret is right")
    });
    stream.set_nonblocking(false).expect("a socket");
    (stream, Stream::new(proven.keys.outgoing))
}

/// Encodes the next message of a stream.
pub(super) fn sealed(stream: &mut Stream, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let beside = (payload.len() as u32, BlockSums::of(payload).digest());
    let header = header::Header::new(Kind::Message, Lane::Request, body, beside).encode();
    let mut message = stream.message();
    let first = message.update(&header).update(body).tag();
    let second = message.update(payload).tag();
    let second = if payload.is_empty() { &[][..] } else { &second };
    [&header, body, &first, payload, second].concat()
}

#[test]
fn damage_ends_only_its_connection() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let a = Agent::start(&network, A);
    let fabric = network.fabric(A);
    let size = sealed(&mut Stream::new([0; 32]), b"body", b"payload").len();
    for damaged in 0..size {
        let (mut stream, mut seals) = impostor(&network, &fabric);
        let good = sealed(&mut seals, b"body", b"payload");
        let mut bytes = sealed(&mut seals, b"body", b"payload");
        bytes[damaged] ^= 0x10;
        stream.write_all(&good).and_then(|()| stream.write_all(&bytes)).expect("a reads");
        assert_eq!(a.next().body, b"body");
        // After the damage, the end of the stream (or a reset, when bytes were left unread).
        assert!(stream.read_to_end(&mut Vec::new()).is_ok_and(|count| count == 0) || damaged < 44 + 4 + 32);
        assert!(a.messages.try_recv().is_err(), "byte {damaged}");
    }
    let _b = Agent::start(&network, B);
    a.send(&network, B, b"alive");
}

#[test]
fn unauthenticated_connections_get_nothing_and_are_closed() {
    let network = SocketNetwork::new(UNIT_SIZE, 2);
    let a = Agent::start(&network, A);
    let fabric = network.fabric(A);
    let clock = network.runtime().clock;
    let begun = clock.monotonic();
    let mut silent = TcpStream::connect(fabric.local_addr()).expect("a listens");
    let mut loud = TcpStream::connect(fabric.local_addr()).expect("a listens");
    loud.write_all(&[0x5a; 200]).expect("a reads");
    let mut answer = Vec::new();
    let _ = loud.read_to_end(&mut answer);
    assert!(answer.len() <= 112, "a hello at most, and never a proof");
    assert_eq!(silent.read(&mut [0; 1]).expect("an orderly close"), 0);
    assert!(clock.monotonic() - begun < Duration::from_secs(8));
    assert!(a.messages.try_recv().is_err());
}

#[test]
fn a_peer_that_hangs_is_unreachable_and_may_return() {
    let mut network = SocketNetwork::new(UNIT_SIZE, 2);
    network.peer_limit = Duration::from_secs(1);
    let a = Agent::start(&network, A);
    // Accepts, authenticates, and then stays silent.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let fabric = network.fabric(A);
    fabric.set_peers(vec![(B, address)]);
    let send = a.fabric.send(B, Lane::Request, b"hello".to_vec(), None);
    network.runtime().spawn(async move { drop(send.await) });
    let (stream, _) = listener.accept().expect("a connects");
    stream.set_nonblocking(true).expect("a socket");
    let socket =
        Arc::new(Watched::<OwnedFd>::new(network.systems[1].reactor(), stream.into()).expect("a socket"));
    let (config, held) = (network.config(B), socket.clone());
    wait(&network.runtime(), async move {
        let identity = Identity { config: &config, channel: Channel::Tcp, incarnation: 5, nonce: [1; 32] };
        identity.accept(&held).await.expect("the secret is right");
    });
    a.expect_event(PeerEvent::Up);
    let clock = network.runtime().clock;
    let begun = clock.monotonic();
    while a.events.try_recv().ok() != Some((B, PeerEvent::Unreachable)) {
        assert!(clock.monotonic() - begun < Duration::from_secs(10));
        a.fabric.probe(B);
        wait(&network.runtime(), network.runtime().sleep(Duration::from_millis(200)));
    }
    // The other half had passed at the first probe.
    assert!(clock.monotonic() - begun >= network.peer_limit / 2);
    drop((listener, socket));
    let b = Agent::start(&network, B);
    a.expect_event(PeerEvent::Up);
    a.send(&network, B, b"again");
    assert_eq!(b.next().body, b"again");
}

/// Keeps what arrives until the test drops it.
struct Holder(Mutex<Vec<Incoming>>);

impl Receiver for Holder {
    fn message(&self, incoming: Incoming) {
        self.0.lock().push(incoming);
    }
    fn peer(&self, _: NodeId, _: PeerEvent) {}
}

#[test]
fn replies_flow_while_all_request_frames_are_in_use() {
    for network in SocketNetwork::both(UNIT_SIZE, 2) {
        let a = Agent::start(&network, A);
        let holder = Arc::new(Holder(Mutex::default()));
        let b = network.start(B, holder.clone());
        let payload = patterned(&network.frames(), 1);
        for _ in 0..20 {
            let send = a.fabric.send(B, Lane::Request, Vec::new(), Some(payload.clone()));
            network.runtime().spawn(async move { drop(send.await) });
        }
        for number in 0..10_u8 {
            let grant = a.fabric.grant_read(payload.clone());
            let frame = network.frames().try_take().expect("a frame");
            let (_, got) = wait(&network.runtime(), b.get(A, grant, frame, UNIT_SIZE as u32));
            got.expect("gets are not blocked");
            wait(&network.runtime(), b.send(A, Lane::Reply, vec![number], None)).expect("nor replies");
            assert_eq!(a.next().body, [number]);
        }
        assert!(holder.0.lock().len() <= 2, "no more than there are frames");
        let mut taken = 0;
        while taken < 20 {
            taken += std::mem::take(&mut *holder.0.lock()).len();
            wait(&network.runtime(), network.runtime().sleep(Duration::from_millis(1)));
        }
    }
}
