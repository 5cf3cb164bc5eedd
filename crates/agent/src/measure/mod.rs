//! Measures the network between this agent and another one, as the OSU micro-benchmarks do (VO-5).
//!
//! Both ends are here: [`Meter::measure`] times, and has the other agent answer by [`Meter::serve`]. What is timed is what agents
//! do all day: requests with bytes beside them, puts into frames that were lent, gets by grant. It knows no fabric but by the
//! trait. Bytes are compared where they arrive: some words of each message, and outside of what is timed every byte of one message
//! of each repetition, whose bytes no other repetition has.
//!
//! One measurement at a time: a second one is refused. Frames are those for answers to reads, of which it takes half at most.

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

/// Longest time of one measurement, all repetitions together: a network that is slower than it is told so.
const MEASUREMENT_LIMIT: Duration = Duration::from_secs(300);

/// Bytes that are ready for another node.
struct Lent {
    to: NodeId,
    session: u64,
    bytes: Payload,
    grant: GrantId,
}

/// Measures, and helps others measure.
pub struct Meter {
    runtime: Runtime,
    rpc: Arc<dyn Rpc>,
    fabric: Arc<dyn Fabric>,
    pool: Pool,
    lent: Mutex<Option<Lent>>,
    is_measuring: AtomicBool,
}

/// The one measurement of an agent.
struct Measuring<'a>(&'a AtomicBool);

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn unknown() -> Fault {
    Fault::new(Errno::ESTALE, "the measurement has ended on this node, or another one has begun")
}

impl Meter {
    /// A meter with these ways to other agents; its frames come from `pool`.
    pub fn new(runtime: Runtime, rpc: Arc<dyn Rpc>, fabric: Arc<dyn Fabric>, pool: Pool) -> Arc<Self> {
        let (lent, is_measuring) = Default::default();
        Arc::new(Self { runtime, rpc, fabric, pool, lent, is_measuring })
    }

    /// Measures.
    ///
    /// # Errors
    /// `EINVAL` for an order beyond its limits, `EBUSY` while either node measures something else, `EBADMSG` when other bytes
    /// arrived than were sent, and why the other node is not reached.
    pub async fn measure(&self, order: Order) -> Result<Outcome> {
        order.check().map_err(|wrong| Fault::new(Errno::EINVAL, wrong))?;
        if order.with == self.rpc.local() {
            return Err(Fault::new(Errno::EINVAL, "the network between a node and itself is not measured"));
        }
        if self.is_measuring.swap(true, Ordering::AcqRel) {
            return Err(Fault::new(Errno::EBUSY, "this node is measuring the network already"));
        }
        let _only = Measuring(&self.is_measuring);
        let made = self.runtime.timeout(MEASUREMENT_LIMIT, timed::measure(self, &order)).await;
        // What is left there is in the way of other measurements alone, and of none of this node.
        let ended = self.ask(order.with, Exchange::End, None, None).await;
        let late = || {
            let limit = MEASUREMENT_LIMIT.as_secs();
            Fault::new(Errno::ETIMEDOUT, format!("measuring with {} took more than {limit} s", order.with))
        };
        let outcome = made.ok_or_else(late)??;
        ended.map(|_| outcome)
    }

    /// A part of a measurement by another node.
    pub(crate) fn serve(
        self: &Arc<Self>,
        from: NodeId,
        exchange: Exchange,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let meter = self.clone();
        async move {
            match meter.answer(from, exchange, payload).await {
                Ok((reply, carried)) => (Reply::Admin(AdminReply::Exchange(reply)), carried),
                Err(fault) => (Reply::Fault(fault), Carried::Nothing),
            }
        }
        .boxed()
    }

    /// Another node's agent has ended.
    pub(crate) fn peer_dead(&self, peer: NodeId) {
        self.take_back(peer);
    }

    async fn answer(
        &self,
        from: NodeId,
        exchange: Exchange,
        payload: Option<Payload>,
    ) -> Result<(ExchangeReply, Carried)> {
        let missing = || Fault::new(Errno::EBADMSG, "a message of a measurement came without its bytes");
        let mut carried = Carried::Nothing;
        match exchange {
            Exchange::Begin { session, size } => {
                let grant = self.lend(from, session, size).await?;
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
            Exchange::End => self.take_back(from),
        }
        Ok((ExchangeReply::Done, carried))
    }

    /// Has bytes ready for a node.
    async fn lend(&self, to: NodeId, session: u64, size: u32) -> Result<GrantId> {
        if size == 0 || size as usize > tameike_core::limits::UNIT_SIZE {
            return Err(Fault::new(Errno::EINVAL, format!("messages of {size} bytes are not measured")));
        }
        self.take_back(to);
        let bytes = bytes::made(self.pool.take().await, session, size);
        let mut lent = self.lent.lock();
        if let Some(Lent { to, .. }) = &*lent {
            return Err(Fault::new(Errno::EBUSY, format!("{to} is measuring with this node already")));
        }
        let grant = self.fabric.grant_read(bytes.clone());
        *lent = Some(Lent { to, session, bytes, grant });
        Ok(grant)
    }

    fn ready_for(&self, node: NodeId, session: u64) -> Result<Payload> {
        let lent = self.lent.lock();
        let lent = lent.as_ref().filter(|lent| (lent.to, lent.session) == (node, session));
        lent.map(|lent| lent.bytes.clone()).ok_or_else(unknown)
    }

    fn take_back(&self, from: NodeId) {
        if let Some(lent) = self.lent.lock().take_if(|lent| lent.to == from) {
            self.fabric.revoke(lent.grant);
        }
    }

    /// Sends windows of messages, each when those of the one before have arrived.
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

    /// Asks the other node; what comes beside its answer.
    async fn ask(
        &self,
        node: NodeId,
        exchange: Exchange,
        payload: Option<Payload>,
        into: Option<tameike_io::Frame>,
    ) -> Result<(ExchangeReply, Option<Payload>)> {
        let request = Request::Admin(AdminRequest::Exchange(exchange));
        match self.rpc.call(node, request, payload, into).await? {
            Answer { reply: Reply::Admin(AdminReply::Exchange(reply)), payload } => Ok((reply, payload)),
            Answer { reply, .. } => {
                Err(Fault::new(Errno::EPROTO, format!("{node} answered out of turn: {reply:?}")))
            }
        }
    }
}
