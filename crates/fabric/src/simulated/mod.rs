//! A network on simulated time, for any number of nodes in one process.
//!
//! It keeps the promises of [`Fabric`] and no other: messages take their time and overtake each other, come twice,
//! are lost with a connection that breaks or without any sign; links are cut one way or both, and what is on its
//! way then waits for the link, or is lost when the silence is noticed. While a payload waits for a frame, its connection is not
//! read: what comes later on the same lane waits behind it. A node that is killed is dead to its peers
//! once they can learn of it. All chance follows from the seed of the [`Simulation`].

mod delivery;
mod peer;
#[cfg(test)]
mod tests;

use super::grant::{Grants, PendingGet};
use super::{Fabric, GrantId, Lane, Receiver};
use async_lock::Semaphore;
use delivery::{Bytes, Parcel};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use peer::Peer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::limits::{MESSAGE_SIZE_MAX, UNIT_SIZE};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::runtime::{Clock, Runtime, promise};
use tameike_io::os::simulated::Simulation;
use tameike_io::slab::{Frame, Payload, Pool};

/// Time between two attempts to send where the link is cut.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How well the network works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Longest time that a message takes; each takes its own.
    pub delay_max: Duration,
    /// Of a million messages, so many are lost without a sign.
    pub lost: u32,
    /// So many come twice.
    pub doubled: u32,
    /// So many break the connection that they are sent on.
    pub broken: u32,
}

impl Weather {
    /// Nothing is lost, nothing comes twice.
    pub const FAIR: Self = Self { delay_max: Duration::from_micros(200), lost: 0, doubled: 0, broken: 0 };
}

/// One end point of the network.
pub struct SimulatedConfig {
    /// Which node.
    pub node: NodeId,
    /// Where its tasks run: with the node they end.
    pub runtime: Runtime,
    /// Largest payload beside a message, in bytes.
    pub inline_max: usize,
    /// Silence after which a peer counts as unreachable.
    pub peer_limit: Duration,
    /// Payloads of requests.
    pub request_frames: Pool,
    /// Payloads of replies.
    pub reply_frames: Pool,
}

struct State {
    weather: Weather,
    stations: BTreeMap<NodeId, Arc<Station>>,
    cut: BTreeSet<(NodeId, NodeId)>,
    lives: u64,
}

struct Inner {
    simulation: Simulation,
    state: Mutex<State>,
}

/// The network between all nodes of a simulation.
#[derive(Clone)]
pub struct SimulatedNetwork(Arc<Inner>);

impl SimulatedNetwork {
    /// A network without nodes.
    pub fn new(simulation: Simulation, weather: Weather) -> Self {
        let state = State { weather, stations: BTreeMap::new(), cut: BTreeSet::new(), lives: 0 };
        Self(Arc::new(Inner { simulation, state: Mutex::new(state) }))
    }

    /// Starts a node, or starts it again after [`Self::kill`].
    pub fn start(&self, config: SimulatedConfig) -> Arc<SimulatedFabric> {
        let mut state = self.0.state.lock();
        state.lives += 1;
        let station = Arc::new(Station {
            life: state.lives,
            config,
            receiver: OnceLock::new(),
            // As in the real one, a grant of an earlier life is not taken for one of this life.
            grants: Grants::new(state.lives << 32),
            peers: Mutex::default(),
            readers: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        state.stations.insert(station.node(), station.clone());
        Arc::new(SimulatedFabric { network: self.clone(), station })
    }

    /// The agent of a node ends: its peers learn of it when they can.
    pub fn kill(&self, node: NodeId) {
        let (dead, others) = {
            let mut state = self.0.state.lock();
            let Some(dead) = state.stations.remove(&node) else { return };
            (dead, state.stations.values().cloned().collect::<Vec<_>>())
        };
        dead.closed.store(true, Ordering::SeqCst);
        for station in others {
            self.announce_death(&station, node, dead.life);
        }
    }

    /// Changes how well it works, for messages sent from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.0.state.lock().weather = weather;
    }

    /// What one node sends reaches the other no more.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.0.state.lock().cut.insert((from, to));
    }

    /// All links are whole again.
    pub fn heal(&self) {
        self.0.state.lock().cut.clear();
    }

    /// The connection between two nodes breaks, and is opened again; what is on its way is lost.
    pub fn disconnect(&self, one: NodeId, other: NodeId) {
        if let Some(station) = self.station(one) {
            self.break_connection(&station, other);
        }
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.0.state.lock().cut.contains(&(from, to))
    }

    fn weather(&self) -> Weather {
        self.0.state.lock().weather
    }

    fn station(&self, node: NodeId) -> Option<Arc<Station>> {
        self.0.state.lock().stations.get(&node).cloned()
    }

    fn now(&self) -> Duration {
        self.0.simulation.monotonic()
    }

    /// Whether something happens that happens to so many of a million.
    fn happens(&self, of_a_million: u32) -> bool {
        of_a_million > 0 && self.0.simulation.draw(1_000_000) < u64::from(of_a_million)
    }

    fn delay(&self) -> Duration {
        let longest = self.weather().delay_max.as_nanos() as u64;
        Duration::from_nanos(1 + self.0.simulation.draw(longest.max(1)))
    }
}

/// What the network knows of a running node.
struct Station {
    /// Counts the starts of all nodes.
    life: u64,
    config: SimulatedConfig,
    receiver: OnceLock<Arc<dyn Receiver>>,
    grants: Grants,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    readers: Mutex<BTreeMap<(NodeId, bool), Reader>>,
    closed: AtomicBool,
}

/// What reads one lane of the latest connection with a peer.
struct Reader {
    connection: u64,
    /// One, unless it waits for a frame.
    ready: Arc<Semaphore>,
}

impl Station {
    fn node(&self) -> NodeId {
        self.config.node
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// What reads a lane of a connection with a peer. What is left of earlier connections holds up nothing on later ones.
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

/// The network as one node sees it.
pub struct SimulatedFabric {
    network: SimulatedNetwork,
    station: Arc<Station>,
}

impl SimulatedFabric {
    /// Sends a parcel as soon as there is a connection.
    fn ship(&self, to: NodeId, parcel: Parcel) -> BoxFuture<'static, Result<()>> {
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

    fn send(
        &self,
        to: NodeId,
        lane: Lane,
        body: Vec<u8>,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, Result<()>> {
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
        self.station.grants.give_write(frame)
    }

    fn grant_read(&self, payload: Payload) -> GrantId {
        self.station.grants.give_read(payload)
    }

    fn revoke(&self, grant: GrantId) -> Option<Frame> {
        self.station.grants.revoke(grant)
    }

    fn put(
        &self,
        to: NodeId,
        grant: GrantId,
        source: Payload,
        body: Vec<u8>,
    ) -> BoxFuture<'static, Result<()>> {
        self.ship(to, Parcel::Put { grant: grant.0, source: Bytes::new(source), body })
    }

    fn get(
        &self,
        from: NodeId,
        grant: GrantId,
        frame: Frame,
        length: u32,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
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
            log::error!("a second receiver was attached to {}, and is ignored", self.local());
        }
    }

    fn probe(&self, peer: NodeId) {
        self.network.probe(&self.station, peer);
    }
}
