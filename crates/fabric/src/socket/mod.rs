//! The fabric over sockets, which every machine has: TCP between hosts, and within a host local sockets and the memory
//! of the agents ([`host`]).
//!
//! Two connections join a pair of agents, one opened by each. On the one that A opened travel A's requests and
//! B's replies to them; puts, gets and what they bring travel like replies. So a connection that is not read
//! because the frames for requests are all taken never holds up a reply. Either end opens its own connection
//! as soon as it sees the other's.
//!
//! An idle agent costs nothing: the kernel's keep-alive watches over idle connections, and pings are sent only
//! while somebody probes. A connection that breaks is opened again at once: a refusal says that the peer is
//! dead, silence for the peer time limit that it is unreachable; in the latter case attempts go on.
//!
//! Connections are opened when they are first needed, and closed where there are too many of them and nothing is under way: in good
//! order, so that nothing is lost and nobody is taken for dead ([`idle`]).
//!
//! The modules: `handshake` proves the job's secret, `header` has the bytes of messages, `seal` authenticates them, `connection`
//! writes what is `outgoing`, `reader` reads messages from the `input`, `host` keeps what peers of this host have been lent, `link` has libfabric carry what goes between two agents,
//! `dial` connects, `strangers` are those who have not proven themselves yet, `peer` decides who is connected, alive or dead, `idle` who need not be.

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
mod strangers;

#[cfg(test)]
mod attacks;
#[cfg(test)]
pub(crate) mod tests;

pub use idle::connections_max;

use super::grant::{Grants, PendingGet};
use super::ofi::OfiConfig;
use super::{Fabric, GrantId, Lane, Receiver};
use connection::Unsent;
use futures_util::future::BoxFuture;
use header::Kind;
use host::Loans;
use idle::Crowd;
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
use strangers::Strangers;
use tameike_core::limits::MESSAGE_SIZE_MAX;
use tameike_core::wire::admin::Counter;
use tameike_core::{Errno, Fault, JobId, NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::os::reactor::{Reactor, Watched};
use tameike_io::os::runtime::{Runtime, promise};
use tameike_io::os::seldom::Seldom;
use tameike_io::os::system::System;
use tameike_io::slab::{Frame, Payload, Pool, Slab};

/// What a [`SocketFabric`] is built from.
#[derive(Clone)]
pub struct SocketConfig {
    /// This node.
    pub node: NodeId,
    /// The job; agents of another job are refused.
    pub job: JobId,
    /// What all agents of the job know and nobody else.
    pub secret: [u8; 32],
    /// `address:port` to listen on; port 0 takes any.
    pub listen: String,
    /// Largest payload sent beside a message, in bytes; at most [`tameike_core::limits::UNIT_SIZE`].
    pub inline_max: usize,
    /// How long a silent peer is waited for.
    pub peer_limit: Duration,
    /// Frames for payloads of requests.
    pub request_frames: Pool,
    /// Frames for payloads of replies that no grant was given for. Apart from those of requests, since
    /// serving a request may take a reply.
    pub reply_frames: Pool,
    /// The slab of all payloads, for agents of this host to read; without it they are spoken with over TCP, too.
    pub slab: Option<Arc<Slab>>,
    /// With which libfabric carries what goes between agents once they have a connection; without it, connections carry all.
    pub ofi: Option<OfiConfig>,
    /// This node's device, when that lies in memory, for processes of this host to read.
    pub device: Option<Arc<HostDevice>>,
    /// Peers beyond which the connections of those that were idle for longest are closed.
    pub connections: usize,
}

/// Peers' time limit unless configured otherwise.
pub const PEER_LIMIT_DEFAULT: Duration = Duration::from_secs(10);

/// Peers with connections unless configured otherwise: what one job of a node of today is busy with, several times.
pub const CONNECTIONS_DEFAULT: usize = 128;

struct Inner {
    config: SocketConfig,
    runtime: Runtime,
    reactor: Arc<Reactor>,
    listener: Watched<OwnedFd>,
    /// For agents of this host.
    host_listener: Option<Watched<OwnedFd>>,
    /// The TCP port that it listens at.
    port: u16,
    incarnation: u64,
    grants: Grants,
    loans: Arc<Loans>,
    /// What libfabric carries.
    links: Option<Arc<Links>>,
    receiver: OnceLock<Arc<dyn Receiver>>,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    /// At the local socket, and by TCP.
    strangers: [Strangers; 2],
    refused: Seldom,
    ignored: Seldom,
    crowd: Crowd,
    stopped: AtomicBool,
}

/// The network between agents over sockets. Dropped, it closes all connections.
pub struct SocketFabric {
    inner: Arc<Inner>,
    address: SocketAddr,
}

impl SocketFabric {
    /// Listens, and accepts peers from now on. Before the first message comes in, [`Fabric::attach`] must have
    /// said who takes it: attach before telling anybody the address.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn listen(config: SocketConfig, system: &System) -> Result<Self> {
        let doing = format!("cannot listen on {}", config.listen);
        let listener = TcpListener::bind(&config.listen).map_err(|error| Fault::from_os(&doing, &error))?;
        let address = listener.local_addr().map_err(|error| Fault::from_os(&doing, &error))?;
        let watched =
            listener.set_nonblocking(true).and_then(|()| Watched::new(system.reactor(), listener.into()));
        let host_listener = config.slab.is_some().then(|| {
            host::listen_at(&config, system.reactor(), address.port()).inspect_err(|error| {
                log::warn!(
                    "agents of this host are spoken with over TCP, no local socket is to be had: {error}"
                );
            })
        });
        let runtime = system.runtime().clone();
        let loans = Arc::new(Loans::new(runtime.random_u64()));
        let links = match &config.ofi {
            Some(ofi) => Some(Links::open(&config, ofi, &loans, (address, system))?),
            None => None,
        };
        let inner = Arc::new(Inner {
            port: address.port(),
            incarnation: runtime.random_u64(),
            grants: Grants::new(runtime.random_u64()),
            loans,
            links,
            host_listener: host_listener.and_then(std::result::Result::ok),
            config,
            reactor: system.reactor().clone(),
            listener: watched.map_err(|error| Fault::from_os(&doing, &error))?,
            receiver: OnceLock::new(),
            peers: Mutex::default(),
            strangers: Default::default(),
            refused: Seldom::default(),
            ignored: Seldom::default(),
            crowd: Crowd::default(),
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

    /// Where this agent listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Says where the peers listen, as `host:port`.
    pub fn set_peers(&self, peers: Vec<(NodeId, String)>) {
        self.inner.set_addresses(peers);
    }

    /// What libfabric has carried, if it does.
    pub fn counters(&self) -> Vec<Counter> {
        self.inner.links.as_ref().map(|links| links.counters()).unwrap_or_default()
    }

    /// Says of which peers the connections are never closed, however idle they are: this agent and they learn of each other's
    /// death at once. Those are to say the same of this node.
    pub fn keep(&self, peers: &[NodeId]) {
        self.inner.keep(peers);
    }

    /// Closes all connections and accepts no more.
    pub fn close(&self) {
        self.inner.close();
    }

    /// As if its process were killed.
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
                Err(Unsent::Parting(unsent)) => message = *unsent,
                Err(Unsent::Failed(fault)) => return Err(fault),
            }
        }
    }

    /// Posts a message on the connection for replies, as soon as there is one.
    async fn post(self: Arc<Self>, node: NodeId, mut message: Outgoing) -> Result<()> {
        loop {
            match self.connection(node, Lane::Reply).await?.post(message) {
                Ok(()) => return Ok(()),
                Err(Unsent::Parting(unsent)) => message = *unsent,
                Err(Unsent::Failed(fault)) => return Err(fault),
            }
        }
    }

    /// Posts a message on the connection for replies, now or when there is one again.
    fn post_reply(self: &Arc<Self>, node: NodeId, message: Outgoing) {
        let connection = self.peers.lock().get(&node).and_then(|peer| peer.accepted.clone());
        let unsent = match connection {
            None => message,
            Some(connection) => match connection.post(message) {
                // What cannot be posted is lost with its connection, and asked for again.
                Ok(()) | Err(Unsent::Failed(_)) => return,
                Err(Unsent::Parting(unsent)) => *unsent,
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

    fn send(
        &self,
        to: NodeId,
        lane: Lane,
        body: Vec<u8>,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, Result<()>> {
        let inline_max = self.inline_max();
        if let Some(size) = payload.as_ref().map(|payload| payload.len()).filter(|&size| size > inline_max) {
            let why = format!("a payload of {size} bytes is too large to go beside a message");
            return Box::pin(std::future::ready(Err(Fault::new(Errno::EINVAL, why))));
        }
        Box::pin(self.inner.clone().transmit(to, (Kind::Message, lane, 0), body, payload))
    }

    fn grant_write(&self, frame: Frame) -> GrantId {
        self.inner.grants.give_write(frame)
    }

    fn grant_read(&self, payload: Payload) -> GrantId {
        self.inner.grants.give_read(payload)
    }

    fn revoke(&self, grant: GrantId) -> Option<Frame> {
        self.inner.grants.revoke(grant)
    }

    fn put(
        &self,
        to: NodeId,
        grant: GrantId,
        source: Payload,
        body: Vec<u8>,
    ) -> BoxFuture<'static, Result<()>> {
        Box::pin(self.inner.clone().transmit(to, (Kind::Put, Lane::Reply, grant.0), body, Some(source)))
    }

    fn get(
        &self,
        from: NodeId,
        grant: GrantId,
        frame: Frame,
        length: u32,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
        Box::pin(self.inner.clone().get(from, grant, frame, length))
    }

    fn attach(&self, receiver: Arc<dyn Receiver>) {
        if self.inner.receiver.set(receiver).is_err() {
            log::error!("a second receiver was attached to the fabric, and is ignored");
        }
    }

    fn probe(&self, peer: NodeId) {
        self.inner.probe(peer);
    }

    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        if node == self.local() { self.inner.config.device.clone() } else { self.inner.device_of(node) }
    }
}
