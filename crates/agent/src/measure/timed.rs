//! The measuring side: warms up, runs repetitions, and verifies received data.

use super::{Meter, bytes};
use futures_util::future::{join_all, try_join, try_join_all};
use std::time::Duration;
use tameike_core::wire::measure::{
    Exchange, ExchangeReply, OneWayLatency, Order, Outcome, Quantity, Repetition,
};
use tameike_core::{Errno, Fault, Result};
use tameike_fabric::GrantId;
use tameike_io::{Frame, Payload};

/// Fewest round trips of a repetition.
const TRIPS_MIN: u64 = 10;
/// Largest number of rounds of a repetition.
const ROUNDS_MAX: u64 = 10_000;
/// Latencies that a measurement records, at most.
const TRIPS_KEPT_MAX: usize = 200_000;

pub(super) async fn measure(meter: &Meter, order: &Order) -> Result<Outcome> {
    let mut run = Run::begin(meter, order).await?;
    let rounds = run.warm_up().await?;
    run.latencies_ns.clear();
    let mut repetitions = Vec::with_capacity(order.repetitions as usize);
    for _ in 0..order.repetitions {
        run.renew().await?;
        let took = run.rounds(rounds).await?;
        run.verify().await?;
        let messages = rounds * run.messages_of_a_round();
        repetitions.push(Repetition { messages, nanoseconds: took.as_nanos() as u64 });
    }
    let window = run.window;
    let Order { quantity, size, .. } = *order;
    Ok(Outcome { quantity, size, window, repetitions, one_way: percentiles(run.latencies_ns) })
}

fn percentiles(mut latencies_ns: Vec<u64>) -> Option<OneWayLatency> {
    latencies_ns.sort_unstable();
    let last = latencies_ns.len().checked_sub(1)?;
    let of = |share: usize| latencies_ns[last * share / 100];
    Some(OneWayLatency { median: of(50), p90: of(90), p99: of(99), longest: latencies_ns[last] })
}

struct Run<'a> {
    meter: &'a Meter,
    order: &'a Order,
    session: u64,
    /// Data that this node sends.
    source: Payload,
    /// Grant by which this node gets the other node's data.
    grant: GrantId,
    /// Targets of puts and gets.
    frames: Vec<Frame>,
    echoed: Option<Payload>,
    window: u32,
    latencies_ns: Vec<u64>,
}

impl<'a> Run<'a> {
    async fn begin(meter: &'a Meter, order: &'a Order) -> Result<Self> {
        let session = meter.runtime.random_u64();
        let source = bytes::made(meter.pool.take().await, session, order.size);
        let (mut window, mut frames) = (order.window, Vec::new());
        match order.quantity {
            Quantity::Latency => window = 1,
            Quantity::OneWay | Quantity::BothWays => {}
            Quantity::Put | Quantity::Get => {
                frames.push(meter.pool.take().await);
                let most = window.min(meter.pool.share() / 2) as usize;
                frames.extend(std::iter::from_fn(|| meter.pool.try_take()).take(most.saturating_sub(1)));
                window = frames.len() as u32;
            }
        }
        let (latencies_ns, grant, echoed) = (Vec::new(), GrantId(0), None);
        let mut run = Self { meter, order, session, source, grant, frames, echoed, window, latencies_ns };
        run.renew().await?;
        Ok(run)
    }

    /// Begins a session with new data.
    async fn renew(&mut self) -> Result<()> {
        let Order { with, size, .. } = *self.order;
        self.echoed = None;
        self.session = self.meter.runtime.random_u64();
        self.source = bytes::made(self.meter.pool.take().await, self.session, size);
        let begin = Exchange::Begin { session: self.session, size };
        match self.meter.ask(with, begin, None, None).await? {
            (ExchangeReply::Begun { grant }, _) => self.grant = GrantId(grant),
            (ExchangeReply::Done, _) => {
                return Err(Fault::new(Errno::EPROTO, format!("{with} did not begin the measurement")));
            }
        }
        Ok(())
    }

    fn messages_of_a_round(&self) -> u64 {
        match self.order.quantity {
            Quantity::Latency => 2,
            Quantity::OneWay | Quantity::Put | Quantity::Get => u64::from(self.window),
            Quantity::BothWays => 2 * u64::from(self.window),
        }
    }

    /// Doubles the number of rounds until they take a quarter of a repetition's time, and returns the rounds of a repetition.
    async fn warm_up(&mut self) -> Result<u64> {
        let wanted = Duration::from_millis(self.order.repetition_ms.into());
        let least = if self.order.quantity == Quantity::Latency { TRIPS_MIN } else { 1 };
        let mut count = least;
        loop {
            let took = self.rounds(count).await?;
            if 4 * took >= wanted || count >= ROUNDS_MAX {
                let rounds = count as f64 * wanted.as_secs_f64() / took.as_secs_f64().max(1e-9);
                return Ok((rounds.ceil() as u64).clamp(least, ROUNDS_MAX));
            }
            count *= 2;
        }
    }

    async fn rounds(&mut self, count: u64) -> Result<Duration> {
        let clock = &self.meter.runtime.clock;
        let began = clock.monotonic();
        match self.order.quantity {
            Quantity::Latency => self.trips(count).await?,
            Quantity::OneWay => self.send(count).await?,
            Quantity::BothWays => self.send_both_ways(count).await?,
            Quantity::Put => self.put(count).await?,
            Quantity::Get => self.get(count).await?,
        }
        Ok(clock.monotonic() - began)
    }

    fn check(&self, bytes: &[u8], whole: bool) -> Result<()> {
        bytes::check(bytes, self.order.size as usize, self.session, whole)
    }

    async fn echo(&self, whole: bool) -> Result<Payload> {
        let echo = Exchange::Echo { session: self.session, size: self.order.size, whole };
        let (_, bytes) = self.meter.ask(self.order.with, echo, Some(self.source.clone()), None).await?;
        let bytes =
            bytes.ok_or_else(|| Fault::new(Errno::EBADMSG, "the reply to a message has no payload"))?;
        self.check(&bytes, whole)?;
        Ok(bytes)
    }

    async fn trips(&mut self, count: u64) -> Result<()> {
        let clock = self.meter.runtime.clock.clone();
        for _ in 0..count {
            let began = clock.monotonic();
            let echoed = self.echo(false).await?;
            let latency = (clock.monotonic() - began) / 2;
            if self.latencies_ns.len() < TRIPS_KEPT_MAX {
                self.latencies_ns.push(latency.as_nanos() as u64);
            }
            self.echoed = Some(echoed);
        }
        Ok(())
    }

    async fn send(&self, windows: u64) -> Result<()> {
        let (to, session) = (self.order.with, self.session);
        self.meter.send_windows(to, session, &self.source, windows, self.window).await
    }

    async fn send_both_ways(&self, windows: u64) -> Result<()> {
        let back = Exchange::Send { session: self.session, windows, window: self.window };
        try_join(self.send(windows), self.meter.ask(self.order.with, back, None, None)).await.map(drop)
    }

    /// The other node puts data into frames of this one.
    async fn put(&mut self, windows: u64) -> Result<()> {
        for _ in 0..windows {
            let give = Exchange::Give { session: self.session };
            let frames = self.frames.drain(..);
            let calls: Vec<_> =
                frames.map(|frame| self.meter.ask(self.order.with, give, None, Some(frame))).collect();
            for (_, bytes) in try_join_all(calls).await? {
                let bytes = bytes.ok_or_else(|| Fault::new(Errno::EBADMSG, "the other node put no data"))?;
                self.check(&bytes, false)?;
                self.frames.push(match bytes.into_frame() {
                    Some(frame) => frame,
                    None => self.meter.pool.take().await,
                });
            }
        }
        Ok(())
    }

    async fn get(&mut self, windows: u64) -> Result<()> {
        let Order { with, size, .. } = *self.order;
        for _ in 0..windows {
            let frames = self.frames.drain(..);
            let got = frames.map(|frame| self.meter.fabric.get(with, self.grant, frame, size));
            for (frame, result) in join_all(got.collect::<Vec<_>>()).await {
                result?;
                self.check(&frame[..size as usize], false)?;
                self.frames.push(frame);
            }
        }
        Ok(())
    }

    /// Verifies every byte of the last received data that this node holds, and of one more message.
    async fn verify(&self) -> Result<()> {
        let size = self.order.size as usize;
        self.frames.iter().try_for_each(|frame| self.check(&frame[..size], true))?;
        self.echoed.iter().try_for_each(|echoed| self.check(echoed, true))?;
        self.echo(true).await.map(drop)
    }
}
