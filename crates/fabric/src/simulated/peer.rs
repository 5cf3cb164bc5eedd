//! What a node knows of the life of its peers.

use super::delivery::Parcel;
use super::{RETRY_PAUSE, SimulatedNetwork, Station};
use crate::{PeerEvent, waited};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, NodeId, Result};

/// How long senders wait for a peer that is known to be unreachable.
const UNREACHABLE_WAIT: Duration = Duration::from_millis(500);
/// Longest pause between two attempts to reach a peer again.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Probes further apart than this belong to different occasions.
const PROBE_GAP: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    #[default]
    New,
    Up,
    Unreachable,
    Dead,
}

/// A peer, as a node knows it.
#[derive(Default)]
pub(super) struct Peer {
    life: Life,
    /// Which start of it: the last that was heard of.
    incarnation: u64,
    /// Counts the connections with it; what was sent on an earlier one is lost.
    connection: u64,
    heard: u64,
    heard_at_probe: u64,
    silent_since: Duration,
    probed: Duration,
}

impl Station {
    fn with<T>(&self, peer: NodeId, look: impl FnOnce(&mut Peer) -> T) -> T {
        look(self.peers.lock().entry(peer).or_default())
    }

    /// The number of the connection with a peer.
    pub(super) fn connection(&self, peer: NodeId) -> u64 {
        self.with(peer, |peer| peer.connection)
    }

    fn tell(&self, peer: NodeId, event: PeerEvent) {
        log::trace!("{}: {peer} is {event:?}", self.node());
        if let Some(receiver) = self.receiver.get().filter(|_| !self.is_closed()) {
            receiver.peer(peer, event);
        }
    }

    /// Something came from a life of a peer; whether it is the latest that is known.
    pub(super) fn hear(&self, peer: NodeId, life: u64) -> bool {
        let (events, is_latest) = self.with(peer, |peer| {
            if life < peer.incarnation || (life == peer.incarnation && peer.life == Life::Dead) {
                return (Vec::new(), false);
            }
            let mut events = Vec::new();
            if life > peer.incarnation {
                if peer.life == Life::Up {
                    events.push(PeerEvent::Dead);
                    peer.connection += 1;
                }
                peer.life = Life::New;
                peer.incarnation = life;
            }
            if peer.life != Life::Up {
                peer.life = Life::Up;
                events.push(PeerEvent::Up);
            }
            peer.heard += 1;
            (events, true)
        });
        if events.contains(&PeerEvent::Dead) {
            self.fail_gets(peer, Errno::ECONNRESET);
        }
        events.into_iter().for_each(|event| self.tell(peer, event));
        is_latest
    }

    fn fail_gets(&self, peer: NodeId, errno: Errno) {
        self.grants.fail_gets(Some(peer), &Fault::new(errno, format!("the connection with {peer} is lost")));
    }

    /// A peer can be had no more; what is under way with it is lost.
    fn lose(&self, peer: NodeId, life: Life) {
        let news = self.with(peer, |peer| {
            peer.connection += 1;
            std::mem::replace(&mut peer.life, life) != life
        });
        self.fail_gets(peer, Errno::ETIMEDOUT);
        if news {
            self.tell(peer, if life == Life::Dead { PeerEvent::Dead } else { PeerEvent::Unreachable });
        }
    }
}

impl SimulatedNetwork {
    fn is_whole(&self, one: NodeId, other: NodeId) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }

    /// Connects with a peer if the links are whole: `None` when they are not.
    fn connect(&self, station: &Station, peer: NodeId) -> Option<Result<()>> {
        if !self.is_whole(station.node(), peer) {
            return None;
        }
        Some(match self.station(peer) {
            Some(found) => {
                station.hear(peer, found.life);
                Ok(())
            }
            None => {
                station.lose(peer, Life::Dead);
                Err(Fault::new(Errno::EHOSTDOWN, format!("{peer} is dead: nobody listens")))
            }
        })
    }

    /// Waits for a connection with a peer.
    pub(super) async fn reach(&self, station: &Arc<Station>, peer: NodeId) -> Result<()> {
        let life = station.with(peer, |peer| peer.life);
        if station.is_closed() {
            return Err(Fault::new(Errno::EHOSTDOWN, "this agent's network is closed"));
        }
        if life == Life::Up {
            return Ok(());
        }
        let known = life == Life::Unreachable;
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

    /// A peer is unreachable. Its end of the connection breaks, too: what it has sent and not delivered is lost, and frees its
    /// frames, and it connects anew before it sends more.
    fn give_up(&self, station: &Arc<Station>, peer: NodeId) {
        station.lose(peer, Life::Unreachable);
        if let Some(other) = self.station(peer) {
            other.with(station.node(), |peer| {
                peer.connection += 1;
                if peer.life == Life::Up {
                    peer.life = Life::New;
                }
            });
            other.fail_gets(station.node(), Errno::ECONNRESET);
        }
    }

    /// Tries to reach a peer again until it can be had, or is dead.
    fn redial(&self, station: &Arc<Station>, peer: NodeId) {
        let (network, station) = (self.clone(), station.clone());
        station.clone().config.runtime.spawn(async move {
            let mut pause = RETRY_PAUSE;
            while station.with(peer, |peer| peer.life) == Life::Unreachable {
                station.config.runtime.sleep(pause).await;
                if station.is_closed() || network.connect(&station, peer).is_some() {
                    return;
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// The connection between two nodes breaks, and is opened again.
    pub(super) fn break_connection(&self, one: &Arc<Station>, other: NodeId) {
        log::trace!("the connection of {} with {other} breaks", one.node());
        let both = [Some((one.clone(), other)), self.station(other).map(|other| (other, one.node()))];
        for (station, peer) in both.into_iter().flatten() {
            station.with(peer, |peer| peer.connection += 1);
            let (network, delay) = (self.clone(), self.delay());
            station.clone().config.runtime.spawn(async move {
                station.config.runtime.sleep(delay).await;
                station.fail_gets(peer, Errno::ECONNRESET);
                let running = network.station(peer).map(|peer| peer.life);
                if running.is_some_and(|life| station.hear(peer, life)) {
                    station.tell(peer, PeerEvent::Up);
                }
            });
        }
    }

    /// A station learns of the death of a peer that it was connected with, when it can.
    pub(super) fn announce_death(&self, station: &Arc<Station>, dead: NodeId, life: u64) {
        let known = move |peer: &mut Peer| peer.life == Life::Up && peer.incarnation == life;
        if !station.with(dead, known) {
            return;
        }
        let (network, station) = (self.clone(), station.clone());
        // What was on its way when it died comes before.
        let delay = self.weather().delay_max + self.delay();
        station.clone().config.runtime.spawn(async move {
            station.config.runtime.sleep(delay).await;
            while !network.is_whole(station.node(), dead) {
                station.config.runtime.sleep(RETRY_PAUSE).await;
            }
            if station.with(dead, known) {
                station.lose(dead, Life::Dead);
            }
        });
    }

    /// Asks a peer for a sign of life; gives it up when it was silent for too long.
    pub(super) fn probe(&self, station: &Arc<Station>, peer: NodeId) {
        let now = self.now();
        let silence = station.with(peer, |peer| {
            if peer.life != Life::Up {
                return None;
            }
            if now.saturating_sub(peer.probed) > PROBE_GAP {
                peer.silent_since = now.saturating_sub(waited(station.config.peer_limit));
            } else if peer.heard != peer.heard_at_probe {
                // After the look before this one, nobody knows when.
                peer.silent_since = peer.probed;
            }
            (peer.heard_at_probe, peer.probed) = (peer.heard, now);
            Some(now.saturating_sub(peer.silent_since))
        });
        let Some(silence) = silence else { return };
        if silence >= station.config.peer_limit {
            self.give_up(station, peer);
            self.redial(station, peer);
        } else {
            // What cannot be asked is silent.
            let _ = self.transmit(station, peer, Parcel::Ping);
        }
    }
}
