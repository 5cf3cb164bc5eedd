//! Bound on connections: beyond it, closes those of the peers that were idle longest.
//!
//! A peer is idle if no message to it waits to be written, no exported payload, get or call with it is pending, and the receiver
//! expects nothing of it. The close is orderly:
//!
//! 1. This end takes both connections out of use and sends [`Kind::Bye`](super::header::Kind) as its last message on each.
//! 2. The other end, after reading one `Bye`, takes both out of use too and sends its own.
//! 3. An end that has read the other's `Bye` ends its side of the stream, which confirms that it has read everything.
//!
//! So no message is lost: earlier ones arrive, and later ones use new connections, opened on demand. An end that finds afterwards
//! that it waits for the peer reconnects at once, since only a connection reports a failure of the peer.
//!
//! Busy peers are never closed; they may exceed the bound by a slack. Beyond the slack a new connection waits for capacity, but
//! only [`CAPACITY_WAIT`], since the other peers may be busy waiting for this very connection.

#[cfg(test)]
mod tests;

use super::Inner;
use super::connection::Connection;
use super::peer::{Peer, PeerState};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tameike_core::NodeId;
use tameike_io::os::runtime::{Resolver, promise};

/// Interval of searches for idle peers while there are too many.
const SEARCH_PAUSE: Duration = Duration::from_millis(50);
/// Longest delay of a new connection for lack of capacity.
const CAPACITY_WAIT: Duration = Duration::from_secs(1);
/// Minimum capacity for peers beside the exempt ones.
const BESIDE_KEPT: usize = 4;
/// Connections of a pair of agents, one opened by each.
const PER_PEER: usize = 2;

/// File descriptors reserved for each peer. Peers get half of the process's limit. A peer takes up to six: two sockets, and on
/// the same host two slabs and the two files of a device. The rest covers the slack.
const FILES_PER_PEER: usize = 16;

/// The largest bound on connected peers that the process's limit of open files allows.
pub fn connections_max() -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| (files as usize / FILES_PER_PEER).max(1))
}

/// Number of busy peers by which a bound may be exceeded.
fn slack(bound: usize) -> usize {
    2 + bound / 4
}

/// Counts the connections of an agent.
#[derive(Default)]
pub(super) struct Occupancy {
    /// All connections, including those that are closing.
    connections: AtomicUsize,
    /// Logical clock: advances with each new connection, and each search for idle peers.
    clock: AtomicU64,
    /// Peers that are exempt from closing.
    kept: AtomicUsize,
    /// A task is searching for idle peers.
    is_searching: AtomicBool,
    /// Tasks that wait for capacity.
    waiting: Mutex<Vec<Resolver<()>>>,
}

impl Peer {
    /// The time of the last use, if the peer may be closed.
    fn idle_since(&self) -> Option<u64> {
        let is_settled = !self.kept && !self.dialing && self.closing.is_none() && self.waiting.is_empty();
        let used = |connection: &Arc<Connection>| connection.used.load(Ordering::Relaxed);
        self.opened.as_ref().filter(|_| is_settled).and_then(|_| self.connections().map(used).max())
    }

    fn has(&self, connection: &Arc<Connection>) -> bool {
        self.connections().any(|current| Arc::ptr_eq(current, connection))
    }

    /// Takes its connections out of use.
    fn retire_connections(&mut self) -> Vec<Arc<Connection>> {
        if self.state == PeerState::Up {
            self.state = PeerState::Idle;
        }
        self.probe = Default::default();
        let opened = self.opened.take();
        if opened.is_some() {
            self.closing.clone_from(&opened);
        }
        opened.into_iter().chain(self.accepted.take()).collect()
    }
}

impl Inner {
    /// Notes that a connection carries a message.
    pub(super) fn used(&self, connection: &Connection) {
        connection.used.store(self.occupancy.clock.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn keep(&self, nodes: &[NodeId]) {
        let mut peers = self.peers.lock();
        nodes.iter().for_each(|node| peers.entry(*node).or_default().kept = true);
        self.occupancy.kept.store(peers.values().filter(|peer| peer.kept).count(), Ordering::Relaxed);
    }

    fn bound(&self) -> usize {
        match self.occupancy.kept.load(Ordering::Relaxed) {
            0 => self.config.connections.max(1),
            kept => self.config.connections.max(kept + BESIDE_KEPT),
        }
    }

    fn is_beyond(&self, peers: usize) -> bool {
        self.occupancy.connections.load(Ordering::Relaxed) > PER_PEER * peers
    }

    pub(super) fn enter(&self, connection: &Connection) {
        self.occupancy.connections.fetch_add(1, Ordering::Relaxed);
        self.occupancy.clock.fetch_add(1, Ordering::Relaxed);
        self.used(connection);
    }

    /// Removes an ended connection from the count.
    pub(super) fn leave(&self, connection: &Connection) {
        self.forget_link(connection);
        self.occupancy.connections.fetch_sub(1, Ordering::Relaxed);
        if !self.is_beyond(self.bound() + slack(self.bound())) {
            let waiting = std::mem::take(&mut *self.occupancy.waiting.lock());
            waiting.into_iter().for_each(|resolver| resolver.resolve(()));
        }
    }

    /// Waits for capacity for one more peer.
    pub(super) async fn wait_for_capacity(&self) {
        if self.is_beyond(self.bound() + slack(self.bound()) - 1) {
            let (resolver, promise) = promise();
            self.occupancy.waiting.lock().push(resolver);
            self.runtime.timeout(CAPACITY_WAIT, promise).await;
        }
    }

    /// Closes idle peers in a task, as long as there are too many.
    pub(super) fn close_excess(self: &Arc<Self>) {
        if !self.is_beyond(self.bound()) || self.occupancy.is_searching.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = self.clone();
        self.runtime.spawn(async move {
            while !inner.stopped() && inner.close_idle() {
                inner.runtime.sleep(SEARCH_PAUSE).await;
            }
            inner.occupancy.is_searching.store(false, Ordering::SeqCst);
        });
    }

    /// Closes idle peers down to the bound. True if more remain to be closed.
    fn close_idle(self: &Arc<Self>) -> bool {
        let turn = self.occupancy.clock.fetch_add(1, Ordering::Relaxed);
        let (mut beyond, mut idle) = {
            let peers = self.peers.lock();
            let connected = peers.values().filter(|peer| peer.connections().next().is_some()).count();
            // A peer used since the last search may be about to be used again.
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
            if !self.is_expecting(node) && self.close_if_idle(node, since) {
                beyond -= 1;
            }
        }
        beyond > 0
    }

    /// True if a get, an export or a call to or from the peer is pending.
    pub(super) fn is_expecting(&self, node: NodeId) -> bool {
        let expects = || self.receiver.get().is_some_and(|receiver| receiver.is_expecting(node));
        self.grants.any_get(node) || self.exports.any(node) || expects()
    }

    /// Closes the connections of a peer, if they were not used since `since`.
    fn close_if_idle(&self, node: NodeId, since: u64) -> bool {
        let closing = {
            let mut peers = self.peers.lock();
            let idle = peers.get_mut(&node).filter(|peer| peer.idle_since() == Some(since));
            let quiet = idle.filter(|peer| peer.connections().all(|connection| connection.is_quiet()));
            quiet.map(Peer::retire_connections)
        };
        let closing = closing.unwrap_or_default();
        if !closing.is_empty() {
            log::debug!("closes the connections of {node}, which is idle");
        }
        closing.iter().for_each(Connection::send_bye);
        !closing.is_empty()
    }

    /// Replies to the last message of the peer on a connection.
    pub(super) fn answer_bye(self: &Arc<Self>, connection: &Arc<Connection>) {
        let closing = {
            let mut peers = self.peers.lock();
            let current = peers.get_mut(&connection.peer).filter(|peer| peer.has(connection));
            current.map(Peer::retire_connections).unwrap_or_default()
        };
        closing.iter().for_each(Connection::send_bye);
        connection.send_bye();
        self.reopen(connection);
    }

    /// Notes the end of a closing connection, and opens a new one if necessary.
    pub(super) fn reopen(self: &Arc<Self>, connection: &Arc<Connection>) {
        let node = connection.peer;
        let is_expecting = self.is_expecting(node);
        let dial = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            if !peer.closing.as_ref().is_some_and(|closing| Arc::ptr_eq(closing, connection)) {
                return;
            }
            peer.closing = None;
            let is_needed = is_expecting || !peer.waiting.is_empty() || peer.accepted.is_some();
            is_needed && !self.stopped() && peer.needs_dial()
        };
        if dial {
            self.runtime.spawn(self.clone().dial(node, None));
        }
    }
}
