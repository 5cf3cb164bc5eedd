//! Transmission and delivery of simulated messages.

use super::{RETRY_PAUSE, SimulatedNetwork, Station};
use crate::{Incoming, Lane};
use async_lock::Semaphore;
use std::sync::Arc;
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::slab::{BlockSums, Frame, Payload};

/// A payload in flight, and the digest of its checksums when it was sent.
#[derive(Clone)]
pub(super) struct Bytes {
    payload: Payload,
    digest: u32,
}

impl Bytes {
    pub(super) fn new(payload: Payload) -> Self {
        Self { digest: payload.sums().digest(), payload }
    }

    /// Copies the payload and its checksums into a frame. False if it differs from what was sent.
    fn arrive(&self, frame: &mut Frame) -> bool {
        let length = self.payload.len();
        frame[..length].copy_from_slice(&self.payload);
        let sums = BlockSums::of(&frame[..length]);
        let is_whole = sums.digest() == self.digest;
        frame.keep_sums(length as u32, sums);
        is_whole
    }
}

/// A message in flight.
#[derive(Clone)]
pub(super) enum Parcel {
    Message { lane: Lane, body: Vec<u8>, payload: Option<Bytes> },
    Put { grant: u64, source: Bytes, body: Vec<u8> },
    Get { number: u64, grant: u64, length: u32 },
    GetReply { number: u64, bytes: Option<Bytes> },
    Ping,
    Pong,
}

impl Parcel {
    /// Puts, gets and their data travel on the reply lane.
    fn lane(&self) -> Lane {
        match self {
            Self::Message { lane, .. } => *lane,
            Self::Put { .. } | Self::Get { .. } | Self::GetReply { .. } | Self::Ping | Self::Pong => {
                Lane::Reply
            }
        }
    }

    /// True if its loss is not covered by a resend.
    fn is_missed(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::GetReply { .. })
    }

    fn describe(&self) -> String {
        match self {
            Self::Message { lane, body, payload } => {
                format!(
                    "{lane:?} of {} + {} bytes",
                    body.len(),
                    payload.as_ref().map_or(0, |bytes| bytes.payload.len())
                )
            }
            Self::Put { source, .. } => format!("put of {} bytes", source.payload.len()),
            Self::Get { length, .. } => format!("get of {length} bytes"),
            Self::GetReply { .. } => "answer to a get".to_owned(),
            Self::Ping => "ping".to_owned(),
            Self::Pong => "pong".to_owned(),
        }
    }
}

impl SimulatedNetwork {
    /// Sends a parcel on the current connection, which may lose it.
    pub(super) fn transmit(&self, station: &Arc<Station>, to: NodeId, parcel: Parcel) -> Result<()> {
        let faults = self.faults();
        if self.happens(faults.broken) || (parcel.is_missed() && self.happens(faults.lost)) {
            self.break_connection(station, to);
            return Err(Fault::new(Errno::ECONNRESET, format!("the connection with {to} broke")));
        }
        if self.happens(faults.lost) && !parcel.is_missed() {
            log::trace!("{} -> {to}: lost: {}", station.node(), parcel.describe());
            return Ok(());
        }
        let Some(receiver) = self.station(to) else { return Ok(()) };
        if self.happens(faults.duplicated) {
            log::trace!("{} -> {to}: duplicated: {}", station.node(), parcel.describe());
            self.deliver_later(station, &receiver, parcel.clone());
        }
        self.deliver_later(station, &receiver, parcel);
        Ok(())
    }

    fn deliver_later(&self, sender: &Arc<Station>, receiver: &Arc<Station>, parcel: Parcel) {
        let (network, sender, receiver) = (self.clone(), sender.clone(), receiver.clone());
        let (from, to) = (sender.node(), receiver.node());
        let (connection, delay) = (sender.connection(to), self.delay());
        receiver.clone().config.runtime.spawn(async move {
            receiver.config.runtime.sleep(delay).await;
            while network.is_link_down(from, to) && sender.connection(to) == connection {
                receiver.config.runtime.sleep(RETRY_PAUSE).await;
            }
            if sender.connection(to) != connection || receiver.is_closed() {
                return;
            }
            // What a killed node has sent may have left its machine, or not.
            if sender.is_closed() && network.0.simulation.draw(2) == 0 {
                return;
            }
            if receiver.note_alive(from, sender.incarnation) {
                log::trace!("{from} -> {to}: {}", parcel.describe());
                let reader = receiver.reader(from, connection, parcel.lane());
                network.deliver(&sender, &receiver, parcel, reader).await;
            }
        });
    }

    async fn deliver(
        &self,
        sender: &Arc<Station>,
        receiver: &Arc<Station>,
        parcel: Parcel,
        reader: Arc<Semaphore>,
    ) {
        let from = sender.node();
        let turn = reader.acquire().await;
        match parcel {
            Parcel::Message { lane, body, payload } => {
                let payload = match payload {
                    Some(bytes) => {
                        let mut frame = receiver.pool(lane).take().await;
                        if !bytes.arrive(&mut frame) {
                            return self.refuse_damaged(receiver, from);
                        }
                        Some(Payload::new(Arc::new(frame), 0..bytes.payload.len() as u32))
                    }
                    None => None,
                };
                drop(turn);
                receiver.take(Incoming { from, lane, body, payload });
            }
            Parcel::Put { grant, source, body } => {
                let Some(mut frame) = receiver.grants.begin_fill(grant) else { return };
                let is_whole = source.arrive(&mut frame);
                drop(turn);
                receiver.config.runtime.sleep(self.delay() / 4).await;
                let is_active = receiver.grants.end_fill(grant, frame);
                if !is_whole {
                    return self.refuse_damaged(receiver, from);
                }
                if is_active {
                    receiver.take(Incoming { from, lane: Lane::Reply, body, payload: None });
                }
            }
            Parcel::Get { number, grant, length } => {
                let bytes = receiver.grants.readable(grant, length).map(Bytes::new);
                self.answer(receiver, from, Parcel::GetReply { number, bytes });
            }
            Parcel::GetReply { number, bytes } => {
                let Some(mut get) = receiver.grants.take_get(number, from) else { return };
                let result = match bytes {
                    Some(bytes) if bytes.arrive(&mut get.frame) => Ok(()),
                    Some(_) => {
                        self.refuse_damaged(receiver, from);
                        Err(Fault::new(Errno::ECONNRESET, format!("a payload of {from} is damaged")))
                    }
                    None => {
                        Err(Fault::new(Errno::ESTALE, format!("{from} does not grant {} bytes", get.length)))
                    }
                };
                get.resolver.resolve((get.frame, result));
            }
            Parcel::Ping => self.answer(receiver, from, Parcel::Pong),
            Parcel::Pong => {}
        }
    }

    /// Breaks the connection as the real fabrics do; the caller resends requests in flight.
    fn refuse_damaged(&self, receiver: &Arc<Station>, from: NodeId) {
        log::info!("{from} -> {}: a payload is damaged", receiver.node());
        self.break_connection(receiver, from);
    }

    fn answer(&self, station: &Arc<Station>, to: NodeId, parcel: Parcel) {
        // If this fails, the broken connection is reported to the waiting peer.
        let _ = self.transmit(station, to, parcel);
    }
}

impl Station {
    fn take(&self, incoming: Incoming) {
        match self.receiver.get().filter(|_| !self.is_closed()) {
            Some(receiver) => receiver.message(incoming),
            None => log::trace!("{} is not ready for a message of {}", self.node(), incoming.from),
        }
    }
}
