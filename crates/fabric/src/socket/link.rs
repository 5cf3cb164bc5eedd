//! The libfabric link of one connection: sends packets, and reads payloads that the peer exports.

use super::host::{Exporter, Location};
use super::outgoing::Outgoing;
use super::seal::{PACKET_HEAD, Packets, TAG_SIZE};
use crate::ofi::{PACKET_MAX, Remote, RouteId, Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::wire::endpoint::Endpoint;
use tameike_core::{Fault, NodeId, Result};
use tameike_io::slab::Frame;

/// Largest message that fits a packet, in bytes.
pub(super) const LINK_MESSAGE_MAX: usize = PACKET_MAX - PACKET_HEAD - TAG_SIZE;

/// The registry of an agent's links.
pub(super) trait LinkOwner: Send + Sync {
    /// Handles the close of a link's connection, because of `fault`.
    fn closed(&self, route: RouteId, peer: NodeId, fault: &Fault);
}

/// The link to one peer beside one connection.
pub(super) struct Link {
    owner: Arc<dyn LinkOwner>,
    transport: Arc<Transport>,
    route: RouteId,
    endpoint: Endpoint,
    exporter: Exporter,
    /// The peer has answered a knock.
    answered: AtomicBool,
    /// The endpoint of this agent is open.
    is_open: Arc<AtomicBool>,
}

impl Link {
    /// A link by `route` to the peer's `endpoint`, which has not answered yet.
    pub(super) fn new(
        owner: Arc<dyn LinkOwner>,
        (transport, route): (Arc<Transport>, RouteId),
        endpoint: Endpoint,
        exporter: Exporter,
        is_open: Arc<AtomicBool>,
    ) -> Self {
        Self { owner, transport, route, endpoint, exporter, answered: AtomicBool::new(false), is_open }
    }

    /// True if messages may use this link.
    pub(super) fn is_usable(&self) -> bool {
        self.has_answered() && self.is_open.load(Ordering::Acquire)
    }

    /// True if the peer has answered.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    /// Notes that the peer has answered.
    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// Exports payloads that the peer reads by this link.
    pub(super) fn exporter(&self) -> &Exporter {
        &self.exporter
    }

    /// Sends a message of at most [`LINK_MESSAGE_MAX`] bytes. The caller [rings](Self::needs_bell) afterwards.
    pub(super) fn send(&self, message: Outgoing, packets: &mut Packets) {
        let (packet, done) = message.into_packet(&self.endpoint.token, packets);
        self.transport.send(self.route, packet, done);
    }

    /// Begins to read a payload that the peer exports. The caller [rings](Self::needs_bell) before it awaits the result.
    pub(super) fn read(
        &self,
        location: Location,
        frame: Frame,
        length: u32,
    ) -> impl Future<Output = (Frame, Result<()>)> + use<> {
        let Endpoint { memory_key, memory_address, .. } = self.endpoint;
        let from = Remote { key: memory_key, address: memory_address.wrapping_add(location.offset()) };
        self.transport.read(self.route, from, frame, length)
    }

    /// True if the peer makes progress only after a message on the socket, because its provider has no file descriptor to wait
    /// for.
    pub(super) fn needs_bell(&self) -> bool {
        self.transport.needs_bell()
    }

    /// True if an operation is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.transport.is_busy(self.route)
    }

    /// Fails the operations that have not been posted yet.
    pub(super) fn drop_waiting(&self, fault: &Fault) {
        self.transport.drop_waiting(self.route, fault);
    }

    /// Ends the link after its connection was closed.
    pub(super) fn close(&self, peer: NodeId, fault: &Fault) {
        self.owner.closed(self.route, peer, fault);
        self.transport.disconnect(self.route, fault);
    }
}
