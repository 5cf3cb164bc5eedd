//! Whom a read asks for bytes that this node does not have: the unit's home, or another node that may have them in memory (CC-3).
//!
//! Which nodes these are came with the open. They hold for the version of the file that was opened and until this node changes the
//! file by itself, as what it wrote is at the homes first. A holder is asked when that is likely to take less time than to ask the
//! home: the time that each has taken lately is known, with how much this node asks of it at the moment, and how often the holder
//! had what it was asked for. So the home of a file that all want at once is relieved by those that have it already, a home
//! with a slow device is passed by, and a home that is as fast as anybody answers by itself.

use super::homes::unexpected;
use super::{DataEngine, FileData};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::HOLDERS_ASKED_MAX;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::holders::{Asked, Holder};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Generation, InodeId, NodeId, Result, UnitId};
use tameike_fabric::Answer;
use tameike_io::{Frame, Payload};

/// Holders that one read asks before it asks the home.
const HOLDERS_TRIED_MAX: usize = 2;
/// A request for more bytes is a large one, of which the time is kept apart.
const SMALL_MAX: usize = 64 << 10;
/// The part that one answer has of what is known of a node's times.
const NEWEST_PART: f64 = 1.0 / 8.0;
/// The part of a holder's time that is forgotten each time that it was passed by: what was slow once is asked again.
const FORGOTTEN_PART: f64 = 1.0 / 64.0;
/// A holder is asked when its time is less than the home's by this factor: times scatter.
const WORTH: f64 = 1.25;

/// Nodes of which times are known; some 150 bytes each. With more, all are forgotten that nothing is asked of at that moment.
const SOURCES_MAX: usize = 4096;
/// Files and holders that homes were not told of; some 50 bytes each. With more, what one home was to be told is forgotten.
const UNTOLD_MAX: usize = 4096;

/// What is known of the nodes that were asked for bytes.
#[derive(Default)]
pub(super) struct Sources(Mutex<Known>);

#[derive(Default)]
struct Known {
    nodes: BTreeMap<NodeId, Source>,
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
struct Source {
    /// Requests under way.
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

    fn of_holder(length: usize) -> Self {
        Self(2 + usize::from(length > SMALL_MAX))
    }
}

/// A request under way. Dropped before its end, it says nothing of its node's times.
pub(super) struct Underway<'a> {
    sources: &'a Sources,
    node: NodeId,
    kind: Kind,
    began: Duration,
}

impl Underway<'_> {
    /// It has ended.
    pub(super) fn ended(self, now: Duration) {
        let seconds = (now.saturating_sub(self.began)).as_secs_f64();
        let mut known = self.sources.0.lock();
        average(&mut known.seconds[self.kind.0], seconds);
        if let Some(source) = known.nodes.get_mut(&self.node) {
            average(&mut source.seconds[self.kind.0], seconds);
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if let Some(source) = self.sources.0.lock().nodes.get_mut(&self.node) {
            source.in_flight -= 1;
        }
    }
}

impl Sources {
    /// A request goes to a node.
    pub(super) fn begin(&self, node: NodeId, kind: Kind, now: Duration) -> Underway<'_> {
        let nodes = &mut self.0.lock().nodes;
        if nodes.len() >= SOURCES_MAX {
            nodes.retain(|_, source| source.in_flight > 0);
        }
        nodes.entry(node).or_default().in_flight += 1;
        Underway { sources: self, node, kind, began: now }
    }

    /// The better of two holders, if it is likely to be worth asking before the home. While nothing is known of any home, one of
    /// all that may have the bytes is drawn, so that not all nodes begin with the home of what all of them want.
    fn choose(
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

/// What became of requests to holders, for the homes of the files.
#[derive(Default)]
pub struct Reports(Mutex<Untold>);

/// What homes were not told of their files and the holders of these.
#[derive(Default)]
struct Untold {
    homes: BTreeMap<NodeId, BTreeMap<(InodeId, NodeId), Holder>>,
    count: usize,
}

impl Untold {
    fn take(&mut self, home: NodeId) -> impl Iterator<Item = Asked> + use<> {
        let files = self.homes.remove(&home).unwrap_or_default();
        self.count -= files.len();
        files.into_iter().map(|((inode, _), holder)| Asked { inode, holder })
    }
}

impl Reports {
    /// A holder was asked. What is more than a home is told at once is left out: it is a hint.
    fn add(&self, home: NodeId, inode: InodeId, node: NodeId, has_delivered: bool) {
        let untold = &mut *self.0.lock();
        if untold.count >= UNTOLD_MAX
            && let Some(other) = untold.homes.keys().find(|other| **other != home).copied()
        {
            drop(untold.take(other));
        }
        let files = untold.homes.entry(home).or_default();
        let is_new = !files.contains_key(&(inode, node));
        if is_new && files.len() == HOLDERS_ASKED_MAX {
            return;
        }
        untold.count += usize::from(is_new);
        let holder = files.entry((inode, node)).or_insert(Holder { node, requested: 0, delivered: 0 });
        holder.requested += 1;
        holder.delivered += u32::from(has_delivered);
    }

    /// What a home is to be told with the next message to it.
    pub fn take(&self, home: NodeId) -> Vec<Asked> {
        self.0.lock().take(home).collect()
    }
}

/// What a holder has answered.
enum Heard {
    Bytes(Payload),
    NotHeld,
    Busy,
}

impl DataEngine {
    /// Bytes of a unit as another node has them in memory, if one is likely to. Where they are asked for in a frame, this is one
    /// afterwards, too. Who was asked is added to `tried`.
    pub(super) async fn read_held(
        self: &Arc<Self>,
        file: &FileData,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
        into: &mut Option<Frame>,
        tried: &mut Vec<NodeId>,
    ) -> Option<Payload> {
        let (home, coordinator) =
            (self.cluster.unit_home(file.layout, unit), self.cluster.inode_home(file.inode));
        while tried.len() < HOLDERS_TRIED_MAX {
            let node = self.choose_holder(file, tried, home, range.len())?;
            tried.push(node);
            let is_kept = into.is_some();
            let heard = self.ask_holder(node, unit, range, generation, into.take()).await;
            let has_delivered = matches!(heard, Ok(Heard::Bytes(_)));
            let was_asked = !matches!(heard, Ok(Heard::Busy));
            if was_asked {
                self.reports.add(coordinator, file.inode, node, has_delivered);
                file.count_request(node, has_delivered);
            }
            match heard {
                Ok(Heard::Bytes(bytes)) => {
                    self.counters.holders.add(range.len());
                    return Some(bytes);
                }
                Ok(Heard::NotHeld | Heard::Busy) => {}
                Err(fault) => {
                    log::debug!("{node} was asked for bytes of {}: {fault}", file.inode);
                    file.forget_holder(node);
                }
            }
            if is_kept {
                *into = Some(self.take_frame().await);
            }
        }
        None
    }

    fn choose_holder(
        &self,
        file: &FileData,
        tried: &[NodeId],
        home: NodeId,
        length: usize,
    ) -> Option<NodeId> {
        // The home answers from its memory as the home.
        let is_left = |holder: &Holder| {
            holder.node != home && !tried.contains(&holder.node) && !self.patience.is_silent(holder.node)
        };
        let (two, others, draw) = file.draw_holders(is_left, || self.runtime.random_u64() as usize)?;
        let (others, draw) = (others as u64, draw as u64 >> 16);
        self.sources.choose(two, (home, others), length, draw)
    }

    async fn ask_holder(
        &self,
        node: NodeId,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
        into: Option<Frame>,
    ) -> Result<Heard> {
        let (offset, length) = (range.start, range.end - range.start);
        let request = Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation });
        let clock = &self.runtime.clock;
        let underway = self.sources.begin(node, Kind::of_holder(range.len()), clock.monotonic());
        let answer = self.patience.call(&*self.rpc, node, request, into).await;
        underway.ended(clock.monotonic());
        match answer? {
            Answer { reply: Reply::Client(ClientReply::Read), payload: Some(bytes) }
                if bytes.len() == range.len() =>
            {
                Ok(Heard::Bytes(bytes))
            }
            Answer { reply: Reply::Client(ClientReply::NotHeld), .. } => Ok(Heard::NotHeld),
            Answer { reply: Reply::Client(ClientReply::Busy), .. } => Ok(Heard::Busy),
            other => Err(unexpected(&other)),
        }
    }
}
