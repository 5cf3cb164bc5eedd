//! A network on simulated time, for any number of nodes in one process.
//!
//! It gives only the guarantees of [`Fabric`]:
//!
//! - Messages are delayed and reordered, duplicated, lost with a broken connection, or lost silently.
//! - Links fail in one or both directions. Messages in flight then wait for the link, or are lost when the silence is detected.
//! - While a payload waits for a frame, later messages on the same lane of the connection wait too.
//! - A killed node is reported to its peers once they can notice it.
//!
//! All random choices follow from the seed of the [`Simulation`].

mod delivery;
mod peer;
#[cfg(test)]
mod tests;

use super::grant::{Grants, PendingGet};
use super::{Fabric, GetFuture, GrantId, Lane, Receiver, SendFuture};
use async_lock::Semaphore;
use delivery::{Bytes, Parcel};
use futures_util::future::FutureExt;
use parking_lot::Mutex;
use peer::Peer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::limits::{MESSAGE_SIZE_MAX, UNIT_SIZE};
use tameike_core::{Errno, Fault, NodeId};
use tameike_io::os::runtime::{Clock, Runtime, promise};
use tameike_io::os::simulated::Simulation;
use tameike_io::slab::{Frame, Payload, Pool};

/// Interval of attempts to send over a failed link.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The faults of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkFaults {
    /// Largest delay of a message; delays are random.
    pub delay_max: Duration,
    /// Messages of a million that are lost silently.
    pub lost: u32,
    /// Messages of a million that are duplicated.
    pub duplicated: u32,
    /// Messages of a million that break their connection.
    pub broken: u32,
}

impl NetworkFaults {
    /// No losses and no duplicates.
    pub const NONE: Self = Self { delay_max: Duration::from_micros(200), lost: 0, duplicated: 0, broken: 0 };
}

/// The configuration of a node.
pub struct SimulatedConfig {
    /// The id of the node.
    pub node: NodeId,
    /// Runs the tasks of the node, until its end.
    pub runtime: Runtime,
    /// Largest payload of a message, in bytes.
    pub inline_max: usize,
    /// Time limit for a silent peer.
    pub peer_limit: Duration,
    /// Frames for the payloads of requests.
    pub request_frames: Pool,
    /// Frames for the payloads of replies.
    pub reply_frames: Pool,
}

struct State {
    faults: NetworkFaults,
    stations: BTreeMap<NodeId, Arc<Station>>,
    cut: BTreeSet<(NodeId, NodeId)>,
    starts: u64,
}

struct Inner {
    simulation: Simulation,
    state: Mutex<State>,
}

/// The network between all nodes of a simulation.
#[derive(Clone)]
pub struct SimulatedNetwork(Arc<Inner>);

impl SimulatedNetwork {
    /// Creates a network without nodes.
    pub fn new(simulation: Simulation, faults: NetworkFaults) -> Self {
        let state = State { faults, stations: BTreeMap::new(), cut: BTreeSet::new(), starts: 0 };
        Self(Arc::new(Inner { simulation, state: Mutex::new(state) }))
    }

    /// Starts a node, or restarts it after [`Self::kill`].
    pub fn start(&self, config: SimulatedConfig) -> Arc<SimulatedFabric> {
        let mut state = self.0.state.lock();
        state.starts += 1;
        let station = Arc::new(Station {
            incarnation: state.starts,
            config,
            receiver: OnceLock::new(),
            // As in the real fabric, a grant of an earlier incarnation is never valid.
            grants: Grants::new(state.starts << 32),
            peers: Mutex::default(),
            readers: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        state.stations.insert(station.node(), station.clone());
        Arc::new(SimulatedFabric { network: self.clone(), station })
    }

    /// Kills a node. Its peers are notified once they can notice it.
    pub fn kill(&self, node: NodeId) {
        let (dead, others) = {
            let mut state = self.0.state.lock();
            let Some(dead) = state.stations.remove(&node) else { return };
            (dead, state.stations.values().cloned().collect::<Vec<_>>())
        };
        dead.closed.store(true, Ordering::SeqCst);
        for station in others {
            self.announce_failure(&station, node, dead.incarnation);
        }
    }

    /// Changes the faults for messages sent from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.0.state.lock().faults = faults;
    }

    /// Fails the link from one node to another.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.0.state.lock().cut.insert((from, to));
    }

    /// Repairs all links.
    pub fn heal(&self) {
        self.0.state.lock().cut.clear();
    }

    /// Breaks the connection between two nodes, which then reconnect. Messages in flight are lost.
    pub fn disconnect(&self, one: NodeId, other: NodeId) {
        if let Some(station) = self.station(one) {
            self.break_connection(&station, other);
        }
    }

    fn is_link_down(&self, from: NodeId, to: NodeId) -> bool {
        self.0.state.lock().cut.contains(&(from, to))
    }

    fn faults(&self) -> NetworkFaults {
        self.0.state.lock().faults
    }

    fn station(&self, node: NodeId) -> Option<Arc<Station>> {
        self.0.state.lock().stations.get(&node).cloned()
    }

    fn now(&self) -> Duration {
        self.0.simulation.monotonic()
    }

    /// Draws an event with this probability.
    fn happens(&self, of_a_million: u32) -> bool {
        of_a_million > 0 && self.0.simulation.draw(1_000_000) < u64::from(of_a_million)
    }

    fn delay(&self) -> Duration {
        let longest = self.faults().delay_max.as_nanos() as u64;
        Duration::from_nanos(1 + self.0.simulation.draw(longest.max(1)))
    }
}

struct Station {
    /// The number of its start, among the starts of all nodes.
    incarnation: u64,
    config: SimulatedConfig,
    receiver: OnceLock<Arc<dyn Receiver>>,
    grants: Grants,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    readers: Mutex<BTreeMap<(NodeId, bool), Reader>>,
    closed: AtomicBool,
}

/// The reader of one lane of the latest connection with a peer.
struct Reader {
    connection: u64,
    /// One permit, except while the reader waits for a frame.
    ready: Arc<Semaphore>,
}

impl Station {
    fn node(&self) -> NodeId {
        self.config.node
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The reader of a lane of a connection with a peer. Messages of earlier connections do not block later ones.
    fn reader(&self, from: NodeId, connection: u64, lane: Lane) -> Arc<Semaphore> {
        let new = || Reader { connection, ready: Arc::new(Semaphore::new(1)) };
        let mut readers = self.readers.lock();
        let reader = readers.entry((from, lane == Lane::Request)).or_insert_with(new);
        if reader.connection != connection {
            *reader = new();
        }
        reader.ready.clone()
    }

    fn pool(&self, lane: Lane) -> &Pool {
        match lane {
            Lane::Request => &self.config.request_frames,
            Lane::Reply => &self.config.reply_frames,
        }
    }
}

/// The fabric of one node.
pub struct SimulatedFabric {
    network: SimulatedNetwork,
    station: Arc<Station>,
}

impl SimulatedFabric {
    /// Sends a parcel once there is a connection.
    fn ship(&self, to: NodeId, parcel: Parcel) -> SendFuture {
        let (network, station) = (self.network.clone(), self.station.clone());
        async move {
            network.reach(&station, to).await?;
            network.transmit(&station, to, parcel)
        }
        .boxed()
    }
}

fn too_large(what: &str, size: usize, limit: usize) -> Fault {
    Fault::new(Errno::EINVAL, format!("{what} of {size} bytes is larger than {limit}"))
}

impl Fabric for SimulatedFabric {
    fn local(&self) -> NodeId {
        self.station.node()
    }

    fn inline_max(&self) -> usize {
        self.station.config.inline_max
    }

    fn peer_limit(&self) -> Duration {
        self.station.config.peer_limit
    }

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        let (beside, limit) = (payload.as_ref().map_or(0, |payload| payload.len()), self.inline_max());
        if body.len() > MESSAGE_SIZE_MAX {
            let fault = too_large("a message", body.len(), MESSAGE_SIZE_MAX);
            return async move { Err(fault) }.boxed();
        }
        if beside > limit {
            let fault = too_large("a payload", beside, limit);
            return async move { Err(fault) }.boxed();
        }
        let payload = payload.filter(|payload| !payload.is_empty()).map(Bytes::new);
        self.ship(to, Parcel::Message { lane, body, payload })
    }

    fn grant_write(&self, frame: Frame) -> GrantId {
        self.station.grants.add_write(frame)
    }

    fn grant_read(&self, payload: Payload) -> GrantId {
        self.station.grants.add_read(payload)
    }

    fn revoke(&self, grant: GrantId) -> Option<Frame> {
        self.station.grants.revoke(grant)
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        self.ship(to, Parcel::Put { grant: grant.0, source: Bytes::new(source), body })
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        if length as usize > UNIT_SIZE {
            let fault = too_large("a get", length as usize, UNIT_SIZE);
            return async move { (frame, Err(fault)) }.boxed();
        }
        let (network, station) = (self.network.clone(), self.station.clone());
        async move {
            if let Err(fault) = network.reach(&station, from).await {
                return (frame, Err(fault));
            }
            let (resolver, promise) = promise();
            let number = station.grants.begin_get(PendingGet { from, frame, length, resolver });
            if let Err(fault) =
                network.transmit(&station, from, Parcel::Get { number, grant: grant.0, length })
                && let Some(get) = station.grants.take_get(number, from)
            {
                get.resolver.resolve((get.frame, Err(fault)));
            }
            promise.await
        }
        .boxed()
    }

    fn attach(&self, receiver: Arc<dyn Receiver>) {
        if self.station.receiver.set(receiver).is_err() {
            log::error!("ignored a second receiver for {}", self.local());
        }
    }

    fn probe(&self, peer: NodeId) {
        self.network.probe(&self.station, peer);
    }
}
