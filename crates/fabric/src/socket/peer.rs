//! The state of peers: connect, reconnect, detect failures.

use super::connection::{Connection, Side};
use super::dial::{ATTEMPT_LIMIT, DialError, NewConnection};
use super::header::Kind;
use super::outgoing::Outgoing;
use super::{Inner, reader};
use crate::times::PeerTimes;
use crate::{Lane, PeerEvent, RECONNECT_PAUSE_MAX, UNREACHABLE_WAIT};
use rustix::net::{Shutdown, shutdown};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::os::runtime::{Resolver, promise};

const PAUSE_MIN: Duration = Duration::from_millis(50);

/// What the fabric knows about a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PeerState {
    /// Never connected.
    #[default]
    New,
    Up,
    /// The connections were closed because they were idle.
    Idle,
    /// The connection broke and is being reopened.
    Lost,
    Unreachable,
    Failed,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Probe {
    heard: u64,
    silent_since: Duration,
    last: Duration,
}

impl Probe {
    /// The length of the current silence, as far as probes cover it.
    fn silence(self, now: Duration, times: PeerTimes) -> Duration {
        if now - self.last > times.probe_gap { Duration::ZERO } else { now - self.silent_since }
    }
}

#[derive(Default)]
pub(super) struct Peer {
    address: Option<String>,
    pub(super) opened: Option<Arc<Connection>>,
    pub(super) accepted: Option<Arc<Connection>>,
    /// The previously opened connection during its orderly close. A new one is opened afterwards.
    pub(super) closing: Option<Arc<Connection>>,
    /// Exempt from the closing of idle connections.
    pub(super) kept: bool,
    incarnation: Option<u64>,
    pub(super) state: PeerState,
    /// A task is opening a connection.
    pub(super) dialing: bool,
    /// Ends the pause between two of its attempts early.
    retry_now: Option<Resolver<()>>,
    pub(super) waiting: Vec<(Lane, Resolver<Result<Arc<Connection>>>)>,
    pub(super) probe: Probe,
}

impl Peer {
    /// True if the caller must start dialing.
    pub(super) fn needs_dial(&mut self) -> bool {
        let needed =
            self.opened.is_none() && !self.dialing && self.closing.is_none() && self.address.is_some();
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

    /// The address of a peer; empty if unknown.
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

    /// Waits for the connection that carries messages of `lane` to `node`.
    pub(super) async fn connection(self: &Arc<Self>, node: NodeId, lane: Lane) -> Result<Arc<Connection>> {
        let (promise, dial, retry_now, is_known_unreachable) = {
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
            if peer.opened.is_none() && !peer.dialing && peer.closing.is_none() {
                return Err(unknown());
            }
            let (resolver, promise) = promise();
            peer.waiting.push((lane, resolver));
            let known = peer.state == PeerState::Unreachable;
            (promise, dial, peer.retry_now.take(), known)
        };
        if dial {
            self.runtime.spawn(self.clone().dial(node, None));
        }
        retry_now.into_iter().for_each(|retry_now| retry_now.resolve(()));
        let peer_limit = self.config.peer_limit;
        let limit = if is_known_unreachable { UNREACHABLE_WAIT } else { peer_limit };
        self.runtime.timeout(limit, promise).await.unwrap_or_else(|| {
            let limit = peer_limit.as_secs_f64();
            let why = format!("{node} is unreachable: it was silent for {limit} s and does not answer now");
            Err(Fault::new(Errno::EHOSTDOWN, why))
        })
    }

    /// The device of a peer of this host, if this agent can read it.
    pub(super) fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        let peers = self.peers.lock();
        let opened = peers.get(&node)?.opened.as_ref()?;
        self.used(opened);
        opened.neighbour.as_ref()?.device()
    }

    /// Connects to `node`, until it succeeds, the node proves to have failed, or this agent stops. `silent` is given if the node
    /// was already silent for the peer time limit.
    pub(super) async fn dial(self: Arc<Self>, node: NodeId, silent: Option<Fault>) {
        self.wait_for_capacity().await;
        let now = self.runtime.clock.monotonic();
        // A silence before the connection broke counts towards the limit.
        let times = PeerTimes::new(self.config.peer_limit);
        let silence = |peer: &Peer| peer.probe.silence(now, times);
        let silence = self.peers.lock().get(&node).map_or(Duration::ZERO, silence);
        let deadline = now + times.limit.saturating_sub(silence);
        if let Some(fault) = silent {
            self.give_up(node, PeerEvent::Unreachable, &fault.to_string());
        }
        let mut pause = PAUSE_MIN;
        while !self.stopped() {
            // An attempt must not exceed the deadline of the senders that wait.
            let left = deadline.saturating_sub(self.runtime.clock.monotonic());
            let limit = if left.is_zero() { ATTEMPT_LIMIT } else { left.min(ATTEMPT_LIMIT) };
            let address = self.address(node);
            match self.open(node, limit).await {
                Ok(new) => return self.establish(new, Side::Opened),
                Err(DialError::Gone(_)) if self.has_moved(node, &address) => continue,
                Err(DialError::Gone(why)) => return self.give_up(node, PeerEvent::Failed, &why),
                Err(DialError::Silent(why)) => {
                    let unreachable = {
                        let peers = self.peers.lock();
                        peers.get(&node).is_some_and(|peer| peer.state == PeerState::Unreachable)
                    };
                    if unreachable || self.runtime.clock.monotonic() >= deadline {
                        self.give_up(node, PeerEvent::Unreachable, &why);
                    }
                }
            }
            let (resolver, promise) = promise();
            if let Some(peer) = self.peers.lock().get_mut(&node) {
                peer.retry_now = Some(resolver);
            }
            self.runtime.timeout(pause, promise).await;
            pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
        }
    }

    /// Whether a node has another address by now, as its agent was restarted. Otherwise its next address is dialed when it is set.
    fn has_moved(&self, node: NodeId, address: &str) -> bool {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return false };
        let has_moved = peer.address.as_deref() != Some(address);
        peer.dialing &= has_moved;
        has_moved
    }

    /// Reports to the receiver and to waiting senders that `node` is not available.
    fn give_up(&self, node: NodeId, event: PeerEvent, why: &str) {
        let (state, status) = match event {
            PeerEvent::Failed => (PeerState::Failed, "has failed"),
            PeerEvent::Unreachable | PeerEvent::Up => (PeerState::Unreachable, "is unreachable"),
        };
        let (news, waiting) = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            peer.dialing &= state != PeerState::Failed;
            (std::mem::replace(&mut peer.state, state) != state, std::mem::take(&mut peer.waiting))
        };
        if news {
            log::warn!("{node} {status}: {why}");
            self.notify(node, event);
        }
        let limit = self.config.peer_limit.as_secs_f64();
        let fault = Fault::new(Errno::EHOSTDOWN, format!("{node} {status} (time limit {limit} s): {why}"));
        waiting.into_iter().for_each(|(_, resolver)| resolver.resolve(Err(fault.clone())));
    }

    fn notify(&self, node: NodeId, event: PeerEvent) {
        if let Some(receiver) = self.receiver.get() {
            receiver.peer(node, event);
        }
    }

    /// Puts an authenticated connection into use.
    pub(super) fn establish(self: &Arc<Self>, new: NewConnection, side: Side) {
        let NewConnection { proven, socket, neighbour } = new;
        let node = proven.node;
        let connection = Connection::new((node, side, proven.keys), socket, neighbour, self.runtime.clone());
        let (mut old, mut events) = (Vec::new(), Vec::new());
        let (waiting, dial, retry_now) = {
            let mut peers = self.peers.lock();
            if self.stopped() {
                return;
            }
            self.enter(&connection);
            let peer = peers.entry(node).or_default();
            let before = peer.incarnation.replace(proven.incarnation);
            if before.is_some_and(|before| before != proven.incarnation) {
                let all = [peer.opened.take(), peer.accepted.take(), peer.closing.take()];
                old.extend(all.into_iter().flatten());
                if matches!(peer.state, PeerState::Up | PeerState::Lost | PeerState::Idle) {
                    peer.state = PeerState::Failed;
                    events.push(PeerEvent::Failed);
                }
            }
            old.extend(peer.slot(side).replace(connection.clone()));
            if side == Side::Opened {
                peer.dialing = false;
                // The receiver was not notified of the close of idle connections.
                if std::mem::replace(&mut peer.state, PeerState::Up) != PeerState::Idle {
                    events.push(PeerEvent::Up);
                }
            }
            let lane = if side == Side::Opened { Lane::Request } else { Lane::Reply };
            let (ready, rest) =
                std::mem::take(&mut peer.waiting).into_iter().partition(|wait| wait.0 == lane);
            peer.waiting = rest;
            let ready: Vec<_> = ready;
            (ready, peer.needs_dial(), peer.retry_now.take())
        };
        let replaced = Fault::new(Errno::ECONNRESET, format!("{node} has reconnected"));
        old.iter().for_each(|old| old.close(replaced.clone()));
        events.into_iter().for_each(|event| self.notify(node, event));
        waiting.into_iter().for_each(|(_, resolver)| resolver.resolve(Ok(connection.clone())));
        retry_now.into_iter().for_each(|retry_now| retry_now.resolve(()));
        self.runtime.spawn(self.clone().serve(connection));
        if dial {
            self.runtime.spawn(self.clone().dial(node, None));
        }
        self.close_excess();
    }

    /// Reads a connection until it ends, then reopens it if necessary.
    async fn serve(self: Arc<Self>, connection: Arc<Connection>) {
        self.announce_endpoint(&connection);
        let ended = self.read(&connection).await;
        connection.close(ended.clone().err().unwrap_or_else(stopping));
        self.leave(&connection);
        let Err(ended) = ended else { return };
        let fault = connection.closed().unwrap_or(ended);
        self.grants.fail_gets(Some(connection.peer), &fault);
        self.exports.fail(Some(connection.peer), &fault);
        self.reopen(&connection);
        let dial = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&connection.peer) else { return };
            let slot = peer.slot(connection.side);
            if !slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
                return;
            }
            *slot = None;
            if connection.side == Side::Opened && peer.state == PeerState::Up {
                peer.state = PeerState::Lost;
            }
            !self.stopped() && peer.needs_dial()
        };
        log::info!("lost a connection with {}: {fault}", connection.peer);
        if dial {
            let silence = (fault.errno == Errno::ETIMEDOUT).then_some(fault);
            self.runtime.spawn(self.clone().dial(connection.peer, silence));
        }
    }

    /// Reads a connection until its orderly end; any other end is an error.
    async fn read(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<()> {
        reader::read_all(self, connection).await?;
        self.answer_bye(connection);
        connection.bye_sent().await?;
        reader::read_end(connection).await
    }

    /// Pings a peer, or drops its connections if it was silent for the peer time limit.
    pub(super) fn probe(&self, node: NodeId) {
        let now = self.runtime.clock.monotonic();
        let PeerTimes { limit, probe_after, probe_gap, .. } = PeerTimes::new(self.config.peer_limit);
        let (connections, silent) = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            if peer.opened.is_none() && peer.closing.is_none() {
                return;
            }
            let connections: Vec<_> = peer.connections().chain(&peer.closing).cloned().collect();
            let stalled = connections.iter().any(|connection| connection.stalled.load(Ordering::Relaxed));
            let heard = connections.iter().map(|connection| connection.heard.load(Ordering::Relaxed)).sum();
            let probe = &mut peer.probe;
            if stalled {
                probe.silent_since = now;
            } else if now - probe.last > probe_gap {
                probe.silent_since = now.saturating_sub(probe_after);
            } else if heard != probe.heard {
                // It arrived at an unknown time after the previous probe.
                probe.silent_since = probe.last;
            }
            (probe.heard, probe.last) = (heard, now);
            (connections, now - probe.silent_since)
        };
        if silent >= limit {
            let why = format!("{node} was silent for {:.1} s", silent.as_secs_f64());
            let fault = Fault::new(Errno::ETIMEDOUT, why);
            connections.iter().for_each(|connection| connection.close(fault.clone()));
        } else if let Some(connection) = connections.last() {
            // On the connection that the peer opened, if it exists: its reply lane is never blocked.
            let _ = connection.post(Outgoing::bare(Kind::Ping, 0));
        }
    }

    pub(super) fn close(&self) {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        // Ends the wait in `accept_all`. Fails only if the kernel has closed the socket already.
        for listener in [Some(&self.listener), self.host_listener.as_ref()].into_iter().flatten() {
            let _ = shutdown(listener.get(), Shutdown::Both);
        }
        let (mut connections, mut waiting) = (Vec::new(), Vec::new());
        for peer in self.peers.lock().values_mut() {
            let all = [peer.opened.take(), peer.accepted.take(), peer.closing.take()];
            connections.extend(all.into_iter().flatten());
            waiting.append(&mut peer.waiting);
            peer.retry_now.take().into_iter().for_each(|retry_now| retry_now.resolve(()));
        }
        connections.iter().for_each(|connection| connection.close(stopping()));
        waiting.into_iter().for_each(|(_, resolver)| resolver.resolve(Err(stopping())));
        self.grants.fail_gets(None, &stopping());
        self.exports.fail(None, &stopping());
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
    Fault::new(Errno::EHOSTDOWN, "the network of this agent is closed")
}
