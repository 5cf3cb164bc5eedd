//! The network between agents: the [`Fabric`] trait, its transports, and remote procedure calls above them.
//!
//! [`Fabric`] sends small messages and transfers frames. It does not order messages, may lose messages in flight when
//! a connection breaks, and reports the failure of a peer as an event. [`Rpc`] adds requests and replies: the peer
//! executes each request at most once, however often it was sent. Transports: TCP and local sockets ([`socket`]),
//! libfabric beside them ([`ofi`]), and the simulated cluster ([`simulated`]).

#[cfg(feature = "fuzz")]
pub mod fuzz;
mod grant;
mod layer;
mod lease;
#[cfg_attr(not(feature = "libfabric"), expect(dead_code, reason = "only libfabric calls its receiver"))]
pub mod ofi;
pub mod rpc;
pub mod simulated;
pub mod socket;
mod time_limit;
mod times;

#[cfg(test)]
mod conformance;

pub use layer::FabricLayer;
pub use lease::{Changing, MapLease};
pub use time_limit::TimeLimitedCalls;
pub use times::peer_limit;

use futures_util::future::{BoxFuture, join_all};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::call::{ExtentLocation, NumberedCall};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, HomeId, HomeMap, MapEpoch, NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::slab::{Frame, Payload};

/// Time that senders wait for a peer known to be unreachable. Their wait starts a connection attempt at once, which completes in
/// this time if the peer is reachable again.
const UNREACHABLE_WAIT: Duration = Duration::from_millis(500);
/// Longest pause between attempts to reconnect.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Requests and replies travel on separate lanes, so that a request that waits for a frame never blocks a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// From the caller to the server.
    Request,
    /// From the server to the caller.
    Reply,
}

/// The right of a peer to write into, or to read from, one frame of this agent. Messages carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantId(pub u64);

/// A received message.
pub struct Incoming {
    /// The sender.
    pub from: NodeId,
    /// The lane it arrived on.
    pub lane: Lane,
    /// The encoded message.
    pub body: Vec<u8>,
    /// File data sent with the message, in a frame of this agent.
    pub payload: Option<Payload>,
}

/// A change of a peer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The peer is reachable, for the first time or again.
    Up,
    /// The peer was silent for the peer time limit; it may come back.
    Unreachable,
    /// The peer's process has exited: it refuses or resets connections.
    Failed,
}

/// Receives messages and events from a fabric. Called on the fabric's own thread; must not block.
pub trait Receiver: Send + Sync {
    /// Handles a message.
    fn message(&self, incoming: Incoming);
    /// Handles a change of a peer's state.
    fn peer(&self, peer: NodeId, event: PeerEvent);
    /// True if a request to `peer` or from it is pending. Its connection is then not idle, even without traffic.
    fn is_expecting(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }
}

/// The result of a send. The fabric no longer needs the bytes, which does not imply delivery.
pub type SendFuture = BoxFuture<'static, Result<()>>;
/// The frame of a get, and the result.
pub type GetFuture = BoxFuture<'static, (Frame, Result<()>)>;

/// The network between agents. The receiving fabric verifies payloads and frames against the digest of the sender's checksums
/// ([`Payload::sums`]), drops mismatches, and keeps the checksums with the data.
pub trait Fabric: Send + Sync {
    /// The id of this node.
    fn local(&self) -> NodeId;
    /// Largest payload of [`Fabric::send`], in bytes; larger ones travel by grant and [`Fabric::get`].
    fn inline_max(&self) -> usize;
    /// Sends a message. Completes when the fabric no longer needs the bytes, which does not imply delivery. An empty payload
    /// arrives as `None`.
    ///
    /// # Errors
    /// - `ECONNRESET`, `ETIMEDOUT`: the connection broke; the message may have arrived.
    /// - `EHOSTDOWN`: the peer failed or is unreachable.
    /// - `EINVAL`: the message is too large.
    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture;
    /// Lets peers put into `frame` until the grant is revoked.
    fn grant_write(&self, frame: Frame) -> GrantId;
    /// Lets peers get from `payload` until the grant is revoked.
    fn grant_read(&self, payload: Payload) -> GrantId;
    /// Revokes a grant and returns a frame that was granted for writing. While a peer writes to the frame, returns `None`, and
    /// the frame returns to its pool afterwards. The fabric drops whatever arrives later for the grant.
    fn revoke(&self, grant: GrantId) -> Option<Frame>;
    /// Writes `source` to the start of a frame granted by `to`, then delivers `body` there on the reply lane. If the grant is not
    /// active, the peer drops `body` too.
    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture;
    /// Reads `length` bytes granted by `from` into the start of `frame`.
    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture;
    /// Sets the receiver. Called once, before the first message.
    fn attach(&self, receiver: Arc<dyn Receiver>);
    /// Silence after which a peer counts as unreachable.
    fn peer_limit(&self) -> Duration;
    /// Checks that `peer` still answers. Called several times within the peer time limit while a request to `peer` is pending for long. A
    /// fabric that detects silence only by probing reports [`PeerEvent::Unreachable`] after the peer time limit.
    fn probe(&self, peer: NodeId) {
        let _ = peer;
    }
    /// The device of a node, which may be this one, if processes of this host can read it at memory speed.
    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        let _ = node;
        None
    }
}

/// A successful call.
pub struct Answer {
    /// The reply. A [`Reply::Fault`] has become an error before.
    pub reply: Reply,
    /// The payload of the reply.
    pub payload: Option<Payload>,
}

/// The result of a call.
pub type CallFuture = BoxFuture<'static, Result<Answer>>;

/// The receiver of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// A node, whatever homes it serves.
    Node(NodeId),
    /// The node that serves a home. If the home map changes, the request goes to the next one.
    Home(HomeId),
    /// A node for the homes that it serves under the map of an epoch. When a home has got another primary since, the call fails with
    /// `EREMCHG`, and the caller chooses its nodes again.
    Primary(NodeId, MapEpoch),
    /// A node for the homes of which it is a backup under the map of an epoch. Under another map the call fails with `EREMCHG`.
    Backup(NodeId, MapEpoch),
}

impl Destination {
    /// The home, if the receiver is one.
    pub fn home(self) -> Option<HomeId> {
        match self {
            Self::Node(_) | Self::Primary(..) | Self::Backup(..) => None,
            Self::Home(home) => Some(home),
        }
    }

    /// The node to which a request goes now.
    pub fn node(self, cluster: &Cluster) -> NodeId {
        match self {
            Self::Node(node) | Self::Primary(node, _) | Self::Backup(node, _) => node,
            Self::Home(home) => cluster.primary(home),
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) | Self::Primary(node, _) | Self::Backup(node, _) => node.fmt(f),
            Self::Home(home) => home.fmt(f),
        }
    }
}

impl From<NodeId> for Destination {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

impl From<HomeId> for Destination {
    fn from(home: HomeId) -> Self {
        Self::Home(home)
    }
}

/// Waits until all calls have ended, unlike `try_join_all`. A call of another map's time must not change something after its caller has
/// begun again.
///
/// # Errors
/// `EREMCHG` if a node has refused a call because a home has got another primary, else the first error.
pub async fn join_calls<T>(
    calls: impl IntoIterator<Item = impl Future<Output = Result<T>>>,
) -> Result<Vec<T>> {
    let ended = join_all(calls).await;
    let refused =
        ended.iter().find_map(|call| call.as_ref().err().filter(|fault| is_refused(fault))).cloned();
    refused.map_or_else(|| ended.into_iter().collect(), Err)
}

fn is_refused(fault: &Fault) -> bool {
    fault.errno == Errno::EREMCHG
}

/// Runs `work` under the current home map, and again if a node refuses a request because a home has got another primary. `work` leaves no calls
/// running that change something ([`join_calls`]).
///
/// # Errors
/// Those of `work`.
pub async fn under_one_map<T, F: Future<Output = Result<T>>>(
    cluster: &Cluster,
    work: impl Fn(Arc<HomeMap>) -> F,
) -> Result<T> {
    loop {
        let map = cluster.map();
        let epoch = map.epoch;
        match work(map).await {
            // Under the same map, it is the caller's own home that has moved.
            Err(fault) if is_refused(&fault) && cluster.epoch() != epoch => {}
            done => return done,
        }
    }
}

/// Calls other agents. Calls to the local node run directly, without encoding or copies.
pub trait Rpc: Send + Sync {
    /// The id of this node.
    fn local(&self) -> NodeId;
    /// Sends `request` with `payload` and waits for the reply. The payload of the reply arrives in `into` if given. The caller
    /// may keep a payload in `into`, but must not keep one in another frame.
    ///
    /// # Errors
    /// The fault that the peer returned; `EHOSTDOWN` if the peer has failed or was unreachable for the peer time limit, and the home has no
    /// other replica that takes over; `EREMCHG` as [`Destination::Primary`] describes.
    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> CallFuture;
    /// See [`Fabric::device_of`].
    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        let _ = node;
        None
    }
}

/// Where the caller wants the payload of a reply.
pub enum Target {
    /// In any frame.
    Any,
    /// In this frame.
    Frame(Frame),
    /// In any frame, or as a location on the device.
    AnyOrLocation,
}

impl From<Option<Frame>> for Target {
    fn from(frame: Option<Frame>) -> Self {
        frame.map_or(Self::Any, Self::Frame)
    }
}

/// The payload of a reply.
pub enum Carried {
    /// No payload.
    Nothing,
    /// The bytes.
    Payload(Payload),
    /// The location of the bytes on the device; only for [`Target::AnyOrLocation`].
    Location(ExtentLocation),
}

impl Carried {
    /// The length in bytes.
    pub fn count(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Payload(payload) => payload.len() as u64,
            Self::Location(place) => place.runs.iter().map(|run| u64::from(run.length)).sum(),
        }
    }

    /// The bytes, unless they are a location or absent.
    pub fn payload(self) -> Option<Payload> {
        match self {
            Self::Payload(payload) => Some(payload),
            Self::Nothing | Self::Location(_) => None,
        }
    }
}

/// The reply to a request, and its payload.
pub type ServeFuture = BoxFuture<'static, (Reply, Carried)>;

/// Origin and address of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// The node of the caller.
    pub from: NodeId,
    /// The home of this node that it concerns; `None` if it concerns the node or all of its homes.
    pub home: Option<HomeId>,
    /// The epoch of the home map by which the caller chose this node; `None` if it is sent to the node, whatever homes it serves.
    pub epoch: Option<MapEpoch>,
    /// Its identity, if the caller may repeat it at another primary.
    pub call: Option<NumberedCall>,
}

impl RequestContext {
    /// A request of `from` to a node.
    pub fn of_node(from: NodeId) -> Self {
        Self { from, home: None, epoch: None, call: None }
    }
}

/// Serves requests.
pub trait Service: Send + Sync {
    /// Returns what a request to homes must wait for, before [`Self::serve`] may be called. `None`: this node serves the homes now.
    ///
    /// # Errors
    /// `EREMCHG` if another node serves the home meanwhile.
    fn admit(&self, context: &RequestContext, request: &Request) -> Option<BoxFuture<'static, Result<()>>> {
        let _ = (context, request);
        None
    }
    /// Serves one request. Runs synchronously up to the first wait. A reply with the fault `EREMCHG` means that another node serves the home
    /// meanwhile: the caller repeats its request there.
    fn serve(
        &self,
        context: RequestContext,
        request: Request,
        payload: Option<Payload>,
        target: Target,
    ) -> ServeFuture;
    /// Handles a change of a peer's state.
    fn peer(&self, peer: NodeId, event: PeerEvent);
}
