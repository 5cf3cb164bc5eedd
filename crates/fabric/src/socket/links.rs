//! The libfabric endpoint of an agent, and its links: one beside each connection whose peer has an endpoint too.
//!
//! On a new connection each agent announces its endpoint, and knocks at the peer's endpoint until the peer answers by libfabric.
//! From then on the [link](super::link) carries messages that fit a packet, authenticated ([`super::seal`]) behind the token that
//! the receiver issued for this connection. Larger payloads are exported: the receiver reads them from the sender's slab into
//! their frame. The socket carries all other messages, and detects a failure of the peer at once. If libfabric fails, the agent
//! closes the connection, and uses no libfabric with this peer for [`AVOIDED_TIME`].

use super::connection::Connection;
use super::header::Kind;
use super::host::{Exporter, Exports};
use super::link::{Link, LinkOwner};
use super::outgoing::Outgoing;
use super::{Inner, SocketConfig, reader};
use crate::ofi::{Arrivals, OfiConfig, Remote, RouteId, Transport, endpoint_name};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::wire::admin::{Counter, counters};
use tameike_core::wire::codec::{decode, encode};
use tameike_core::wire::endpoint::{Endpoint, TOKEN_SIZE};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::runtime::Runtime;
use tameike_io::os::system::System;

/// Time after which an agent gives up knocking.
const KNOCK_LIMIT: Duration = Duration::from_secs(5);
const KNOCK_PAUSE: Duration = Duration::from_millis(20);
/// Time for which a peer is reached by sockets alone after a failure of libfabric.
const AVOIDED_TIME: Duration = Duration::from_secs(60);

type Token = [u8; TOKEN_SIZE];

pub(super) struct Links {
    transport: Arc<Transport>,
    exporter: Exporter,
    runtime: Runtime,
    by_token: Mutex<BTreeMap<Token, Weak<Connection>>>,
    by_route: Mutex<BTreeMap<RouteId, Weak<Connection>>>,
    /// The time until which libfabric is not used with a node.
    avoided: Mutex<BTreeMap<NodeId, Duration>>,
    is_open: Arc<AtomicBool>,
}

struct Inbound(Weak<Inner>);

impl Arrivals for Inbound {
    fn packet(&self, mut packet: Vec<u8>) {
        let Some(inner) = self.0.upgrade() else { return };
        let Some(links) = &inner.links else { return };
        let token = packet.first_chunk::<TOKEN_SIZE>();
        let connection = token.and_then(|token| links.by_token.lock().get(token)?.upgrade());
        let Some(connection) = connection else {
            return log::debug!("a packet of {} bytes belongs to no connection", packet.len());
        };
        if !connection.packets.lock().open(&mut packet) {
            return inner
                .ignored
                .warn(format_args!("ignored a packet that is not from {}, or is a replay", connection.peer));
        }
        connection.heard.fetch_add(1, Ordering::Relaxed);
        inner.used(&connection);
        inner.runtime.spawn(reader::read_packet(inner.clone(), connection, packet));
    }

    fn broken(&self, route: RouteId, why: &str) {
        let Some(inner) = self.0.upgrade() else { return };
        let Some(links) = &inner.links else { return };
        let connection = links.by_route.lock().get(&route).and_then(Weak::upgrade);
        if let Some(connection) = connection {
            log::warn!("libfabric cannot reach {}: {why}", connection.peer);
            links.avoid(connection.peer);
            let why = format!("libfabric to or from {}: {why}", connection.peer);
            connection.close(Fault::new(Errno::ECONNRESET, why));
        }
    }

    fn posted(&self, route: RouteId) {
        let Some(inner) = self.0.upgrade() else { return };
        let Some(links) = &inner.links else { return };
        let connection = links.by_route.lock().get(&route).and_then(Weak::upgrade);
        if let Some(connection) = connection {
            connection.ring();
        }
    }

    fn closed(&self, why: &str) {
        let Some(inner) = self.0.upgrade() else { return };
        if let Some(links) = &inner.links {
            links.is_open.store(false, Ordering::Release);
            // Messages in flight are lost, and both ends must notice: so they reconnect.
            let fault = Fault::new(Errno::ECONNRESET, format!("libfabric's endpoint is closed: {why}"));
            let linked: Vec<_> = links.by_route.lock().values().filter_map(Weak::upgrade).collect();
            linked.iter().for_each(|connection| connection.close(fault.clone()));
        }
    }
}

impl Links {
    /// Opens an endpoint at the address that the agent listens on.
    pub(super) fn open(
        config: &SocketConfig,
        ofi: &OfiConfig,
        exports: &Arc<Exports>,
        (address, system): (SocketAddr, &System),
    ) -> Result<Arc<Self>> {
        let host = address.ip().to_string();
        let name = endpoint_name(&config.job, config.node, system.runtime().random_u64());
        let parts = (system.runtime(), system.reactor());
        let transport =
            Transport::open(ofi, (&host, &name), config.peer_limit / 2, parts).map_err(|why| {
                Fault::new(
                    Errno::ENODEV,
                    format!(
                        "{why}; `tameike doctor` lists the providers, and --fabric auto falls back to sockets"
                    ),
                )
            })?;
        Ok(Arc::new(Self {
            transport,
            exporter: Exporter { slab: ofi.slab.clone(), exports: exports.clone() },
            runtime: system.runtime().clone(),
            by_token: Mutex::default(),
            by_route: Mutex::default(),
            avoided: Mutex::default(),
            is_open: Arc::new(AtomicBool::new(true)),
        }))
    }

    pub(super) fn attach(&self, inner: &Arc<Inner>) {
        self.transport.attach(Box::new(Inbound(Arc::downgrade(inner))));
    }

    #[cfg(test)]
    pub(super) fn abandon(&self) {
        self.transport.abandon();
    }

    pub(super) fn counters(&self) -> Vec<Counter> {
        let (sent, read) = self.transport.carried();
        vec![Counter::new(counters::LINK_MESSAGES, sent), Counter::new(counters::LINK_READ, read)]
    }

    fn avoid(&self, node: NodeId) {
        let until = self.runtime.clock.monotonic() + AVOIDED_TIME;
        self.avoided.lock().insert(node, until);
    }

    fn is_avoided(&self, node: NodeId) -> bool {
        let now = self.runtime.clock.monotonic();
        let mut avoided = self.avoided.lock();
        avoided.retain(|_, until| *until > now);
        avoided.contains_key(&node)
    }

    /// The announcement of this agent's endpoint for a new connection.
    fn invite(&self, connection: &Arc<Connection>) -> Endpoint {
        let mut token = [0; TOKEN_SIZE];
        self.runtime.random.fill(&mut token);
        self.by_token.lock().insert(token, Arc::downgrade(connection));
        let Remote { key, address } = self.transport.memory();
        Endpoint {
            provider: self.transport.provider().to_owned(),
            address: self.transport.address().to_vec(),
            token,
            memory_key: key,
            memory_address: address,
        }
    }

    /// Removes an ended connection.
    fn forget(&self, connection: &Connection) {
        let is_it = |other: &Weak<Connection>| std::ptr::eq(other.as_ptr(), connection);
        self.by_token.lock().retain(|_, other| !is_it(other));
    }
}

impl LinkOwner for Links {
    fn closed(&self, route: RouteId, peer: NodeId, fault: &Fault) {
        // A connection that timed out was silent on its link too.
        if fault.errno == Errno::ETIMEDOUT {
            self.avoid(peer);
        }
        self.by_route.lock().remove(&route);
    }
}

impl Inner {
    /// Announces this agent's endpoint to the peer of a new connection.
    pub(super) fn announce_endpoint(&self, connection: &Arc<Connection>) {
        let Some(links) = &self.links else { return };
        if !links.is_open.load(Ordering::Acquire) || links.is_avoided(connection.peer) {
            return;
        }
        match encode(&links.invite(connection)) {
            // A connection that has already ended needs no announcement.
            Ok(body) => drop(connection.write_out(Outgoing::new(
                Kind::Endpoint,
                super::Lane::Reply,
                body,
                None,
                (0, 0),
            ))),
            Err(fault) => log::error!("cannot announce the libfabric endpoint of this agent: {fault}"),
        }
    }

    /// Handles the announcement of a peer's endpoint.
    pub(super) fn take_endpoint(&self, connection: &Arc<Connection>, body: &[u8]) {
        let Some(links) = self.links.as_ref().filter(|links| !links.is_avoided(connection.peer)) else {
            return;
        };
        let peer = connection.peer;
        let endpoint = match decode::<Endpoint>(body) {
            Ok(endpoint) if endpoint.provider == links.transport.provider() => endpoint,
            Ok(endpoint) => {
                let (theirs, ours) = (endpoint.provider, links.transport.provider());
                return log::warn!(
                    "{peer} is reached by sockets: its provider is {theirs}, that of this agent {ours}"
                );
            }
            Err(fault) => return log::warn!("cannot decode the endpoint that {peer} announced: {fault}"),
        };
        let route = match links.transport.connect(&endpoint.address) {
            Ok(route) => route,
            Err(why) => {
                return log::warn!("{peer} is reached by sockets: its endpoint is refused ({why})");
            }
        };
        let link = Link::new(
            links.clone(),
            (links.transport.clone(), route),
            endpoint,
            links.exporter.clone(),
            links.is_open.clone(),
        );
        links.by_route.lock().insert(route, Arc::downgrade(connection));
        if connection.link.set(link).is_err() || connection.closed().is_some() {
            // A second announcement, or one after the end of the connection.
            links.by_route.lock().remove(&route);
            return links
                .transport
                .disconnect(route, &Fault::new(Errno::ECONNRESET, "the link is not needed"));
        }
        self.runtime.spawn(knock(links.clone(), connection.clone()));
    }

    /// Makes progress for a peer whose operations the provider does not signal.
    pub(super) fn on_doorbell(&self) {
        if let Some(links) = &self.links {
            links.transport.bell();
        }
    }

    pub(super) fn close_links(&self) {
        if let Some(links) = &self.links {
            links.transport.close("this agent stops");
        }
    }

    /// Removes an ended connection from the links.
    pub(super) fn forget_link(&self, connection: &Connection) {
        if let Some(links) = &self.links {
            links.forget(connection);
        }
    }
}

/// Knocks until the peer answers, for [`KNOCK_LIMIT`] at most.
async fn knock(links: Arc<Links>, connection: Arc<Connection>) {
    let Some(link) = connection.link.get() else { return };
    let deadline = links.runtime.clock.monotonic() + KNOCK_LIMIT;
    while links.runtime.clock.monotonic() < deadline {
        if link.has_answered() || connection.closed().is_some() {
            return;
        }
        links.transport.poll_for(2 * KNOCK_PAUSE);
        if !link.is_busy() {
            connection.send_by(link, Outgoing::bare(Kind::Knock, 0));
        }
        links.runtime.sleep(KNOCK_PAUSE).await;
    }
    link.drop_waiting(&Fault::new(Errno::EHOSTDOWN, "the peer does not answer through libfabric"));
    log::warn!("{} is reached by sockets: it does not answer through libfabric", connection.peer);
}
