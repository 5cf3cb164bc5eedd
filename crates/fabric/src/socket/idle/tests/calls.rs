//! Calls between agents with at most one connected peer each: every request gets a reply and is executed once.

use super::*;
use crate::rpc::RpcNode;
use crate::{Carried, RequestContext, Rpc, ServeFuture, Service, Target};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use tameike_core::InodeId;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_io::Runtime;

const NODES: u32 = 6;
const CALLS: u64 = 200;
/// The lowest bits of a request's number select how many further nodes it visits.
const STOPS: u64 = 8;

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

struct AnswerService(Arc<Answerer>);

impl Service for AnswerService {
    fn serve(
        &self,
        RequestContext { from, .. }: RequestContext,
        request: Request,
        _: Option<Payload>,
        _: Target,
    ) -> ServeFuture {
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
                if let Err(fault) = rpc.call(next.into(), self::request(number - 1), None, None).await {
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

fn start(system: &System, slab: &Arc<Slab>, node: u32, fabric: Arc<SocketFabric>) -> Arc<Answerer> {
    let runtime = system.runtime().clone();
    let rpc = Arc::new(RpcNode::new(fabric, runtime.clone(), slab.pool(4)));
    let (executed, events) = Default::default();
    let answerer = Arc::new(Answerer { node, runtime, rpc: OnceLock::new(), executed, events });
    rpc.attach(Arc::new(AnswerService(answerer.clone())), crate::conformance::cluster(NODES));
    assert!(answerer.rpc.set(rpc).is_ok());
    answerer
}

#[test]
fn each_request_is_executed_once_while_connections_come_and_go() {
    for one_host in [false, true] {
        let (system, slab, fabrics) = listen(NODES, 1, (one_host, None));
        let start = |(node, fabric): (u32, &Arc<SocketFabric>)| start(&system, &slab, node, fabric.clone());
        let answerers: Vec<_> = (0..).zip(&fabrics).map(start).collect();
        introduce(&fabrics);
        let (sender, answers) = channel();
        for answerer in &answerers {
            for call in 0..CALLS {
                let number = (u64::from(answerer.node) * CALLS + call) * STOPS + call % STOPS;
                let to = NodeId((answerer.node + 1 + (call % u64::from(NODES - 1)) as u32) % NODES);
                let rpc = answerer.rpc.get().expect("the agent is started").clone();
                let sender = sender.clone();
                system.runtime().spawn(async move {
                    let answer = rpc.call(to.into(), request(number), None, None).await;
                    let _ = sender.send(answer.map(|answer| answer.reply));
                });
            }
        }
        for _ in 0..u64::from(NODES) * CALLS {
            let answer = answers.recv_timeout(TIME_LIMIT).expect("every call returns");
            assert!(matches!(answer, Ok(Reply::Client(ClientReply::Done))), "{answer:?}");
        }
        for answerer in &answerers {
            assert!(answerer.executed.lock().values().all(|count| *count == 1), "each once");
            let lost = |event: &&(NodeId, PeerEvent)| event.1 != PeerEvent::Up;
            assert_eq!(answerer.events.lock().iter().find(lost), None, "no peer was reported as failed");
        }
        fabrics.iter().for_each(|fabric| fabric.close());
    }
}
