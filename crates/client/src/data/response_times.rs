//! Response times of other nodes, by which a read chooses between the home and a holder.
//!
//! A read asks a holder first if that is likely to take less time than asking the home. The estimate uses each node's recent response
//! times, its requests in flight, and the holder's hit rate. So holders take load off the home of a file that all nodes read, and off a
//! home with a slow device. A home that is as fast as any holder is asked directly.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_core::wire::holders::Holder;

/// Larger requests count as large; their times are kept separately.
const SMALL_MAX: usize = 64 << 10;
/// Weight of the newest response time in the moving average.
const NEWEST_PART: f64 = 1.0 / 8.0;
/// Decay of a holder's time each time that it is not chosen, so that a node that was once slow is tried again.
const FORGOTTEN_PART: f64 = 1.0 / 64.0;
/// A holder is asked if its expected time is less than the home's by this factor, since times scatter.
const WORTH: f64 = 1.25;

/// Limit on nodes with known times, some 150 bytes each. Beyond it, all nodes without a request in flight are forgotten.
const NODES_MAX: usize = 4096;
/// Response times of the nodes that this node asked for bytes.
#[derive(Default)]
pub(super) struct ResponseTimes(Mutex<Known>);

#[derive(Default)]
struct Known {
    nodes: BTreeMap<NodeId, NodeTimes>,
    /// Average seconds over all nodes, for nodes without a known time.
    seconds: [Option<f64>; Kind::COUNT],
}

impl Known {
    /// Returns the expected time of one more request to a node, in seconds.
    fn expected(&self, node: NodeId, kind: Kind) -> Option<f64> {
        let source = self.nodes.get(&node);
        let seconds = source.and_then(|source| source.seconds[kind.0]).or(self.seconds[kind.0]);
        seconds.map(|seconds| seconds * f64::from(1 + source.map_or(0, |source| source.in_flight)))
    }
}

fn average(known: &mut Option<f64>, newest: f64) {
    *known = Some(known.map_or(newest, |known| known + (newest - known) * NEWEST_PART));
}

#[derive(Default)]
struct NodeTimes {
    /// Requests in flight.
    in_flight: u32,
    /// Average seconds by kind of request.
    seconds: [Option<f64>; Kind::COUNT],
}

/// Classes of requests with similar times: to a node as the home of units, which may have to read its device, or as a holder; small or
/// large.
#[derive(Clone, Copy)]
pub(super) struct Kind(usize);

impl Kind {
    const COUNT: usize = 4;

    pub(super) fn of_home(length: usize) -> Self {
        Self(usize::from(length > SMALL_MAX))
    }

    pub(super) fn of_holder(length: usize) -> Self {
        Self(2 + usize::from(length > SMALL_MAX))
    }
}

/// A request in flight. If it is dropped before its end, its time does not count.
pub(super) struct TimedRequest<'a> {
    times: &'a ResponseTimes,
    node: NodeId,
    kind: Kind,
    began: Duration,
}

impl TimedRequest<'_> {
    pub(super) fn ended(self, now: Duration) {
        let seconds = (now.saturating_sub(self.began)).as_secs_f64();
        let mut known = self.times.0.lock();
        average(&mut known.seconds[self.kind.0], seconds);
        if let Some(source) = known.nodes.get_mut(&self.node) {
            average(&mut source.seconds[self.kind.0], seconds);
        }
    }
}

impl Drop for TimedRequest<'_> {
    fn drop(&mut self) {
        if let Some(source) = self.times.0.lock().nodes.get_mut(&self.node) {
            source.in_flight -= 1;
        }
    }
}

impl ResponseTimes {
    /// Records a request to a node.
    pub(super) fn begin(&self, node: NodeId, kind: Kind, now: Duration) -> TimedRequest<'_> {
        let nodes = &mut self.0.lock().nodes;
        if nodes.len() >= NODES_MAX {
            nodes.retain(|_, source| source.in_flight > 0);
        }
        nodes.entry(node).or_default().in_flight += 1;
        TimedRequest { times: self, node, kind, began: now }
    }

    /// Returns the better of two holders, if asking it before the home is likely to be faster. While no home's time is known, it draws at
    /// random among the home and all holders, so that not all nodes start at the home of a popular file.
    pub(super) fn choose(
        &self,
        two: [Holder; 2],
        (home, others): (NodeId, u64),
        length: usize,
        draw: u64,
    ) -> Option<NodeId> {
        let mut known = self.0.lock();
        let kind = Kind::of_holder(length);
        let load = |holder: &Holder| {
            let in_flight = known.nodes.get(&holder.node).map_or(0, |source| source.in_flight);
            u64::from(holder.missed()) + u64::from(in_flight)
        };
        let [one, other] = two;
        let best = if load(&other) < load(&one) { other } else { one };
        let Some(from_home) = known.expected(home, Kind::of_home(length)) else {
            return (!draw.is_multiple_of(others + 1)).then_some(best.node);
        };
        let has_it = f64::from(best.delivered + 1) / f64::from(best.requested + 1);
        let from_holder = known.expected(best.node, kind).unwrap_or(0.0);
        if from_holder * WORTH < from_home * has_it {
            return Some(best.node);
        }
        let source = known.nodes.get_mut(&best.node).and_then(|source| source.seconds[kind.0].as_mut());
        source.into_iter().for_each(|seconds| *seconds *= 1.0 - FORGOTTEN_PART);
        if let Some(seconds) = known.seconds[kind.0].as_mut() {
            *seconds *= 1.0 - FORGOTTEN_PART;
        }
        None
    }
}
