//! Measures the network between this agent and another one, as the OSU micro-benchmarks do.
//!
//! [`Meter::measure`] measures, and calls [`Meter::serve`] of the other agent. It uses the agents' normal operations through the
//! [`Fabric`] trait: requests with payload, puts into the caller's frames, gets by grant. The receiver verifies some words of each
//! message and, outside the timed part, every byte of one message per repetition. No two repetitions send the same data.
//!
//! A node runs one measurement at a time, and refuses a second one. It uses at most half of the frames for replies to reads.

mod bytes;
#[cfg(test)]
mod tests;
mod timed;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::wire::admin::{AdminReply, AdminRequest};
use tameike_core::wire::measure::{Exchange, ExchangeReply, Order, Outcome, WINDOW_MAX};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_fabric::{Answer, Carried, Fabric, GrantId, Rpc};
use tameike_io::{Payload, Pool, Runtime};

/// Longest time of one measurement with all repetitions; slower ones fail.
const MEASUREMENT_LIMIT: Duration = Duration::from_secs(300);

/// Data that is ready for another node.
struct Source {
    to: NodeId,
    session: u64,
    bytes: Payload,
    grant: GrantId,
}

/// Measures the network, and serves measurements of other nodes.
pub struct Meter {
    runtime: Runtime,
    rpc: Arc<dyn Rpc>,
    fabric: Arc<dyn Fabric>,
    pool: Pool,
    source: Mutex<Option<Source>>,
    is_measuring: AtomicBool,
}

/// Guard of the measurement in progress.
struct Measuring<'a>(&'a AtomicBool);

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn stale_session() -> Fault {
    Fault::new(Errno::ESTALE, "the measurement has ended on this node, or another one has begun")
}

impl Meter {
    /// Creates a meter that takes frames from `pool`.
    pub fn new(runtime: Runtime, rpc: Arc<dyn Rpc>, fabric: Arc<dyn Fabric>, pool: Pool) -> Arc<Self> {
        let (source, is_measuring) = Default::default();
        Arc::new(Self { runtime, rpc, fabric, pool, source, is_measuring })
    }

    /// Measures between this node and another one.
    ///
    /// # Errors
    /// `EINVAL` for an order beyond its limits, `EBUSY` while either node runs another measurement, `EBADMSG` if received data differs
    /// from sent data, and errors of the connection.
    pub async fn measure(&self, order: Order) -> Result<Outcome> {
        order.check().map_err(|wrong| Fault::new(Errno::EINVAL, wrong))?;
        if order.with == self.rpc.local() {
            return Err(Fault::new(Errno::EINVAL, "measuring between a node and itself: name two nodes"));
        }
        if self.is_measuring.swap(true, Ordering::AcqRel) {
            return Err(Fault::new(Errno::EBUSY, "this node already measures the network: try again later"));
        }
        let _only = Measuring(&self.is_measuring);
        let made = self.runtime.timeout(MEASUREMENT_LIMIT, timed::measure(self, &order)).await;
        // State that stays on the other node delays only measurements of other nodes.
        let ended = self.ask(order.with, Exchange::End, None, None).await;
        let late = || {
            let limit = MEASUREMENT_LIMIT.as_secs();
            Fault::new(Errno::ETIMEDOUT, format!("measuring with {} took more than {limit} s", order.with))
        };
        let outcome = made.ok_or_else(late)??;
        ended.map(|_| outcome)
    }

    pub(crate) fn serve(
        self: &Arc<Self>,
        from: NodeId,
        exchange: Exchange,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let meter = self.clone();
        async move {
            match meter.reply(from, exchange, payload).await {
                Ok((reply, carried)) => (Reply::Admin(AdminReply::Exchange(reply)), carried),
                Err(fault) => (Reply::Fault(fault), Carried::Nothing),
            }
        }
        .boxed()
    }

    pub(crate) fn peer_failed(&self, peer: NodeId) {
        self.free_source(peer);
    }

    async fn reply(
        &self,
        from: NodeId,
        exchange: Exchange,
        payload: Option<Payload>,
    ) -> Result<(ExchangeReply, Carried)> {
        let missing = || Fault::new(Errno::EBADMSG, "a message of a measurement has no payload");
        let mut carried = Carried::Nothing;
        match exchange {
            Exchange::Begin { session, size } => {
                let grant = self.prepare_source(from, session, size).await?;
                return Ok((ExchangeReply::Begun { grant: grant.0 }, Carried::Nothing));
            }
            Exchange::Take { session, size, whole } => {
                bytes::check(&payload.ok_or_else(missing)?, size as usize, session, whole)?;
            }
            Exchange::Echo { session, size, whole } => {
                let payload = payload.ok_or_else(missing)?;
                bytes::check(&payload, size as usize, session, whole)?;
                carried = Carried::Payload(payload);
            }
            Exchange::Give { session } => carried = Carried::Payload(self.ready_for(from, session)?),
            Exchange::Send { session, windows, window } => {
                let source = self.ready_for(from, session)?;
                let sending = self.send_windows(from, session, &source, windows, window.min(WINDOW_MAX));
                self.runtime.timeout(MEASUREMENT_LIMIT, sending).await.ok_or(Errno::ETIMEDOUT)??;
            }
            Exchange::End => self.free_source(from),
        }
        Ok((ExchangeReply::Done, carried))
    }

    /// Prepares data for a node, and grants reads of it.
    async fn prepare_source(&self, to: NodeId, session: u64, size: u32) -> Result<GrantId> {
        if size == 0 || size as usize > tameike_core::limits::UNIT_SIZE {
            return Err(Fault::new(Errno::EINVAL, format!("messages of {size} bytes cannot be measured")));
        }
        self.free_source(to);
        let bytes = bytes::made(self.pool.take().await, session, size);
        let mut source = self.source.lock();
        if let Some(Source { to, .. }) = &*source {
            return Err(Fault::new(
                Errno::EBUSY,
                format!("{to} already measures with this node: try again later"),
            ));
        }
        let grant = self.fabric.grant_read(bytes.clone());
        *source = Some(Source { to, session, bytes, grant });
        Ok(grant)
    }

    fn ready_for(&self, node: NodeId, session: u64) -> Result<Payload> {
        let source = self.source.lock();
        let source = source.as_ref().filter(|source| (source.to, source.session) == (node, session));
        source.map(|source| source.bytes.clone()).ok_or_else(stale_session)
    }

    fn free_source(&self, node: NodeId) {
        if let Some(source) = self.source.lock().take_if(|source| source.to == node) {
            self.fabric.revoke(source.grant);
        }
    }

    /// Sends windows of messages, each after the replies to the previous one.
    async fn send_windows(
        &self,
        to: NodeId,
        session: u64,
        source: &Payload,
        windows: u64,
        window: u32,
    ) -> Result<()> {
        let take = Exchange::Take { session, size: source.len() as u32, whole: false };
        for _ in 0..windows {
            let sent = (0..window).map(|_| self.ask(to, take, Some(source.clone()), None));
            try_join_all(sent).await?;
        }
        Ok(())
    }

    /// Calls the other node, and returns its reply with the payload.
    async fn ask(
        &self,
        node: NodeId,
        exchange: Exchange,
        payload: Option<Payload>,
        into: Option<tameike_io::Frame>,
    ) -> Result<(ExchangeReply, Option<Payload>)> {
        let request = Request::Admin(AdminRequest::Exchange(exchange));
        match self.rpc.call(node.into(), request, payload, into).await? {
            Answer { reply: Reply::Admin(AdminReply::Exchange(reply)), payload } => Ok((reply, payload)),
            Answer { reply, .. } => {
                Err(Fault::new(Errno::EPROTO, format!("{node} sent an unexpected reply: {reply:?}")))
            }
        }
    }
}
