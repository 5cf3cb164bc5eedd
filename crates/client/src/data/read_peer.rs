//! Peer reads: fetches bytes from another node that may have them in memory.
//!
//! The open reports the holders ([`FileData::holding`]).

use super::counters::Counters;
use super::file::FileData;
use super::holder_reports::HolderReports;
use super::homes::HomeClient;
use super::response_times::{Kind, ResponseTimes, TimedRequest};
use super::write::Writer;
use crate::replies::unexpected_reply;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::HOLDER_TIMEOUT;
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::holders::Holder;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Generation, NodeId, Result, UnitId};
use tameike_fabric::{Answer, TimeLimitedCalls};
use tameike_io::{Frame, Payload};

/// Holders that one read tries before it asks the home.
const HOLDERS_TRIED_MAX: usize = 2;

/// Reply of a holder.
enum PeerAnswer {
    Bytes(Payload),
    NotHeld,
    Busy,
}

/// Reads bytes from the memory of other nodes.
pub(super) struct PeerReader {
    homes: Arc<HomeClient>,
    writer: Arc<Writer>,
    times: ResponseTimes,
    /// Limits the time of peer requests.
    time_limit: TimeLimitedCalls,
    reports: Arc<HolderReports>,
    counters: Arc<Counters>,
}

impl PeerReader {
    pub(super) fn new(homes: Arc<HomeClient>, writer: Arc<Writer>, counters: Arc<Counters>) -> Self {
        let time_limit = TimeLimitedCalls::new(homes.runtime.clone(), HOLDER_TIMEOUT);
        let (times, reports) = Default::default();
        Self { homes, writer, times, time_limit, reports, counters }
    }

    pub(super) fn reports(&self) -> &Arc<HolderReports> {
        &self.reports
    }

    /// Starts timing a request for `length` bytes to the home of a unit.
    pub(super) fn time_home(&self, home: NodeId, length: usize) -> TimedRequest<'_> {
        self.times.begin(home, Kind::of_home(length), self.homes.runtime.clock.monotonic())
    }

    /// Returns bytes of a unit from another node's memory, if one is likely to have them. If `into` holds a frame, the bytes arrive in one,
    /// and `into` holds one again after a failure. The nodes asked are added to `tried`.
    pub(super) async fn read(
        &self,
        file: &FileData,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
        into: &mut Option<Frame>,
        tried: &mut Vec<NodeId>,
    ) -> Option<Payload> {
        let (home, coordinator) =
            (self.homes.node_of_unit(file, unit.index), self.homes.node_of_inode(file.inode));
        while tried.len() < HOLDERS_TRIED_MAX {
            let node = self.choose_holder(file, tried, home, range.len())?;
            tried.push(node);
            let is_kept = into.is_some();
            let answer = self.ask_holder(node, unit, range, generation, into.take()).await;
            let has_delivered = matches!(answer, Ok(PeerAnswer::Bytes(_)));
            let was_asked = !matches!(answer, Ok(PeerAnswer::Busy));
            if was_asked {
                self.reports.add(coordinator, file.inode, node, has_delivered);
                file.count_request(node, has_delivered);
            }
            match answer {
                Ok(PeerAnswer::Bytes(bytes)) => {
                    self.counters.holders.add(range.len());
                    return Some(bytes);
                }
                Ok(PeerAnswer::NotHeld | PeerAnswer::Busy) => {}
                Err(fault) => {
                    log::debug!("peer read of {} from {node} failed: {fault}", file.inode);
                    file.forget_holder(node);
                }
            }
            if is_kept {
                *into = Some(self.writer.take_frame().await);
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
        // The home is asked as the home, not as a holder.
        let is_left = |holder: &Holder| {
            holder.node != home && !tried.contains(&holder.node) && !self.time_limit.is_silent(holder.node)
        };
        let (two, others, draw) = file.draw_holders(is_left, || self.homes.runtime.random_u64() as usize)?;
        let (others, draw) = (others as u64, draw as u64 >> 16);
        self.times.choose(two, (home, others), length, draw)
    }

    async fn ask_holder(
        &self,
        node: NodeId,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
        into: Option<Frame>,
    ) -> Result<PeerAnswer> {
        let (offset, length) = (range.start, range.end - range.start);
        let request = Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation });
        let clock = &self.homes.runtime.clock;
        let timed = self.times.begin(node, Kind::of_holder(range.len()), clock.monotonic());
        let answer = self.time_limit.call(self.homes.rpc(), node, request, into).await;
        timed.ended(clock.monotonic());
        match answer? {
            Answer { reply: Reply::Client(ClientReply::Read), payload: Some(bytes) }
                if bytes.len() == range.len() =>
            {
                Ok(PeerAnswer::Bytes(bytes))
            }
            Answer { reply: Reply::Client(ClientReply::NotHeld), .. } => Ok(PeerAnswer::NotHeld),
            Answer { reply: Reply::Client(ClientReply::Busy), .. } => Ok(PeerAnswer::Busy),
            other => Err(unexpected_reply(&other.reply)),
        }
    }
}
