//! Wrappers of a fabric that change some calls and forward the others.

use crate::{Fabric, GetFuture, GrantId, Lane, Receiver, SendFuture};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_io::disk::HostDevice;
use tameike_io::slab::{Frame, Payload};

/// A fabric over another one. Each method corresponds to the method of the same name of [`Fabric`]. The default implementations
/// forward to [`FabricLayer::inner`].
#[expect(missing_docs, reason = "the methods are those of Fabric")]
pub trait FabricLayer: Send + Sync {
    /// The fabric below.
    fn inner(&self) -> &dyn Fabric;

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        self.inner().send(to, lane, body, payload)
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        self.inner().put(to, grant, source, body)
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        self.inner().get(from, grant, frame, length)
    }

    fn attach(&self, receiver: Arc<dyn Receiver>) {
        self.inner().attach(receiver);
    }
}

impl<L: FabricLayer> Fabric for L {
    fn local(&self) -> NodeId {
        self.inner().local()
    }

    fn inline_max(&self) -> usize {
        self.inner().inline_max()
    }

    fn peer_limit(&self) -> Duration {
        self.inner().peer_limit()
    }

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        FabricLayer::send(self, to, lane, body, payload)
    }

    fn grant_write(&self, frame: Frame) -> GrantId {
        self.inner().grant_write(frame)
    }

    fn grant_read(&self, payload: Payload) -> GrantId {
        self.inner().grant_read(payload)
    }

    fn revoke(&self, grant: GrantId) -> Option<Frame> {
        self.inner().revoke(grant)
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        FabricLayer::put(self, to, grant, source, body)
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        FabricLayer::get(self, from, grant, frame, length)
    }

    fn attach(&self, receiver: Arc<dyn Receiver>) {
        FabricLayer::attach(self, receiver);
    }

    fn probe(&self, peer: NodeId) {
        self.inner().probe(peer);
    }

    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        self.inner().device_of(node)
    }
}
