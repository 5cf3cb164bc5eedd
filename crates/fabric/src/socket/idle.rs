//! Who need not be connected: where there are more peers than there is to be, those that were idle for longest.
//!
//! Idle is a peer with which nothing is under way: no message waits to be written to it, nothing that was lent or asked for is
//! waited for, and whoever takes messages expects nothing. Its connections are closed in good order. This end takes them out of use
//! and sends [`Kind::Bye`](super::header::Kind) as its last message on each; the other end, when it has read one of them, takes both
//! out of use, too, and sends its own. Who has read the other's `Bye` ends its side of the stream, which says that everything was
//! read. So nothing is lost: what was sent before arrives, what is sent from now on goes by new connections, opened when they are
//! needed. Whoever finds after that that it waits for something of the peer opens them at once, as only who is connected learns
//! of a death.
//!
//! Busy peers are never closed: they go beyond the bound, by a slack. Who wants to connect beyond that waits for room, but not
//! for long, since what keeps the others busy may be what it is asked for.

#[cfg(test)]
mod tests;

use super::Inner;
use super::connection::Connection;
use super::peer::{Life, Peer};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tameike_core::NodeId;
use tameike_io::os::runtime::{Resolver, promise};

/// Pause between two looks for idle peers while there are too many.
const LOOK: Duration = Duration::from_millis(50);
/// How long a connection is put off for want of room.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
/// Peers that there is always room for beside those that are kept.
const BESIDE_KEPT: usize = 4;
/// Connections of a pair of agents, one opened by each.
const PER_PEER: usize = 2;

/// Files that a process may have open, for each peer: half of them for peers, which take up to six (two sockets, and of a
/// peer of the same host two slabs and the two files of a device), and for the slack.
const FILES_PER_PEER: usize = 16;

/// Peers that an agent can be connected with, for the files that it may have open.
pub fn connections_max() -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| (files as usize / FILES_PER_PEER).max(1))
}

/// How far busy peers may go beyond a bound.
fn slack(bound: usize) -> usize {
    2 + bound / 4
}

/// How many connections there are.
#[derive(Default)]
pub(super) struct Crowd {
    /// Those that there are, also those that are being closed.
    connections: AtomicUsize,
    /// Grows with each connection, and each look for idle peers.
    turn: AtomicU64,
    /// Peers that are never closed.
    kept: AtomicUsize,
    /// A task looks for idle peers.
    thinning: AtomicBool,
    /// Who waits for room.
    room: Mutex<Vec<Resolver<()>>>,
}

impl Peer {
    /// When something last travelled, if it could be closed.
    fn idle_since(&self) -> Option<u64> {
        let is_settled = !self.kept && !self.dialing && self.parting.is_none() && self.waiting.is_empty();
        let used = |connection: &Arc<Connection>| connection.used.load(Ordering::Relaxed);
        self.opened.as_ref().filter(|_| is_settled).and_then(|_| self.connections().map(used).max())
    }

    fn has(&self, connection: &Arc<Connection>) -> bool {
        self.connections().any(|current| Arc::ptr_eq(current, connection))
    }

    /// Takes its connections out of use.
    fn take_leave(&mut self) -> Vec<Arc<Connection>> {
        if self.life == Life::Up {
            self.life = Life::Idle;
        }
        self.probe = Default::default();
        let opened = self.opened.take();
        if opened.is_some() {
            self.parting.clone_from(&opened);
        }
        opened.into_iter().chain(self.accepted.take()).collect()
    }
}

impl Inner {
    /// Something travels on a connection.
    pub(super) fn used(&self, connection: &Connection) {
        connection.used.store(self.crowd.turn.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn keep(&self, nodes: &[NodeId]) {
        let mut peers = self.peers.lock();
        nodes.iter().for_each(|node| peers.entry(*node).or_default().kept = true);
        self.crowd.kept.store(peers.values().filter(|peer| peer.kept).count(), Ordering::Relaxed);
    }

    fn bound(&self) -> usize {
        match self.crowd.kept.load(Ordering::Relaxed) {
            0 => self.config.connections.max(1),
            kept => self.config.connections.max(kept + BESIDE_KEPT),
        }
    }

    fn is_beyond(&self, peers: usize) -> bool {
        self.crowd.connections.load(Ordering::Relaxed) > PER_PEER * peers
    }

    /// A connection is there.
    pub(super) fn enter(&self, connection: &Connection) {
        self.crowd.connections.fetch_add(1, Ordering::Relaxed);
        self.crowd.turn.fetch_add(1, Ordering::Relaxed);
        self.used(connection);
    }

    /// A connection is there no more.
    pub(super) fn leave(&self, connection: &Connection) {
        self.forget_link(connection);
        self.crowd.connections.fetch_sub(1, Ordering::Relaxed);
        if !self.is_beyond(self.bound() + slack(self.bound())) {
            let waiting = std::mem::take(&mut *self.crowd.room.lock());
            waiting.into_iter().for_each(|resolver| resolver.resolve(()));
        }
    }

    /// Waits for room for one peer more.
    pub(super) async fn room(&self) {
        if self.is_beyond(self.bound() + slack(self.bound()) - 1) {
            let (resolver, promise) = promise();
            self.crowd.room.lock().push(resolver);
            self.runtime.timeout(ROOM_PATIENCE, promise).await;
        }
    }

    /// Closes idle peers, now and as long as there are too many.
    pub(super) fn thin_out(self: &Arc<Self>) {
        if !self.is_beyond(self.bound()) || self.crowd.thinning.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = self.clone();
        self.runtime.spawn(async move {
            while !inner.stopped() && inner.close_idle() {
                inner.runtime.sleep(LOOK).await;
            }
            inner.crowd.thinning.store(false, Ordering::SeqCst);
        });
    }

    /// Closes peers that are idle until there are as many as there may be; whether more could be closed later.
    fn close_idle(self: &Arc<Self>) -> bool {
        let turn = self.crowd.turn.fetch_add(1, Ordering::Relaxed);
        let (mut beyond, mut idle) = {
            let peers = self.peers.lock();
            let connected = peers.values().filter(|peer| peer.connections().next().is_some()).count();
            // What was used since the last look may be about to be used.
            let since = |(node, peer): (&NodeId, &Peer)| {
                peer.idle_since().filter(|since| *since < turn).map(|since| (since, *node))
            };
            (connected.saturating_sub(self.bound()), peers.iter().filter_map(since).collect::<Vec<_>>())
        };
        idle.sort_unstable();
        for (since, node) in idle {
            if beyond == 0 {
                break;
            }
            if !self.awaits(node) && self.take_leave_of(node, since) {
                beyond -= 1;
            }
        }
        beyond > 0
    }

    /// Whether something of a peer is waited for, or by it.
    pub(super) fn awaits(&self, node: NodeId) -> bool {
        let expects = || self.receiver.get().is_some_and(|receiver| receiver.is_expecting(node));
        self.grants.any_get(node) || self.loans.any(node) || expects()
    }

    /// Closes the connections of a peer in good order, if nothing has travelled there since.
    fn take_leave_of(&self, node: NodeId, since: u64) -> bool {
        let parting = {
            let mut peers = self.peers.lock();
            let idle = peers.get_mut(&node).filter(|peer| peer.idle_since() == Some(since));
            let quiet = idle.filter(|peer| peer.connections().all(|connection| connection.is_quiet()));
            quiet.map(Peer::take_leave)
        };
        let parting = parting.unwrap_or_default();
        if !parting.is_empty() {
            log::debug!("{node} is idle, and its connections are closed");
        }
        parting.iter().for_each(Connection::part);
        !parting.is_empty()
    }

    /// The peer has sent its last message on a connection.
    pub(super) fn answer_bye(self: &Arc<Self>, connection: &Arc<Connection>) {
        let parting = {
            let mut peers = self.peers.lock();
            let current = peers.get_mut(&connection.peer).filter(|peer| peer.has(connection));
            current.map(Peer::take_leave).unwrap_or_default()
        };
        parting.iter().for_each(Connection::part);
        connection.part();
        self.open_again(connection);
    }

    /// A connection that was being closed is not in the way of a new one any more: it is opened if it is needed.
    pub(super) fn open_again(self: &Arc<Self>, connection: &Arc<Connection>) {
        let node = connection.peer;
        let awaits = self.awaits(node);
        let dial = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            if !peer.parting.as_ref().is_some_and(|parting| Arc::ptr_eq(parting, connection)) {
                return;
            }
            peer.parting = None;
            let is_needed = awaits || !peer.waiting.is_empty() || peer.accepted.is_some();
            is_needed && !self.stopped() && peer.needs_dial()
        };
        if dial {
            self.runtime.spawn(self.clone().dial(node, None));
        }
    }
}
