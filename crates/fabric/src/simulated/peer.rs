//! The state of peers on the simulated network.

use super::delivery::Parcel;
use super::{RETRY_PAUSE, SimulatedNetwork, Station};
use crate::times::PeerTimes;
use crate::{PeerEvent, RECONNECT_PAUSE_MAX, UNREACHABLE_WAIT};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, NodeId, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PeerState {
    #[default]
    New,
    Up,
    Unreachable,
    Failed,
}

#[derive(Default)]
pub(super) struct Peer {
    state: PeerState,
    /// The latest known incarnation.
    incarnation: u64,
    /// The number of the current connection; messages of earlier ones are lost.
    connection: u64,
    heard: u64,
    heard_at_probe: u64,
    silent_since: Duration,
    probed: Duration,
}

impl Station {
    fn with<T>(&self, peer: NodeId, act: impl FnOnce(&mut Peer) -> T) -> T {
        act(self.peers.lock().entry(peer).or_default())
    }

    /// The number of the current connection with a peer.
    pub(super) fn connection(&self, peer: NodeId) -> u64 {
        self.with(peer, |peer| peer.connection)
    }

    fn notify(&self, peer: NodeId, event: PeerEvent) {
        log::trace!("{}: {peer} is {event:?}", self.node());
        if let Some(receiver) = self.receiver.get().filter(|_| !self.is_closed()) {
            receiver.peer(peer, event);
        }
    }

    /// Notes a sign of life of an incarnation of a peer. True if it is the latest known.
    pub(super) fn note_alive(&self, peer: NodeId, incarnation: u64) -> bool {
        let (events, is_latest) = self.with(peer, |peer| {
            if incarnation < peer.incarnation
                || (incarnation == peer.incarnation && peer.state == PeerState::Failed)
            {
                return (Vec::new(), false);
            }
            let mut events = Vec::new();
            if incarnation > peer.incarnation {
                if peer.state == PeerState::Up {
                    events.push(PeerEvent::Failed);
                    peer.connection += 1;
                }
                peer.state = PeerState::New;
                peer.incarnation = incarnation;
            }
            if peer.state != PeerState::Up {
                peer.state = PeerState::Up;
                events.push(PeerEvent::Up);
            }
            peer.heard += 1;
            (events, true)
        });
        if events.contains(&PeerEvent::Failed) {
            self.fail_gets(peer, Errno::ECONNRESET);
        }
        events.into_iter().for_each(|event| self.notify(peer, event));
        is_latest
    }

    fn fail_gets(&self, peer: NodeId, errno: Errno) {
        self.grants.fail_gets(Some(peer), &Fault::new(errno, format!("the connection with {peer} is lost")));
    }

    /// Marks a peer as failed or unreachable. Messages in flight are lost.
    fn lose(&self, peer: NodeId, state: PeerState) {
        let news = self.with(peer, |peer| {
            peer.connection += 1;
            std::mem::replace(&mut peer.state, state) != state
        });
        self.fail_gets(peer, Errno::ETIMEDOUT);
        if news {
            self.notify(
                peer,
                if state == PeerState::Failed { PeerEvent::Failed } else { PeerEvent::Unreachable },
            );
        }
    }
}

impl SimulatedNetwork {
    fn is_whole(&self, one: NodeId, other: NodeId) -> bool {
        !self.is_link_down(one, other) && !self.is_link_down(other, one)
    }

    /// Connects with a peer; `None` if a link has failed.
    fn connect(&self, station: &Station, peer: NodeId) -> Option<Result<()>> {
        if !self.is_whole(station.node(), peer) {
            return None;
        }
        Some(match self.station(peer) {
            Some(found) => {
                station.note_alive(peer, found.incarnation);
                Ok(())
            }
            None => {
                station.lose(peer, PeerState::Failed);
                Err(Fault::new(Errno::EHOSTDOWN, format!("{peer} has failed: no process listens")))
            }
        })
    }

    /// Waits for a connection with a peer.
    pub(super) async fn reach(&self, station: &Arc<Station>, peer: NodeId) -> Result<()> {
        let state = station.with(peer, |peer| peer.state);
        if station.is_closed() {
            return Err(Fault::new(Errno::EHOSTDOWN, "the network of this agent is closed"));
        }
        if state == PeerState::Up {
            return Ok(());
        }
        let known = state == PeerState::Unreachable;
        let limit = if known { UNREACHABLE_WAIT } else { station.config.peer_limit };
        let deadline = self.now() + limit;
        loop {
            if let Some(connected) = self.connect(station, peer) {
                return connected;
            }
            if self.now() >= deadline {
                break;
            }
            station.config.runtime.sleep(RETRY_PAUSE).await;
        }
        self.give_up(station, peer);
        if !known {
            self.redial(station, peer);
        }
        let why = format!("{peer} is unreachable: it was silent for the peer time limit");
        Err(Fault::new(Errno::EHOSTDOWN, why))
    }

    /// Marks a peer as unreachable. The peer's end of the connection breaks too: undelivered messages are lost and release their
    /// frames, and the peer reconnects before it sends more.
    fn give_up(&self, station: &Arc<Station>, peer: NodeId) {
        station.lose(peer, PeerState::Unreachable);
        if let Some(other) = self.station(peer) {
            other.with(station.node(), |peer| {
                peer.connection += 1;
                if peer.state == PeerState::Up {
                    peer.state = PeerState::New;
                }
            });
            other.fail_gets(station.node(), Errno::ECONNRESET);
        }
    }

    /// Tries to reconnect until the peer is reachable or has failed.
    fn redial(&self, station: &Arc<Station>, peer: NodeId) {
        let (network, station) = (self.clone(), station.clone());
        station.clone().config.runtime.spawn(async move {
            let mut pause = RETRY_PAUSE;
            while station.with(peer, |peer| peer.state) == PeerState::Unreachable {
                station.config.runtime.sleep(pause).await;
                if station.is_closed() || network.connect(&station, peer).is_some() {
                    return;
                }
                pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
            }
        });
    }

    /// Breaks the connection between two nodes, which then reconnect.
    pub(super) fn break_connection(&self, one: &Arc<Station>, other: NodeId) {
        log::trace!("the connection of {} with {other} breaks", one.node());
        let both = [Some((one.clone(), other)), self.station(other).map(|other| (other, one.node()))];
        for (station, peer) in both.into_iter().flatten() {
            station.with(peer, |peer| peer.connection += 1);
            let (network, delay) = (self.clone(), self.delay());
            station.clone().config.runtime.spawn(async move {
                station.config.runtime.sleep(delay).await;
                station.fail_gets(peer, Errno::ECONNRESET);
                let running = network.station(peer).map(|peer| peer.incarnation);
                if running.is_some_and(|incarnation| station.note_alive(peer, incarnation)) {
                    station.notify(peer, PeerEvent::Up);
                }
            });
        }
    }

    /// Notifies a connected node of a peer's failure, once it can notice it.
    pub(super) fn announce_failure(&self, station: &Arc<Station>, peer: NodeId, incarnation: u64) {
        let known = move |peer: &mut Peer| peer.state == PeerState::Up && peer.incarnation == incarnation;
        if !station.with(peer, known) {
            return;
        }
        let (network, station) = (self.clone(), station.clone());
        // Messages in flight at the failure arrive first.
        let delay = self.faults().delay_max + self.delay();
        station.clone().config.runtime.spawn(async move {
            station.config.runtime.sleep(delay).await;
            while !network.is_whole(station.node(), peer) {
                station.config.runtime.sleep(RETRY_PAUSE).await;
            }
            if station.with(peer, known) {
                station.lose(peer, PeerState::Failed);
            }
        });
    }

    /// Pings a peer, or marks it as unreachable if it was silent for the peer time limit.
    pub(super) fn probe(&self, station: &Arc<Station>, peer: NodeId) {
        let now = self.now();
        let PeerTimes { limit, probe_after, probe_gap, .. } = PeerTimes::new(station.config.peer_limit);
        let silence = station.with(peer, |peer| {
            if peer.state != PeerState::Up {
                return None;
            }
            if now.saturating_sub(peer.probed) > probe_gap {
                peer.silent_since = now.saturating_sub(probe_after);
            } else if peer.heard != peer.heard_at_probe {
                // It arrived at an unknown time after the previous probe.
                peer.silent_since = peer.probed;
            }
            (peer.heard_at_probe, peer.probed) = (peer.heard, now);
            Some(now.saturating_sub(peer.silent_since))
        });
        let Some(silence) = silence else { return };
        if silence >= limit {
            self.give_up(station, peer);
            self.redial(station, peer);
        } else {
            // An unreachable peer counts as silent.
            let _ = self.transmit(station, peer, Parcel::Ping);
        }
    }
}
