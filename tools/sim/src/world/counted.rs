//! A node's fabric in which a countdown counts or fails each message, put and get.

use crate::countdown::{Countdown, FaultKind, Medium};
use futures_util::future::FutureExt;
use std::fmt::Debug;
use std::sync::Arc;
use tameike_core::wire::call::{ReplyHeader, RequestHeader};
use tameike_core::wire::codec::{decode, decode_first};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_fabric::simulated::SimulatedNetwork;
use tameike_fabric::{Fabric, FabricLayer, GetFuture, GrantId, Lane, SendFuture};
use tameike_io::{Frame, Payload};

const FAULTS: &[FaultKind] = &[FaultKind::Lost, FaultKind::Broken];

pub(super) struct CountedFabric {
    pub inner: Arc<dyn Fabric>,
    pub network: SimulatedNetwork,
    pub countdown: Countdown,
}

/// Returns the kind of a message: its debug output up to the first field.
fn kind(message: &impl Debug) -> String {
    let words = format!("{message:?}");
    let end = words.find([' ', '{', '[', '"', ')']).unwrap_or(words.len());
    words[..end].trim_end_matches(|letter: char| !letter.is_alphabetic()).replace('(', " ")
}

fn request_kind(body: &[u8]) -> String {
    let request = decode_first::<RequestHeader>(body).and_then(|(_, rest)| decode::<Request>(rest));
    request.map_or_else(|_| "?".to_owned(), |request| kind(&request))
}

fn reply_kind(body: &[u8]) -> String {
    let reply = decode_first::<ReplyHeader>(body).and_then(|(_, rest)| decode::<Reply>(rest));
    reply.map_or_else(|_| "?".to_owned(), |reply| kind(&reply))
}

impl CountedFabric {
    /// Registers a message. If a fault hits it, returns the sender's result.
    fn loses(&self, to: NodeId, call: impl FnOnce() -> String) -> Option<Result<()>> {
        match self.countdown.register(Medium::Network(self.local()), FAULTS, call)? {
            FaultKind::Lost => Some(Ok(())),
            _ => Some(Err(self.breaks(to))),
        }
    }

    fn breaks(&self, with: NodeId) -> Fault {
        self.network.disconnect(self.local(), with);
        Fault::new(Errno::ECONNRESET, format!("injected fault: the connection with {with} broke"))
    }
}

impl FabricLayer for CountedFabric {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn send(&self, to: NodeId, lane: Lane, body: Vec<u8>, payload: Option<Payload>) -> SendFuture {
        let call = || match lane {
            Lane::Request => format!("request {}", request_kind(&body)),
            Lane::Reply => format!("reply {}", reply_kind(&body)),
        };
        match self.loses(to, call) {
            Some(result) => async move { result }.boxed(),
            None => self.inner.send(to, lane, body, payload),
        }
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        match self.loses(to, || format!("put with {}", reply_kind(&body))) {
            Some(result) => async move { result }.boxed(),
            None => self.inner.put(to, grant, source, body),
        }
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        let hit =
            self.countdown.register(Medium::Network(self.local()), &[FaultKind::Broken], || "get".to_owned());
        if hit.is_some() {
            let fault = self.breaks(from);
            return async move { (frame, Err(fault)) }.boxed();
        }
        self.inner.get(from, grant, frame, length)
    }
}
