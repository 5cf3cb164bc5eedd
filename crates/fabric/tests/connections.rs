//! Agents with at most one connected peer each: every request gets a reply and is executed once.
#![forbid(unsafe_code)]

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, InodeId, JobId, NodeId};
use tameike_fabric::rpc::RpcNode;
use tameike_fabric::socket::{SocketConfig, SocketFabric};
use tameike_fabric::{Carried, PeerEvent, Rpc, Service, Target};
use tameike_io::os::system::System;
use tameike_io::{Payload, Runtime, Slab};

const NODES: u32 = 6;
const CALLS: u64 = 200;
/// The lowest bits of a request's number select how many further nodes it visits.
const STOPS: u64 = 8;
/// A time limit beyond any expected delay.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Serves requests, some after a pause, and some after a request to another node.
struct Answerer {
    node: u32,
    runtime: Runtime,
    rpc: OnceLock<Arc<RpcNode>>,
    /// How often each request was executed, by caller and number.
    executed: Mutex<BTreeMap<(NodeId, u64), u32>>,
    events: Mutex<Vec<(NodeId, PeerEvent)>>,
}

fn request(number: u64) -> Request {
    // A request that is not read-only.
    Request::Client(ClientRequest::Kept { inode: InodeId(number) })
}

struct Served(Arc<Answerer>);

impl Service for Served {
    fn serve(
        &self,
        from: NodeId,
        request: Request,
        _: Option<Payload>,
        _: Target,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let Request::Client(ClientRequest::Kept { inode: InodeId(number) }) = request else {
            return Box::pin(async { (Reply::Fault(Errno::EPROTO.into()), Carried::Nothing) });
        };
        let answerer = self.0.clone();
        *answerer.executed.lock().entry((from, number)).or_default() += 1;
        Box::pin(async move {
            answerer.runtime.sleep(Duration::from_millis(number % 7)).await;
            let stops = number % STOPS;
            if stops > 0 {
                // Each stop is at another node, which continues the chain.
                let next =
                    NodeId((answerer.node + 1 + (number / STOPS % u64::from(NODES - 1)) as u32) % NODES);
                let rpc = answerer.rpc.get().expect("the agent is started");
                if let Err(fault) = rpc.call(next, self::request(number - 1), None, None).await {
                    return (Reply::Fault(fault), Carried::Nothing);
                }
            }
            (Reply::Client(ClientReply::Done), Carried::Nothing)
        })
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        self.0.events.lock().push((peer, event));
    }
}

fn start(system: &System, slab: &Arc<Slab>, node: u32, one_host: bool) -> (Arc<SocketFabric>, Arc<Answerer>) {
    let config = SocketConfig {
        node: NodeId(node),
        job: JobId::new(if one_host { "one-each-here" } else { "one-each" }).expect("a valid name"),
        secret: [3; 32],
        listen: "127.0.0.1:0".into(),
        inline_max: UNIT_SIZE,
        peer_limit: Duration::from_secs(10),
        request_frames: slab.pool(4),
        reply_frames: slab.pool(4),
        slab: one_host.then(|| slab.clone()),
        ofi: None,
        device: None,
        connections: 1,
    };
    let fabric = Arc::new(SocketFabric::listen(config, system).expect("a free port"));
    let rpc = Arc::new(RpcNode::new(fabric.clone(), system.runtime().clone(), slab.pool(4)));
    let answerer = Arc::new(Answerer {
        node,
        runtime: system.runtime().clone(),
        rpc: OnceLock::new(),
        executed: Mutex::default(),
        events: Mutex::default(),
    });
    rpc.attach(Arc::new(Served(answerer.clone())));
    assert!(answerer.rpc.set(rpc).is_ok());
    (fabric, answerer)
}

#[test]
fn each_request_is_executed_once_while_connections_come_and_go() {
    for one_host in [false, true] {
        let system = System::start(2).expect("threads");
        let slab = Slab::new(NODES * 12).expect("memory");
        let nodes: Vec<_> = (0..NODES).map(|node| start(&system, &slab, node, one_host)).collect();
        let addresses: Vec<_> =
            (0..).map(NodeId).zip(nodes.iter().map(|(fabric, _)| fabric.local_addr().to_string())).collect();
        nodes.iter().for_each(|(fabric, _)| fabric.set_peers(addresses.clone()));
        let (sender, answers) = channel();
        for (_, answerer) in &nodes {
            for call in 0..CALLS {
                let number = (u64::from(answerer.node) * CALLS + call) * STOPS + call % STOPS;
                let to = NodeId((answerer.node + 1 + (call % u64::from(NODES - 1)) as u32) % NODES);
                let rpc = answerer.rpc.get().expect("the agent is started").clone();
                let sender = sender.clone();
                system.runtime().spawn(async move {
                    let answer = rpc.call(to, request(number), None, None).await;
                    let _ = sender.send(answer.map(|answer| answer.reply));
                });
            }
        }
        for _ in 0..u64::from(NODES) * CALLS {
            let answer = answers.recv_timeout(TIME_LIMIT).expect("every call returns");
            assert!(matches!(answer, Ok(Reply::Client(ClientReply::Done))), "{answer:?}");
        }
        for (_, answerer) in &nodes {
            assert!(answerer.executed.lock().values().all(|count| *count == 1), "each once");
            let lost = |event: &&(NodeId, PeerEvent)| event.1 != PeerEvent::Up;
            assert_eq!(answerer.events.lock().iter().find(lost), None, "no peer was reported as failed");
        }
        nodes.iter().for_each(|(fabric, _)| fabric.close());
    }
}
