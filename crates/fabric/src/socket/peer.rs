//! The peers: who is connected, who is being called, who is alive.

use super::connection::{Connection, Side};
use super::dial::{ATTEMPT_LIMIT, DialError, Line};
use super::header::Kind;
use super::outgoing::Outgoing;
use super::{Inner, reader};
use crate::{Lane, PeerEvent, waited};
use rustix::net::{Shutdown, shutdown};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::os::runtime::{Resolver, promise};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long senders wait for a peer that is known to be unreachable: an attempt to connect is made for them at
/// once, and if it can be reached again that is enough.
const UNREACHABLE_WAIT: Duration = Duration::from_millis(500);
/// Probes further apart than this belong to different occasions.
const PROBE_GAP: Duration = Duration::from_secs(3);

/// What the fabric knows of a peer's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Life {
    /// Nothing yet.
    #[default]
    New,
    Up,
    /// It was idle, and its connections were closed.
    Idle,
    /// The connection broke, and is being opened again.
    Lost,
    Unreachable,
    Dead,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Probe {
    heard: u64,
    silent_since: Duration,
    last: Duration,
}

impl Probe {
    /// How long the peer has been silent, as far as it was probed until now.
    fn silence(self, now: Duration) -> Duration {
        if now - self.last > PROBE_GAP { Duration::ZERO } else { now - self.silent_since }
    }
}

/// A peer.
#[derive(Default)]
pub(super) struct Peer {
    address: Option<String>,
    pub(super) opened: Option<Arc<Connection>>,
    pub(super) accepted: Option<Arc<Connection>>,
    /// The one that was opened before, while it is being closed in good order: a new one is opened after that.
    pub(super) parting: Option<Arc<Connection>>,
    /// It is never closed for being idle.
    pub(super) kept: bool,
    incarnation: Option<u64>,
    pub(super) life: Life,
    /// A task is at work to open a connection.
    pub(super) dialing: bool,
    /// Cuts the pause between two of its attempts short.
    hurry: Option<Resolver<()>>,
    pub(super) waiting: Vec<(Lane, Resolver<Result<Arc<Connection>>>)>,
    pub(super) probe: Probe,
}

impl Peer {
    /// Whether the caller must start dialing.
    pub(super) fn needs_dial(&mut self) -> bool {
        let needed =
            self.opened.is_none() && !self.dialing && self.parting.is_none() && self.address.is_some();
        self.dialing |= needed;
        needed
    }

    pub(super) fn slot(&mut self, side: Side) -> &mut Option<Arc<Connection>> {
        match side {
            Side::Opened => &mut self.opened,
            Side::Accepted => &mut self.accepted,
        }
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.opened.iter().chain(&self.accepted)
    }
}

impl Inner {
    pub(super) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Where a peer listens; empty when that is not known.
    pub(super) fn address(&self, node: NodeId) -> String {
        self.peers.lock().get(&node).and_then(|peer| peer.address.clone()).unwrap_or_default()
    }

    pub(super) fn set_addresses(self: &Arc<Self>, addresses: Vec<(NodeId, String)>) {
        for (node, address) in addresses {
            if node == self.config.node {
                continue;
            }
            let dial = {
                let mut peers = self.peers.lock();
                let peer = peers.entry(node).or_default();
                peer.address = Some(address);
                peer.accepted.is_some() && peer.needs_dial()
            };
            if dial {
                self.runtime.spawn(self.clone().dial(node, None));
            }
        }
    }

    /// The connection on which messages of `lane` to `node` travel, as soon as it is there.
    pub(super) async fn connection(self: &Arc<Self>, node: NodeId, lane: Lane) -> Result<Arc<Connection>> {
        let (promise, dial, hurry, is_known_unreachable) = {
            let mut peers = self.peers.lock();
            let unknown = || Fault::new(Errno::EHOSTDOWN, format!("the address of {node} is not known"));
            let peer = peers.get_mut(&node).ok_or_else(unknown)?;
            let side = if lane == Lane::Request { Side::Opened } else { Side::Accepted };
            if let Some(connection) = peer.slot(side) {
                self.used(connection);
                return Ok(connection.clone());
            }
            if self.stopped() {
                return Err(stopping());
            }
            let dial = peer.needs_dial();
            if peer.opened.is_none() && !peer.dialing && peer.parting.is_none() {
                return Err(unknown());
            }
            let (resolver, promise) = promise();
            peer.waiting.push((lane, resolver));
            let known = peer.life == Life::Unreachable;
            (promise, dial, peer.hurry.take(), known)
        };
        if dial {
            self.runtime.spawn(self.clone().dial(node, None));
        }
        hurry.into_iter().for_each(|hurry| hurry.resolve(()));
        let peer_limit = self.config.peer_limit;
        let limit = if is_known_unreachable { UNREACHABLE_WAIT } else { peer_limit };
        self.runtime.timeout(limit, promise).await.unwrap_or_else(|| {
            let limit = peer_limit.as_secs();
            let why =
                format!("{node} is unreachable: it was silent for {limit} s, and still does not answer");
            Err(Fault::new(Errno::EHOSTDOWN, why))
        })
    }

    /// The device of a peer of this host that can be read here.
    pub(super) fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        let peers = self.peers.lock();
        let opened = peers.get(&node)?.opened.as_ref()?;
        self.used(opened);
        opened.neighbour.as_ref()?.device()
    }

    /// Connects to `node` until it works, the node proves to be dead, or this agent stops. `silent` says that
    /// nothing was heard of it already for the peer time limit.
    pub(super) async fn dial(self: Arc<Self>, node: NodeId, silent: Option<Fault>) {
        self.room().await;
        let now = self.runtime.clock.monotonic();
        // What was silent before its connection broke is not waited for anew.
        let silence = self.peers.lock().get(&node).map_or(Duration::ZERO, |peer| peer.probe.silence(now));
        let deadline = now + self.config.peer_limit.saturating_sub(silence);
        if let Some(fault) = silent {
            self.give_up(node, PeerEvent::Unreachable, &fault.to_string());
        }
        let mut pause = PAUSE_MIN;
        while !self.stopped() {
            // Who waits for the peer does not wait beyond the deadline.
            let left = deadline.saturating_sub(self.runtime.clock.monotonic());
            let limit = if left.is_zero() { ATTEMPT_LIMIT } else { left.min(ATTEMPT_LIMIT) };
            match self.open(node, limit).await {
                Ok(line) => return self.establish(line, Side::Opened),
                Err(DialError::Gone(why)) => return self.give_up(node, PeerEvent::Dead, &why),
                Err(DialError::Silent(why)) => {
                    let unreachable = {
                        let peers = self.peers.lock();
                        peers.get(&node).is_some_and(|peer| peer.life == Life::Unreachable)
                    };
                    if unreachable || self.runtime.clock.monotonic() >= deadline {
                        self.give_up(node, PeerEvent::Unreachable, &why);
                    }
                }
            }
            let (resolver, promise) = promise();
            if let Some(peer) = self.peers.lock().get_mut(&node) {
                peer.hurry = Some(resolver);
            }
            self.runtime.timeout(pause, promise).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Tells those who wait for `node`, and the receiver, that it cannot be had.
    fn give_up(&self, node: NodeId, event: PeerEvent, why: &str) {
        let (life, told) = match event {
            PeerEvent::Dead => (Life::Dead, "is dead"),
            PeerEvent::Unreachable | PeerEvent::Up => (Life::Unreachable, "is unreachable"),
        };
        let (news, waiting) = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            peer.dialing &= life != Life::Dead;
            (std::mem::replace(&mut peer.life, life) != life, std::mem::take(&mut peer.waiting))
        };
        if news {
            log::warn!("{node} {told}: {why}");
            self.tell(node, event);
        }
        let limit = self.config.peer_limit.as_secs();
        let fault = Fault::new(Errno::EHOSTDOWN, format!("{node} {told} (time limit {limit} s): {why}"));
        waiting.into_iter().for_each(|(_, resolver)| resolver.resolve(Err(fault.clone())));
    }

    fn tell(&self, node: NodeId, event: PeerEvent) {
        if let Some(receiver) = self.receiver.get() {
            receiver.peer(node, event);
        }
    }

    /// Takes a proven connection into use.
    pub(super) fn establish(self: &Arc<Self>, line: Line, side: Side) {
        let Line { proven, socket, neighbour } = line;
        let node = proven.node;
        let connection = Connection::new((node, side, proven.keys), socket, neighbour, self.runtime.clone());
        let (mut old, mut events) = (Vec::new(), Vec::new());
        let (waiting, dial, hurry) = {
            let mut peers = self.peers.lock();
            if self.stopped() {
                return;
            }
            self.enter(&connection);
            let peer = peers.entry(node).or_default();
            let before = peer.incarnation.replace(proven.incarnation);
            if before.is_some_and(|before| before != proven.incarnation) {
                let all = [peer.opened.take(), peer.accepted.take(), peer.parting.take()];
                old.extend(all.into_iter().flatten());
                if matches!(peer.life, Life::Up | Life::Lost | Life::Idle) {
                    peer.life = Life::Dead;
                    events.push(PeerEvent::Dead);
                }
            }
            old.extend(peer.slot(side).replace(connection.clone()));
            if side == Side::Opened {
                peer.dialing = false;
                // Who was idle has not been away.
                if std::mem::replace(&mut peer.life, Life::Up) != Life::Idle {
                    events.push(PeerEvent::Up);
                }
            }
            let lane = if side == Side::Opened { Lane::Request } else { Lane::Reply };
            let (ready, rest) =
                std::mem::take(&mut peer.waiting).into_iter().partition(|wait| wait.0 == lane);
            peer.waiting = rest;
            let ready: Vec<_> = ready;
            (ready, peer.needs_dial(), peer.hurry.take())
        };
        let replaced = Fault::new(Errno::ECONNRESET, format!("{node} has connected anew"));
        old.iter().for_each(|old| old.close(replaced.clone()));
        events.into_iter().for_each(|event| self.tell(node, event));
        waiting.into_iter().for_each(|(_, resolver)| resolver.resolve(Ok(connection.clone())));
        hurry.into_iter().for_each(|hurry| hurry.resolve(()));
        self.runtime.spawn(self.clone().serve(connection));
        if dial {
            self.runtime.spawn(self.clone().dial(node, None));
        }
        self.thin_out();
    }

    /// A connection's life: read until it ends, then see to a new one.
    async fn serve(self: Arc<Self>, connection: Arc<Connection>) {
        self.tell_endpoint(&connection);
        let ended = self.read(&connection).await;
        connection.close(ended.clone().err().unwrap_or_else(stopping));
        self.leave(&connection);
        let Err(ended) = ended else { return };
        let fault = connection.closed().unwrap_or(ended);
        self.grants.fail_gets(Some(connection.peer), &fault);
        self.loans.fail(Some(connection.peer), &fault);
        self.open_again(&connection);
        let dial = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&connection.peer) else { return };
            let slot = peer.slot(connection.side);
            if !slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
                return;
            }
            *slot = None;
            if connection.side == Side::Opened && peer.life == Life::Up {
                peer.life = Life::Lost;
            }
            !self.stopped() && peer.needs_dial()
        };
        log::info!("lost a connection with {}: {fault}", connection.peer);
        if dial {
            let silence = (fault.errno == Errno::ETIMEDOUT).then_some(fault);
            self.runtime.spawn(self.clone().dial(connection.peer, silence));
        }
    }

    /// Reads a connection to its end.
    ///
    /// # Errors
    /// Why it has not ended in good order.
    async fn read(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<()> {
        reader::read_all(self, connection).await?;
        self.answer_bye(connection);
        connection.parted().await?;
        reader::read_end(connection).await
    }

    /// Asks a peer for a sign of life, and drops its connections when it was silent for too long.
    pub(super) fn probe(&self, node: NodeId) {
        let now = self.runtime.clock.monotonic();
        let (connections, silent) = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            if peer.opened.is_none() && peer.parting.is_none() {
                return;
            }
            let connections: Vec<_> = peer.connections().chain(&peer.parting).cloned().collect();
            let stalled = connections.iter().any(|connection| connection.stalled.load(Ordering::Relaxed));
            let heard = connections.iter().map(|connection| connection.heard.load(Ordering::Relaxed)).sum();
            let probe = &mut peer.probe;
            if stalled {
                probe.silent_since = now;
            } else if now - probe.last > PROBE_GAP {
                probe.silent_since = now.saturating_sub(waited(self.config.peer_limit));
            } else if heard != probe.heard {
                // After the look before this one, nobody knows when.
                probe.silent_since = probe.last;
            }
            (probe.heard, probe.last) = (heard, now);
            (connections, now - probe.silent_since)
        };
        if silent >= self.config.peer_limit {
            let why = format!("nothing was heard of {node} for {} s", silent.as_secs());
            let fault = Fault::new(Errno::ETIMEDOUT, why);
            connections.iter().for_each(|connection| connection.close(fault.clone()));
        } else if let Some(connection) = connections.last() {
            // On the connection that the peer opened, if there is one: a reply lane, which is never held up.
            let _ = connection.post(Outgoing::bare(Kind::Ping, 0));
        }
    }

    pub(super) fn close(&self) {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        // Ends the wait in `accept_all`. Fails only when the kernel has closed the socket already.
        for listener in [Some(&self.listener), self.host_listener.as_ref()].into_iter().flatten() {
            let _ = shutdown(listener.get(), Shutdown::Both);
        }
        let (mut connections, mut waiting) = (Vec::new(), Vec::new());
        for peer in self.peers.lock().values_mut() {
            let all = [peer.opened.take(), peer.accepted.take(), peer.parting.take()];
            connections.extend(all.into_iter().flatten());
            waiting.append(&mut peer.waiting);
            peer.hurry.take().into_iter().for_each(|hurry| hurry.resolve(()));
        }
        connections.iter().for_each(|connection| connection.close(stopping()));
        waiting.into_iter().for_each(|(_, resolver)| resolver.resolve(Err(stopping())));
        self.grants.fail_gets(None, &stopping());
        self.loans.fail(None, &stopping());
        self.close_links();
    }

    #[cfg(test)]
    pub(super) fn is_neighbour(&self, node: NodeId) -> bool {
        let peers = self.peers.lock();
        let Some(peer) = peers.get(&node) else { return false };
        peer.connections().any(|connection| connection.neighbour.is_some())
    }

    #[cfg(test)]
    pub(super) fn break_connections(&self) {
        let connections: Vec<_> = self
            .peers
            .lock()
            .values()
            .flat_map(|peer| peer.connections().cloned().collect::<Vec<_>>())
            .collect();
        for connection in connections {
            let _ = shutdown(connection.socket.get(), Shutdown::Both);
        }
    }
}

fn stopping() -> Fault {
    Fault::new(Errno::EHOSTDOWN, "this agent's network is closed")
}
