//! Reads from this node's frames or, on a miss, from a peer or the unit's home, with readahead for sequential readers.

use super::counters::Counters;
use super::file::FileData;
use super::file::{FetchInFlight, InlineContent, ReadPlan};
use super::frames::FrameCache;
use super::home::{FileVersion, Home};
use super::homes::HomeClient;
use super::locate::{Located, Locator};
use super::read_peer::PeerReader;
use super::split;
use super::write::Writer;
use crate::replies::unexpected_reply;
use crate::types::ReadBytes;
use event_listener::listener;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::wire::meta::{MetaReply, MetaRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, FaultKind, Generation, Result, UnitId};
use tameike_io::{Frame, Payload};

/// Units read ahead of a sequential reader.
const READ_AHEAD_UNITS: u64 = 3;

/// Limit on path searches per read, for a file that is renamed repeatedly meanwhile.
const SEARCHES_MAX: u32 = 8;

/// Minimum read from another agent's device on this host that keeps no copy. Smaller reads belong to a sequential reader, which the cache
/// serves.
const DIRECT_MIN: usize = 32 << 10;

/// Fetched bytes, and whether another node also has them in memory.
struct Fetched {
    bytes: Payload,
    is_elsewhere: bool,
}

/// Reads units from memory, and fetches missing bytes.
pub(super) struct Reader {
    homes: Arc<HomeClient>,
    frames: Arc<FrameCache>,
    writer: Arc<Writer>,
    locator: Arc<Locator>,
    peers: Arc<PeerReader>,
    counters: Arc<Counters>,
}

impl Reader {
    pub(super) fn new(
        homes: Arc<HomeClient>,
        (frames, writer): (Arc<FrameCache>, Arc<Writer>),
        (locator, peers): (Arc<Locator>, Arc<PeerReader>),
        counters: Arc<Counters>,
    ) -> Self {
        Self { homes, frames, writer, locator, peers, counters }
    }

    pub(super) async fn read(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        offset: u64,
        length: u32,
    ) -> Result<ReadBytes> {
        let (length, sequential) = file.begin_read(offset, length);
        let mut bytes = Vec::new();
        for (index, start, count) in split(offset, length) {
            let part = self.read_unit(file, index, start..start + count, sequential).await?;
            if u64::from(count) == length {
                return Ok(ReadBytes::Frame(part));
            }
            // Copy, so that no read holds one frame while it waits for a second: such reads could hold all frames.
            bytes.reserve_exact(length as usize - bytes.len());
            bytes.extend_from_slice(&part);
        }
        Ok(ReadBytes::Memory(bytes))
    }

    async fn read_unit(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        index: u64,
        range: Range<u32>,
        sequential: bool,
    ) -> Result<Payload> {
        let unit = UnitId { inode: file.inode, index };
        if range.len() >= DIRECT_MIN
            && let Some(bytes) = self.read_direct(file, unit, &range, sequential).await
        {
            self.counters.homes.add(range.len());
            return Ok(bytes);
        }
        let mut was_here = true;
        loop {
            listener!(file.changed() => ended);
            match file.plan_read(unit, &range, sequential, self.homes.is_local(file, unit.index)) {
                ReadPlan::Ready(payload) => {
                    if was_here {
                        self.counters.memory.add(range.len());
                    }
                    if sequential {
                        self.read_ahead(file, index);
                    }
                    return Ok(payload);
                }
                ReadPlan::Wait => ended.await,
                ReadPlan::Content => self.fetch_content(file).await?,
                ReadPlan::Direct { generation } => {
                    return Ok(self.fetch_bytes(file, unit, range, generation, None).await?.bytes);
                }
                ReadPlan::Fetch { fetch, or_direct } => {
                    let frame = match self.frames.take_now() {
                        None if or_direct => {
                            let generation = fetch.generation();
                            drop(fetch);
                            return Ok(self.fetch_bytes(file, unit, range, generation, None).await?.bytes);
                        }
                        None => self.writer.take_frame().await,
                        Some(frame) => frame,
                    };
                    self.fetch(file, fetch, frame).await?;
                    was_here = false;
                }
            }
        }
    }

    /// Reads bytes of a unit from the device of another agent of this host, without keeping a copy.
    async fn read_direct(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        unit: UnitId,
        range: &Range<u32>,
        sequential: bool,
    ) -> Option<Payload> {
        if self.homes.is_local(file, unit.index) {
            return None;
        }
        let offset = unit.start() + u64::from(range.start);
        let length = range.len() as u32;
        let Located { device, location, range } =
            self.locator.locate(file, offset, length, Some(sequential)).await?;
        let read = device.read_unit(&location, &range, self.frames.take_now()?);
        if read.is_none() {
            file.drop_location(offset);
        }
        read
    }

    async fn fetch(self: &Arc<Self>, file: &Arc<FileData>, fetch: FetchInFlight, frame: Frame) -> Result<()> {
        let (unit, range) = (fetch.unit(), fetch.range());
        let fetched = match file.inline_content(unit.index) {
            InlineContent::Bytes(content) => {
                Ok(Fetched { bytes: inline_bytes(&content, &range, frame), is_elsewhere: false })
            }
            // The content has changed since the fetch was planned: the reader plans again.
            InlineContent::Missing => return Ok(()),
            InlineContent::InUnits => {
                self.fetch_bytes(file, unit, range, fetch.generation(), Some(frame)).await
            }
        };
        let cached = fetched.map(|Fetched { bytes, is_elsewhere }| {
            fetch.cache(bytes, is_elsewhere, |held| self.frames.enter(file, held, unit.index));
        });
        drop(fetch);
        self.frames.freed();
        cached
    }

    async fn fetch_bytes(
        self: &Arc<Self>,
        file: &FileData,
        unit: UnitId,
        range: Range<u32>,
        generation: Generation,
        mut into: Option<Frame>,
    ) -> Result<Fetched> {
        let mut tried = Vec::new();
        if let Some(bytes) = self.peers.read(file, unit, &range, generation, &mut into, &mut tried).await {
            return Ok(Fetched { bytes, is_elsewhere: true });
        }
        let home = self.homes.of_unit(file, unit.index);
        let (mut searches, is_kept) = (0, into.is_some());
        let timed = self.peers.time_home(self.homes.cluster().primary(home), range.len());
        let answer = loop {
            let behind = file.home();
            let others = || {
                let mut holders = file.holding();
                holders.retain(|node| !tried.contains(node));
                holders
            };
            let (offset, length, backing) = (range.start, range.end - range.start, behind.backing(others));
            let request = UnitRequest::Read { unit, offset, length, generation, backing };
            match (self.homes.call(home, Request::Unit(request), None, into.take()).await, &behind) {
                // The file was renamed after this node learnt its path, perhaps just now.
                (Err(fault), Home::Shared(path))
                    if fault.kind() == FaultKind::Missing && searches < SEARCHES_MAX =>
                {
                    self.homes.locate_again(path, file.inode).await?;
                    searches += 1;
                    if is_kept {
                        into = Some(self.writer.take_frame().await);
                    }
                }
                (answer, _) => break answer?,
            }
        };
        timed.ended(self.homes.runtime.clock.monotonic());
        if matches!(file.home(), Home::Inode) {
            self.homes.check_exists(file).await?;
        }
        match (&answer.reply, &answer.payload) {
            (Reply::Unit(UnitReply::Read), Some(bytes)) if bytes.len() == range.len() => {
                self.counters.homes.add(range.len());
                Ok(Fetched { bytes: bytes.clone(), is_elsewhere: false })
            }
            (Reply::Unit(UnitReply::Read), _) => Err(Fault::new(
                Errno::EPROTO,
                format!("{home} sent a wrong number of bytes for a read of {} bytes", range.len()),
            )),
            _ => Err(unexpected_reply(&answer.reply)),
        }
    }

    async fn fetch_content(&self, file: &FileData) -> Result<()> {
        let home = self.homes.cluster().inode_home(file.inode);
        let request = Request::Meta(MetaRequest::GetContent { inode: file.inode });
        match self.homes.ask(home, request).await?.reply {
            Reply::Meta(MetaReply::Node(node)) => file.learn_inline(FileVersion::of_node(&node)),
            other => Err(unexpected_reply(&other)),
        }
    }

    fn read_ahead(self: &Arc<Self>, file: &Arc<FileData>, index: u64) {
        for next in index + 1..=index + READ_AHEAD_UNITS {
            let unit = UnitId { inode: file.inode, index: next };
            if self.homes.is_local(file, unit.index) || self.frames.is_wanted() {
                continue;
            }
            let Some(fetch) = file.plan_ahead(unit) else { continue };
            let Some(frame) = self.frames.take_ahead() else { return };
            let (reader, file) = (self.clone(), file.clone());
            self.homes.runtime.spawn(async move {
                if let Err(fault) = reader.fetch(&file, fetch, frame).await {
                    log::debug!("readahead failed: {fault}");
                }
            });
        }
    }
}

fn inline_bytes(content: &[u8], range: &Range<u32>, mut frame: Frame) -> Payload {
    let bytes = content.get(range.start as usize..).unwrap_or_default();
    let count = bytes.len().min(range.len());
    frame[..count].copy_from_slice(&bytes[..count]);
    frame[count..range.len()].fill(0);
    Payload::new(Arc::new(frame), 0..range.len() as u32)
}
