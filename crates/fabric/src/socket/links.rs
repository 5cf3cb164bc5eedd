//! The libfabric endpoint of an agent, and the links over it: one beside each connection whose peer has an endpoint, too.
//!
//! On a new connection each agent announces its endpoint, and knocks at the peer's until that answers by libfabric. From then on the
//! [link](super::link) carries messages that fit a packet, authenticated ([`super::seal`]) behind the token that the receiver
//! gave out for this connection. Payloads that do not fit beside a message are lent: the receiver reads them from the sender's slab into
//! their frame. The socket carries all other messages, and reports the failure of a peer at once. If libfabric fails, the agent
//! closes the connection, and uses no libfabric with this peer for [`AVOIDED_TIME`].

use super::connection::Connection;
use super::header::Kind;
use super::host::{Lender, Loans};
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

/// How long a peer is knocked at.
const KNOCK_LIMIT: Duration = Duration::from_secs(5);
/// Between two knocks.
const KNOCK_PAUSE: Duration = Duration::from_millis(20);
/// How long a peer with which libfabric has failed is spoken with on sockets alone.
const AVOIDED_TIME: Duration = Duration::from_secs(60);

type Token = [u8; TOKEN_SIZE];

/// All links of an agent.
pub(super) struct Links {
    transport: Arc<Transport>,
    lender: Lender,
    runtime: Runtime,
    by_token: Mutex<BTreeMap<Token, Weak<Connection>>>,
    by_route: Mutex<BTreeMap<RouteId, Weak<Connection>>>,
    /// Until when.
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
            return log::debug!("a packet of {} bytes came that belongs to no connection", packet.len());
        };
        if !connection.packets.lock().open(&mut packet) {
            return inner.ignored.warn(format_args!(
                "a packet was ignored that is not from {}, or is a repetition",
                connection.peer
            ));
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
            log::warn!("libfabric cannot reach {} (any more): {why}", connection.peer);
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
            // What was on its way is lost, and both ends must know: they connect anew.
            let fault = Fault::new(Errno::ECONNRESET, format!("libfabric's endpoint is closed: {why}"));
            let linked: Vec<_> = links.by_route.lock().values().filter_map(Weak::upgrade).collect();
            linked.iter().for_each(|connection| connection.close(fault.clone()));
        }
    }
}

impl Links {
    /// Opens an endpoint for the host whose address the agent listens at.
    pub(super) fn open(
        config: &SocketConfig,
        ofi: &OfiConfig,
        loans: &Arc<Loans>,
        (address, system): (SocketAddr, &System),
    ) -> Result<Arc<Self>> {
        let host = address.ip().to_string();
        let name = endpoint_name(&config.job, config.node, system.runtime().random_u64());
        let parts = (system.runtime(), system.reactor());
        let transport =
            Transport::open(ofi, (&host, &name), config.peer_limit / 2, parts).map_err(|why| {
                Fault::new(
                    Errno::ENODEV,
                    format!("{why}; `tameike doctor` lists what can be had, --fabric auto does without"),
                )
            })?;
        Ok(Arc::new(Self {
            transport,
            lender: Lender { slab: ofi.slab.clone(), loans: loans.clone() },
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

    /// What has gone this way.
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

    /// What the peer of a new connection is told.
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

    /// The connection has ended.
    fn forget(&self, connection: &Connection) {
        let is_it = |other: &Weak<Connection>| std::ptr::eq(other.as_ptr(), connection);
        self.by_token.lock().retain(|_, other| !is_it(other));
    }
}

impl LinkOwner for Links {
    fn closed(&self, route: RouteId, peer: NodeId, fault: &Fault) {
        // A connection that timed out was silent on its link, too.
        if fault.errno == Errno::ETIMEDOUT {
            self.avoid(peer);
        }
        self.by_route.lock().remove(&route);
    }
}

impl Inner {
    /// Tells the peer of a new connection where this agent's endpoint is, if it has one.
    pub(super) fn tell_endpoint(&self, connection: &Arc<Connection>) {
        let Some(links) = &self.links else { return };
        if !links.is_open.load(Ordering::Acquire) || links.is_avoided(connection.peer) {
            return;
        }
        match encode(&links.invite(connection)) {
            // A connection that has ended already needs none.
            Ok(body) => drop(connection.write_out(Outgoing::new(
                Kind::Endpoint,
                super::Lane::Reply,
                body,
                None,
                (0, 0),
            ))),
            Err(fault) => log::error!("this agent's endpoint cannot be told: {fault}"),
        }
    }

    /// A peer has told where its endpoint is.
    pub(super) fn take_endpoint(&self, connection: &Arc<Connection>, body: &[u8]) {
        let Some(links) = self.links.as_ref().filter(|links| !links.is_avoided(connection.peer)) else {
            return;
        };
        let peer = connection.peer;
        let endpoint = match decode::<Endpoint>(body) {
            Ok(endpoint) if endpoint.provider == links.transport.provider() => endpoint,
            Ok(endpoint) => {
                let (theirs, ours) = (endpoint.provider, links.transport.provider());
                return log::warn!("{peer} is spoken with on sockets: it has {theirs}, this agent {ours}");
            }
            Err(fault) => return log::warn!("{peer} tells of its endpoint what cannot be read: {fault}"),
        };
        let route = match links.transport.connect(&endpoint.address) {
            Ok(route) => route,
            Err(why) => {
                return log::warn!("{peer} is spoken with on sockets: its endpoint is refused ({why})");
            }
        };
        let link = Link::new(
            links.clone(),
            (links.transport.clone(), route),
            endpoint,
            links.lender.clone(),
            links.is_open.clone(),
        );
        links.by_route.lock().insert(route, Arc::downgrade(connection));
        if connection.link.set(link).is_err() || connection.closed().is_some() {
            // Told twice, or too late.
            links.by_route.lock().remove(&route);
            return links.transport.disconnect(route, &Fault::new(Errno::ECONNRESET, "it is not needed"));
        }
        self.runtime.spawn(knock(links.clone(), connection.clone()));
    }

    /// A peer has sent something that the provider does not tell of.
    pub(super) fn hear_bell(&self) {
        if let Some(links) = &self.links {
            links.transport.bell();
        }
    }

    /// Has libfabric end all that it does.
    pub(super) fn close_links(&self) {
        if let Some(links) = &self.links {
            links.transport.close("this agent stops");
        }
    }

    /// The connection has ended.
    pub(super) fn forget_link(&self, connection: &Connection) {
        if let Some(links) = &self.links {
            links.forget(connection);
        }
    }
}

/// Knocks until the peer answers, for a while.
async fn knock(links: Arc<Links>, connection: Arc<Connection>) {
    let Some(link) = connection.link.get() else { return };
    let deadline = links.runtime.clock.monotonic() + KNOCK_LIMIT;
    while links.runtime.clock.monotonic() < deadline {
        if link.has_answered() || connection.closed().is_some() {
            return;
        }
        links.transport.be_lively(2 * KNOCK_PAUSE);
        if !link.is_busy() {
            connection.send_by(link, Outgoing::bare(Kind::Knock, 0));
        }
        links.runtime.sleep(KNOCK_PAUSE).await;
    }
    link.drop_waiting(&Fault::new(Errno::EHOSTDOWN, "no peer answers there"));
    log::warn!("{} is spoken with on sockets: it does not answer through libfabric", connection.peer);
}
