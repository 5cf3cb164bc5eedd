//! Response times of the nodes that this node has asked for bytes, by which a read chooses between the home and a holder.
//!
//! A holder is asked when that is likely to take less time than to ask the home: the time that each has taken lately is known, with
//! the requests in flight to it, and how often the holder had what was requested. So the home of a file that all want at once is
//! relieved by those that have it already, a home with a slow device is passed by, and a home that is as fast as any holder answers
//! by itself.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_core::wire::holders::Holder;

/// A request for more bytes is a large one, of which the time is kept apart.
const SMALL_MAX: usize = 64 << 10;
/// The part that one answer has of what is known of a node's times.
const NEWEST_PART: f64 = 1.0 / 8.0;
/// The part of a holder's time that is forgotten each time that it was passed by: what was slow once is asked again.
const FORGOTTEN_PART: f64 = 1.0 / 64.0;
/// A holder is asked when its time is less than the home's by this factor: times scatter.
const WORTH: f64 = 1.25;

/// Nodes of which times are known; some 150 bytes each. With more, all are forgotten with no request in flight.
const NODES_MAX: usize = 4096;
/// Response times of the nodes that were asked for bytes.
#[derive(Default)]
pub(super) struct ResponseTimes(Mutex<Known>);

#[derive(Default)]
struct Known {
    nodes: BTreeMap<NodeId, NodeTimes>,
    /// Seconds that requests to any node have taken lately: for those of which nothing is known.
    seconds: [Option<f64>; Kind::COUNT],
}

impl Known {
    /// What one more request to a node is likely to take, in seconds.
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
    /// Seconds that requests have taken lately, by their kinds.
    seconds: [Option<f64>; Kind::COUNT],
}

/// Requests whose times are likely to be alike: of a node as the home of units, which may have to read its device, and as a
/// holder; small ones and large ones.
#[derive(Clone, Copy)]
pub(super) struct Kind(usize);

impl Kind {
    const COUNT: usize = 4;

    /// A request for so many bytes to the home of a unit.
    pub(super) fn of_home(length: usize) -> Self {
        Self(usize::from(length > SMALL_MAX))
    }

    /// A request for so many bytes to a holder.
    pub(super) fn of_holder(length: usize) -> Self {
        Self(2 + usize::from(length > SMALL_MAX))
    }
}

/// A request in flight. Dropped before its end, it says nothing of its node's times.
pub(super) struct TimedRequest<'a> {
    times: &'a ResponseTimes,
    node: NodeId,
    kind: Kind,
    began: Duration,
}

impl TimedRequest<'_> {
    /// It has ended.
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
    /// A request goes to a node.
    pub(super) fn begin(&self, node: NodeId, kind: Kind, now: Duration) -> TimedRequest<'_> {
        let nodes = &mut self.0.lock().nodes;
        if nodes.len() >= NODES_MAX {
            nodes.retain(|_, source| source.in_flight > 0);
        }
        nodes.entry(node).or_default().in_flight += 1;
        TimedRequest { times: self, node, kind, began: now }
    }

    /// The better of two holders, if it is likely to be worth asking before the home. While nothing is known of any home, one of
    /// all that may have the bytes is drawn, so that not all nodes begin with the home of what all of them want.
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
