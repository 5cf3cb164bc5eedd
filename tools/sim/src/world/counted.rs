//! A node's fabric in which a countdown counts or fails each message, put and get, and a meter counts their bytes.

use crate::countdown::{Countdown, FaultKind, Medium};
use futures_util::future::FutureExt;
use parking_lot::Mutex;
use std::fmt::Debug;
use std::sync::Arc;
use tameike_core::wire::call::{ReplyHeader, RequestHeader};
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::codec::{decode, decode_first};
use tameike_core::wire::region::RegionRequest;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_fabric::simulated::SimulatedNetwork;
use tameike_fabric::{Fabric, FabricLayer, GetFuture, GrantId, Lane, SendFuture};
use tameike_io::{Frame, Payload};

/// Messages of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent and received, without answers to gets.
    pub messages: u64,
    /// Bytes of messages and payloads sent and received.
    pub bytes: u64,
    /// Arrivals at barriers received.
    pub arrivals: u64,
}

impl Traffic {
    /// The traffic since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            bytes: self.bytes - before.bytes,
            arrivals: self.arrivals - before.arrivals,
        }
    }
}

/// Counts the traffic of all nodes.
#[derive(Clone, Default)]
pub(super) struct Meter(Arc<Mutex<Vec<Traffic>>>);

impl Meter {
    /// Starts with no traffic of this many nodes.
    pub fn new(nodes: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Traffic::default(); nodes])))
    }

    /// Returns the traffic of each node.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.0.lock().clone()
    }

    fn count(&self, from: NodeId, to: NodeId, size: usize, is_arrival: bool) {
        let mut all = self.0.lock();
        for node in [from, to] {
            let traffic = &mut all[node.0 as usize];
            traffic.messages += 1;
            traffic.bytes += size as u64;
        }
        all[to.0 as usize].arrivals += u64::from(is_arrival);
    }
}

fn is_arrival(lane: Lane, body: &[u8]) -> bool {
    let request = || decode_first::<RequestHeader>(body).and_then(|(_, rest)| decode::<Request>(rest));
    let is_meant = |request: Request| {
        matches!(
            request,
            Request::Client(ClientRequest::Arrive(_)) | Request::Region(RegionRequest::Arrive(_))
        )
    };
    lane == Lane::Request && request().is_ok_and(is_meant)
}

const FAULTS: &[FaultKind] = &[FaultKind::Lost, FaultKind::Broken];
/// Faults of a node whose homes have replicas.
const FAULTS_SURVIVED: &[FaultKind] = &[FaultKind::Lost, FaultKind::Broken, FaultKind::Died, FaultKind::Hung];

pub(super) struct CountedFabric {
    pub inner: Arc<dyn Fabric>,
    pub network: SimulatedNetwork,
    pub countdown: Countdown,
    /// Counts traffic, if anyone looks at it.
    pub meter: Option<Meter>,
    /// Makes the agent fail or hang, if other nodes take its homes over.
    pub fail: Option<Box<dyn Fn(FaultKind) + Send + Sync>>,
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
        let faults = if self.fail.is_some() { FAULTS_SURVIVED } else { FAULTS };
        match self.countdown.register(Medium::Network(self.local()), faults, call)? {
            FaultKind::Lost => Some(Ok(())),
            fault @ (FaultKind::Died | FaultKind::Hung) => {
                self.fail.as_ref().into_iter().for_each(|fail| fail(fault));
                // A message of an agent that hangs waits in its memory: it leaves later.
                (fault == FaultKind::Died).then_some(Ok(()))
            }
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
        if let Some(meter) = &self.meter {
            let size = body.len() + payload.as_ref().map_or(0, |payload| payload.len());
            meter.count(self.local(), to, size, is_arrival(lane, &body));
        }
        match self.loses(to, call) {
            Some(result) => async move { result }.boxed(),
            None => self.inner.send(to, lane, body, payload),
        }
    }

    fn put(&self, to: NodeId, grant: GrantId, source: Payload, body: Vec<u8>) -> SendFuture {
        if let Some(meter) = &self.meter {
            meter.count(self.local(), to, body.len() + source.len(), false);
        }
        match self.loses(to, || format!("put with {}", reply_kind(&body))) {
            Some(result) => async move { result }.boxed(),
            None => self.inner.put(to, grant, source, body),
        }
    }

    fn get(&self, from: NodeId, grant: GrantId, frame: Frame, length: u32) -> GetFuture {
        if let Some(meter) = &self.meter {
            meter.count(from, self.local(), length as usize, false);
        }
        let hit =
            self.countdown.register(Medium::Network(self.local()), &[FaultKind::Broken], || "get".to_owned());
        if hit.is_some() {
            let fault = self.breaks(from);
            return async move { (frame, Err(fault)) }.boxed();
        }
        self.inner.get(from, grant, frame, length)
    }
}
