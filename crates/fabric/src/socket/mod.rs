//! The fabric over sockets: TCP between hosts; within a host, local sockets and direct reads of the agents' memory ([`host`]).
//!
//! Two connections join a pair of agents, one opened by each. The connection that A opened carries A's requests and B's replies
//! to them; puts, gets and their data travel like replies. So a connection that is not read, because all request frames are in
//! use, never blocks a reply. Each end opens its connection as soon as it accepts the other's.
//!
//! Idle agents send nothing: the kernel's keep-alive watches idle connections, and pings are sent only during probes. A broken
//! connection is reopened at once. A refusal means that the peer has failed; silence for the peer time limit means that it is
//! unreachable, and attempts continue.
//!
//! Connections are opened on demand. Beyond a bound, idle ones are closed in an orderly way, so that no message is lost and no
//! peer is reported as failed ([`idle`]).
//!
//! - `handshake` proves knowledge of the job's secret; `header` encodes messages; `seal` authenticates them.
//! - `connection` writes `outgoing` messages; `reader` reads messages from the `input`.
//! - `host` exports payloads to peers of this host; `link` carries messages and payloads over libfabric.
//! - `dial` connects and accepts; `admission` bounds the connections that are not authenticated yet.
//! - `peer` tracks the state of peers; `idle` closes idle connections.

mod admission;
mod connection;
mod dial;
pub(crate) mod handshake;
pub(crate) mod header;
mod host;
mod idle;
mod input;
mod link;
mod links;
mod outgoing;
mod peer;
mod reader;
mod seal;

#[cfg(test)]
mod attacks;
#[cfg(test)]
pub(crate) mod tests;

pub use idle::connections_max;

use super::grant::{Grants, PendingGet};
use super::ofi::OfiConfig;
use super::{Fabric, GetFuture, GrantId, Lane, Receiver, SendFuture};
use admission::Admission;
use connection::Unsent;
use header::Kind;
use host::Exports;
use idle::Occupancy;
use links::Links;
use outgoing::Outgoing;
use parking_lot::Mutex;
use peer::Peer;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::limits::MESSAGE_SIZE_MAX;
use tameike_core::wire::admin::Counter;
use tameike_core::{Errno, Fault, JobId, NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::os::log_limit::RateLimited;
use tameike_io::os::reactor::{Reactor, Watched};
use tameike_io::os::runtime::{Runtime, promise};
use tameike_io::os::system::System;
use tameike_io::slab::{Frame, Payload, Pool, Slab};

/// The configuration of a [`SocketFabric`].
#[derive(Clone)]
pub struct SocketConfig {
    /// The id of this node.
    pub node: NodeId,
    /// The job. Agents of other jobs are refused.
    pub job: JobId,
    /// The secret that only the agents of the job know.
    pub secret: [u8; 32],
    /// `address:port` to listen on; port 0 selects a free port.
    pub listen: String,
    /// Largest payload sent beside a message, in bytes; at most [`tameike_core::limits::UNIT_SIZE`].
    pub inline_max: usize,
    /// Time limit for a silent peer.
    pub peer_limit: Duration,
    /// Frames for the payloads of requests.
    pub request_frames: Pool,
    /// Frames for the payloads of replies without a grant. A separate pool, since serving a request may need a reply.
    pub reply_frames: Pool,
    /// The slab of all payloads, which agents of this host may read. Without it, they communicate over TCP too.
    pub slab: Option<Arc<Slab>>,
    /// Settings of libfabric, which then carries most traffic beside each connection. Without it, connections carry everything.
    pub ofi: Option<OfiConfig>,
    /// The device of this node if it is in memory, which processes of this host may read.
    pub device: Option<Arc<HostDevice>>,
    /// Bound on connected peers. Beyond it, connections to the peers that were idle longest are closed.
    pub connections: usize,
}

/// Default bound on connected peers: several times the working set of a job on current nodes.
pub const CONNECTIONS_DEFAULT: usize = 128;

struct Inner {
    config: SocketConfig,
    runtime: Runtime,
    reactor: Arc<Reactor>,
    listener: Watched<OwnedFd>,
    /// Accepts agents of this host.
    host_listener: Option<Watched<OwnedFd>>,
    /// The TCP port of `listener`.
    port: u16,
    incarnation: u64,
    grants: Grants,
    exports: Arc<Exports>,
    /// The libfabric links, if enabled.
    links: Option<Arc<Links>>,
    receiver: OnceLock<Arc<dyn Receiver>>,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    /// Of the local socket, and of TCP.
    admission: [Admission; 2],
    refused: RateLimited,
    ignored: RateLimited,
    occupancy: Occupancy,
    stopped: AtomicBool,
}

/// A fabric over sockets. Its drop closes all connections.
pub struct SocketFabric {
    inner: Arc<Inner>,
    address: SocketAddr,
}

impl SocketFabric {
    /// Listens, and accepts peers from now on. Call [`Fabric::attach`] before any peer learns the address.
    ///
    /// # Errors
    /// The address is not available.
    pub fn listen(config: SocketConfig, system: &System) -> Result<Self> {
        let doing = format!("cannot listen on {}", config.listen);
        let listener = TcpListener::bind(&config.listen).map_err(|error| Fault::from_os(&doing, &error))?;
        let address = listener.local_addr().map_err(|error| Fault::from_os(&doing, &error))?;
        let watched =
            listener.set_nonblocking(true).and_then(|()| Watched::new(system.reactor(), listener.into()));
        let host_listener = config.slab.is_some().then(|| {
            host::listen_at(&config, system.reactor(), address.port()).inspect_err(|error| {
                log::warn!(
                    "agents of this host connect over TCP, because the local socket is not available: {error}"
                );
            })
        });
        let runtime = system.runtime().clone();
        let exports = Arc::new(Exports::new(runtime.random_u64()));
        let links = match &config.ofi {
            Some(ofi) => Some(Links::open(&config, ofi, &exports, (address, system))?),
            None => None,
        };
        let inner = Arc::new(Inner {
            port: address.port(),
            incarnation: runtime.random_u64(),
            grants: Grants::new(runtime.random_u64()),
            exports,
            links,
            host_listener: host_listener.and_then(std::result::Result::ok),
            config,
            reactor: system.reactor().clone(),
            listener: watched.map_err(|error| Fault::from_os(&doing, &error))?,
            receiver: OnceLock::new(),
            peers: Mutex::default(),
            admission: Default::default(),
            refused: RateLimited::default(),
            ignored: RateLimited::default(),
            occupancy: Occupancy::default(),
            stopped: AtomicBool::new(false),
            runtime,
        });
        if let Some(links) = &inner.links {
            links.attach(&inner);
        }
        for here in [false, true] {
            inner.runtime.spawn(inner.clone().accept_all(here));
        }
        Ok(Self { inner, address })
    }

    /// The address that this agent listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Sets the addresses of the peers, as `host:port`.
    pub fn set_peers(&self, peers: Vec<(NodeId, String)>) {
        self.inner.set_addresses(peers);
    }

    /// The counters of libfabric; empty without it.
    pub fn counters(&self) -> Vec<Counter> {
        self.inner.links.as_ref().map(|links| links.counters()).unwrap_or_default()
    }

    /// Exempts peers from the closing of idle connections, so that this agent and they detect each other's failure at once. The
    /// peers must exempt this node too.
    pub fn keep(&self, peers: &[NodeId]) {
        self.inner.keep(peers);
    }

    /// Closes all connections and accepts no more.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Behaves as if the process were killed.
    #[cfg(test)]
    pub(crate) fn kill(&self) {
        if let Some(links) = &self.inner.links {
            links.abandon();
        }
        self.close();
    }

    #[cfg(test)]
    pub(crate) fn break_connections(&self) {
        self.inner.break_connections();
    }
}

impl Drop for SocketFabric {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    async fn transmit(
        self: Arc<Self>,
        to: NodeId,
        (kind, lane, grant): (Kind, Lane, u64),
        body: Vec<u8>,
        payload: Option<Payload>,
    ) -> Result<()> {
        if body.len() > MESSAGE_SIZE_MAX {
            return Err(Fault::new(Errno::EINVAL, format!("a message of {} bytes is too large", body.len())));
        }
        let payload = payload.filter(|payload| !payload.is_empty());
        let mut message = Outgoing::new(kind, lane, body, payload, (grant, 0));
        loop {
            match self.connection(to, lane).await?.send(message).await {
                Ok(()) => return Ok(()),
                Err(Unsent::Closing(unsent)) => message = *unsent,
                Err(Unsent::Failed(fault)) => return Err(fault),
            }
        }
    }

    /// Posts a message on the connection for replies, once that exists.
    async fn post(self: Arc<Self>, node: NodeId, mut message: Outgoing) -> Result<()> {
        loop {
            match self.connection(node, Lane::Reply).await?.post(message) {
                Ok(()) => return Ok(()),
                Err(Unsent::Closing(unsent)) => message = *unsent,
                Err(Unsent::Failed(fault)) => return Err(fault),
            }
        }
    }

    /// Posts a message on the connection for replies, now or once it is reopened.
    fn post_reply(self: &Arc<Self>, node: NodeId, message: Outgoing) {
        let connection = self.peers.lock().get(&node).and_then(|peer| peer.accepted.clone());
        let unsent = match connection {
            None => message,
            Some(connection) => match connection.post(message) {
                // A message that cannot be posted is lost like its connection; its request is sent again.
                Ok(()) | Err(Unsent::Failed(_)) => return,
                Err(Unsent::Closing(unsent)) => *unsent,
            },
        };
        let inner = self.clone();
        self.runtime.spawn(async move { drop(inner.post(node, unsent).await) });
    }

    async fn get(
        self: Arc<Self>,
        from: NodeId,
        grant: GrantId,
        frame: Frame,
        length: u32,
    ) -> (Frame, Result<()>) {
        if length as usize > frame.len() {
            return (frame, Err(Fault::new(Errno::EINVAL, format!("{length} bytes do not fit a frame"))));
        }
        let (resolver, promise) = promise();
        let number = self.grants.begin_get(PendingGet { from, frame, length, resolver });
        let body = length.to_le_bytes().to_vec();
        let asked = Outgoing::new(Kind::Get, Lane::Reply, body, None, (grant.0, number));
        if let Err(fault) = self.clone().post(from, asked).await
            && let Some(get) = self.grants.take_get(number, from)
        {
            return (get.frame, Err(fault));
        }
        promise.await
    }
}

impl Fabric for SocketFabric {
    fn local(&self) -> NodeId {
        self.inner.config.node
    }

    fn inline_max(&self) -> usize {
        self.inner.config.inline_max
    }

    fn peer_limit(&self) -> Duration {
        self.inner.config.peer_limit
    }

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        let inline_max = self.inline_max();
        if let Some(size) = payload.as_ref().map(|payload| payload.len()).filter(|&size| size > inline_max) {
            let why = format!("a payload of {size} bytes is too large for a message");
            return Box::pin(std::future::ready(Err(Fault::new(Errno::EINVAL, why))));
        }
        Box::pin(self.inner.clone().transmit(to, (Kind::Message, lane, 0), body, payload))
    }

    fn grant_write(&self, frame: Frame) -> GrantId {
        self.inner.grants.add_write(frame)
    }

    fn grant_read(&self, payload: Payload) -> GrantId {
        self.inner.grants.add_read(payload)
    }

    fn revoke(&self, grant: GrantId) -> Option<Frame> {
        self.inner.grants.revoke(grant)
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        Box::pin(self.inner.clone().transmit(to, (Kind::Put, Lane::Reply, grant.0), body, Some(source)))
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        Box::pin(self.inner.clone().get(from, grant, frame, length))
    }

    fn attach(&self, receiver: Arc<dyn Receiver>) {
        if self.inner.receiver.set(receiver).is_err() {
            log::error!("ignored a second receiver for the fabric");
        }
    }

    fn probe(&self, peer: NodeId) {
        self.inner.probe(peer);
    }

    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        if node == self.local() { self.inner.config.device.clone() } else { self.inner.device_of(node) }
    }
}
