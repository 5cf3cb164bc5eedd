use super::*;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU32;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::measure::Quantity;
use tameike_core::{Cluster, JobId, NodeInfo};
use tameike_fabric::rpc::RpcNode;
use tameike_fabric::simulated::{NetworkFaults, SimulatedConfig, SimulatedNetwork};
use tameike_fabric::{PeerEvent, RequestContext, Service, Target};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Slab};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

/// The other node's service, which can corrupt replies.
struct Helper {
    meter: Arc<Meter>,
    /// Number of intact messages before the first corrupt one.
    right: AtomicU32,
    damage: Option<fn(&mut Frame) -> u32>,
    pool: Pool,
    served: Mutex<Vec<Exchange>>,
}

impl Service for Helper {
    fn serve(
        &self,
        RequestContext { from, .. }: RequestContext,
        request: Request,
        payload: Option<Payload>,
        _target: Target,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let Request::Admin(AdminRequest::Exchange(exchange)) = request else { panic!("{request:?}") };
        self.served.lock().push(exchange);
        let answer = self.meter.serve(from, exchange, payload);
        let is_bad =
            self.right.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err();
        let (pool, damage) = (self.pool.clone(), self.damage.filter(|_| is_bad));
        async move {
            match (answer.await, damage) {
                ((reply, Carried::Payload(bytes)), Some(damage)) => {
                    let mut frame = pool.take().await;
                    frame[..bytes.len()].copy_from_slice(&bytes);
                    let length = damage(&mut frame).min(bytes.len() as u32);
                    (reply, Carried::Payload(Payload::new(Arc::new(frame), 0..length)))
                }
                (answer, _) => answer,
            }
        }
        .boxed()
    }

    fn peer(&self, _peer: NodeId, _event: PeerEvent) {}
}

struct Pair {
    simulation: Simulation,
    a: Arc<Meter>,
    b: Arc<Helper>,
    _nodes: [Arc<RpcNode>; 2],
    pools: [Pool; 2],
}

fn cluster() -> Arc<Cluster> {
    let info = |id| NodeInfo { id, host: String::new(), address: String::new(), group: 0, device: true };
    let job = JobId::new("job").expect("a name");
    Arc::new(Cluster::new(job, vec![info(A), info(B)], 1).expect("a cluster"))
}

fn pair(inline_max: usize, damage: Option<fn(&mut Frame) -> u32>, right: u32) -> Pair {
    let simulation = Simulation::new(7);
    let network = SimulatedNetwork::new(simulation.clone(), NetworkFaults::NONE);
    let start = |node| {
        let slab = Slab::new(64).expect("memory");
        let (runtime, replies, own) = (simulation.runtime(), slab.pool(24), slab.pool(16));
        let config = SimulatedConfig {
            node,
            runtime: runtime.clone(),
            inline_max,
            peer_limit: Duration::from_secs(5),
            request_frames: slab.pool(8),
            reply_frames: replies.clone(),
        };
        let fabric = network.start(config);
        let rpc = Arc::new(RpcNode::new(fabric.clone(), runtime.clone(), replies));
        let meter = Meter::new(runtime, rpc.clone(), fabric, own.clone());
        let helper = Helper {
            meter: meter.clone(),
            right: AtomicU32::new(right),
            damage: damage.filter(|_| node == B),
            pool: slab.pool(16),
            served: Mutex::default(),
        };
        let helper = Arc::new(helper);
        rpc.attach(helper.clone(), cluster());
        (meter, helper, rpc, own)
    };
    let (a, _, a_node, a_pool) = start(A);
    let (_, b, b_node, b_pool) = start(B);
    Pair { simulation, a, b, _nodes: [a_node, b_node], pools: [a_pool, b_pool] }
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|fault| fault.errno)
}

fn order(quantity: Quantity, size: u32) -> Order {
    Order { quantity, with: B, size, window: 20, repetitions: 5, repetition_ms: 2 }
}

#[test]
fn every_quantity_is_measured_at_every_size_with_small_and_large_inline_payloads() {
    for inline_max in [UNIT_SIZE, 4096] {
        let pair = pair(inline_max, None, 0);
        for quantity in Quantity::ALL {
            for size in [1, 4097, UNIT_SIZE as u32] {
                let outcome = pair.simulation.run(pair.a.measure(order(quantity, size)));
                let outcome = outcome.unwrap_or_else(|fault| panic!("{quantity:?} {size}: {fault}"));
                assert_eq!((outcome.quantity, outcome.size, outcome.repetitions.len()), (quantity, size, 5));
                assert!(outcome.repetitions.iter().all(|one| one.messages > 0 && one.nanoseconds > 0));
                assert_eq!(outcome.one_way.is_some(), quantity == Quantity::Latency);
                let window = match quantity {
                    Quantity::Latency => 1,
                    Quantity::OneWay | Quantity::BothWays => 20,
                    Quantity::Put | Quantity::Get => 8,
                };
                assert_eq!(outcome.window, window, "half of the frames at most");
                let all = |pool: &Pool| std::iter::from_fn(|| pool.try_take()).collect::<Vec<_>>().len();
                let frames: Vec<_> = pair.pools.iter().map(all).collect();
                assert_eq!(frames, [16, 16], "all frames are back");
            }
        }
    }
}

/// Canary of the comparison: a truncated or damaged message makes the measurement fail.
#[test]
fn a_truncated_or_damaged_message_ends_the_measurement() {
    fn truncate(_: &mut Frame) -> u32 {
        4999
    }
    fn flip(frame: &mut Frame) -> u32 {
        frame[1234] ^= 4;
        UNIT_SIZE as u32
    }
    for quantity in [Quantity::Latency, Quantity::Put] {
        for damage in [truncate as fn(&mut Frame) -> u32, flip] {
            for right in [0, 9, 40] {
                let pair = pair(UNIT_SIZE, Some(damage), right);
                let failed = pair.simulation.run(pair.a.measure(order(quantity, 5000)));
                assert_eq!(errno(failed), Some(Errno::EBADMSG), "{quantity:?} {right}");
                assert_eq!(pair.b.served.lock().last(), Some(&Exchange::End));
            }
        }
    }
}

#[test]
fn a_second_measurement_is_refused_until_the_first_peer_fails() {
    let pair = pair(UNIT_SIZE, None, 0);
    let third = NodeId(2);
    let begin = Exchange::Begin { session: 1, size: 5 };
    pair.simulation.run(pair.b.meter.reply(third, begin, None)).map(drop).expect("begun");
    let refused = pair.simulation.run(pair.a.measure(order(Quantity::Get, 5)));
    assert_eq!(errno(refused), Some(Errno::EBUSY));
    pair.b.meter.peer_failed(third);
    pair.simulation.run(pair.a.measure(order(Quantity::Get, 5))).map(drop).expect("measured");
    let itself = Order { with: A, ..order(Quantity::Get, 5) };
    assert_eq!(errno(pair.simulation.run(pair.a.measure(itself))), Some(Errno::EINVAL));
}
