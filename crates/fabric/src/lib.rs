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
pub mod ofi;
mod patience;
pub mod rpc;
pub mod simulated;
pub mod socket;

#[cfg(test)]
mod conformance;

pub use layer::FabricLayer;
pub use patience::Patience;

use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::wire::call::Place;
use tameike_core::wire::{Reply, Request};
use tameike_core::{NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::slab::{Frame, Payload};

/// How long something has been expected of a peer when [`Fabric::probe`] is first called.
pub const PROBE_AFTER: Duration = Duration::from_secs(2);

/// The part of a silence that was over before the first probe: so that nobody waits for a silent peer for longer than the peer
/// time limit. A short limit, as tests have it, is not over with that.
fn waited(peer_limit: Duration) -> Duration {
    PROBE_AFTER.min(peer_limit / 2)
}

/// Requests and replies travel apart, so that waiting for a frame to take a request into never holds up a
/// reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// From who asks to who answers.
    Request,
    /// Back.
    Reply,
}

/// Right to write into, or read from, one frame of this agent, given to a peer with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantId(pub u64);

/// A message as it arrives.
pub struct Incoming {
    /// Who sent it.
    pub from: NodeId,
    /// On which lane.
    pub lane: Lane,
    /// The encoded message.
    pub body: Vec<u8>,
    /// Bytes beside it, in a frame of this agent.
    pub payload: Option<Payload>,
}

/// What happened to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// It can be reached (again).
    Up,
    /// Nothing was heard of it for the peer time limit; it may come back.
    Unreachable,
    /// Its process is gone: connections are refused or reset.
    Dead,
}

/// Takes what a fabric delivers. Called on the fabric's own thread; must not block.
pub trait Receiver: Send + Sync {
    /// A message has arrived.
    fn message(&self, incoming: Incoming);
    /// A peer has come or gone.
    fn peer(&self, peer: NodeId, event: PeerEvent);
    /// Whether something is expected of `peer`, or by it, so that its connection is not idle though nothing travels there.
    fn is_expecting(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }
}

/// The network between agents. What arrives beside a message or in a frame is compared with the digest of the checksums that it was
/// sent with ([`Payload::sums`]), and stays with these; what differs is not delivered.
pub trait Fabric: Send + Sync {
    /// This node.
    fn local(&self) -> NodeId;
    /// Largest payload that [`Fabric::send`] carries, in bytes; larger ones go by grant and [`Fabric::get`].
    fn inline_max(&self) -> usize;
    /// Sends a message. Ends when the message's bytes are no longer needed, which does not mean it arrived.
    /// An empty payload arrives as none.
    ///
    /// `ECONNRESET` or `ETIMEDOUT` say that the connection broke: the message may have arrived or not.
    /// `EHOSTDOWN` says that the peer cannot be had, `EINVAL` that the message is too large.
    fn send(
        &self,
        to: NodeId,
        lane: Lane,
        body: Vec<u8>,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, Result<()>>;
    /// Lets peers put into `frame` until the grant is revoked.
    fn grant_write(&self, frame: Frame) -> GrantId;
    /// Lets peers get from `payload` until the grant is revoked.
    fn grant_read(&self, payload: Payload) -> GrantId;
    /// Ends a grant; a frame granted for writing comes back, unless a peer is writing to it at this moment: then
    /// it goes to its pool after that. What arrives later is dropped.
    fn revoke(&self, grant: GrantId) -> Option<Frame>;
    /// Writes `source` at the start of a frame granted by `to`, then delivers `body` there, on the reply lane.
    /// When the grant is not active, `body` is dropped too.
    fn put(
        &self,
        to: NodeId,
        grant: GrantId,
        source: Payload,
        body: Vec<u8>,
    ) -> BoxFuture<'static, Result<()>>;
    /// Reads `length` bytes granted by `from` to the start of `frame`.
    fn get(
        &self,
        from: NodeId,
        grant: GrantId,
        frame: Frame,
        length: u32,
    ) -> BoxFuture<'static, (Frame, Result<()>)>;
    /// Says who takes what arrives. Called once, before the first message.
    fn attach(&self, receiver: Arc<dyn Receiver>);
    /// Called once a second while something is expected of `peer`, from [`PROBE_AFTER`] on: a fabric that must ask to learn that a
    /// peer is silent asks now, and tells [`PeerEvent::Unreachable`] after the peer time limit.
    fn probe(&self, peer: NodeId) {
        let _ = peer;
    }
    /// The device of a node, this one among them, when processes of this host can read it as fast as memory.
    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        let _ = node;
        None
    }
}

/// What a request brought back.
pub struct Answer {
    /// The reply; [`Reply::Fault`] is turned into an error before.
    pub reply: Reply,
    /// Bytes beside it.
    pub payload: Option<Payload>,
}

/// Asks agents. A request to the own node is served directly, without encoding or copying.
pub trait Rpc: Send + Sync {
    /// This node.
    fn local(&self) -> NodeId;
    /// Sends `request` with `payload` and waits for the reply, whose payload arrives in `into`, if that is given: it may be
    /// kept, which those in other frames are not.
    ///
    /// # Errors
    /// The fault that the peer answered, or `EHOSTDOWN` when the peer is dead, or cannot be reached for longer
    /// than the peer time limit.
    fn call(
        &self,
        to: NodeId,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>>;
    /// As [`Fabric::device_of`].
    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        let _ = node;
        None
    }
}

/// Where who asks wants the bytes of an answer.
pub enum Target {
    /// In any frame.
    Any,
    /// In this one.
    Frame(Frame),
    /// In any frame; or they stay where they lie on the device.
    AnyOrPlace,
}

impl From<Option<Frame>> for Target {
    fn from(frame: Option<Frame>) -> Self {
        frame.map_or(Self::Any, Self::Frame)
    }
}

/// The bytes of an answer.
pub enum Carried {
    /// There are none.
    Nothing,
    /// They are here.
    Payload(Payload),
    /// They are there; only for [`Target::AnyOrPlace`].
    Place(Place),
}

impl Carried {
    /// How many there are.
    pub fn count(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Payload(payload) => payload.len() as u64,
            Self::Place(place) => place.runs.iter().map(|run| u64::from(run.length)).sum(),
        }
    }

    /// Those that are here.
    pub fn payload(self) -> Option<Payload> {
        match self {
            Self::Payload(payload) => Some(payload),
            Self::Nothing | Self::Place(_) => None,
        }
    }
}

/// Answers requests.
pub trait Service: Send + Sync {
    /// Serves one request of `from`. Runs at once as far as it can without waiting.
    fn serve(
        &self,
        from: NodeId,
        request: Request,
        payload: Option<Payload>,
        target: Target,
    ) -> BoxFuture<'static, (Reply, Carried)>;
    /// A peer has come or gone.
    fn peer(&self, peer: NodeId, event: PeerEvent);
}
