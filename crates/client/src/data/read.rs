//! Reads: from a frame of this node, else from the unit's home; sequential readers are read ahead of.

use super::fetch::FetchInFlight;
use super::file::FileState;
use super::holders::Kind;
use super::places::Placed;
use super::unit::{UnitFrame, frame_of};
use super::{DataEngine, FileData, Home, READ_AHEAD_UNITS, home::unexpected, split};
use crate::vfs::ReadBytes;
use event_listener::listener;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::wire::meta::{MetaReply, MetaRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Generation, Result, UnitId};
use tameike_io::shared::is_missing;
use tameike_io::{Frame, Payload};

/// How often a file is looked for that is renamed again and again while it is read.
const SEARCHES_MAX: u32 = 8;

/// In so many pieces of a unit it is fetched at random; with the next one it is fetched whole.
const PIECES_DENSE: usize = 8;

/// Of what the node stores itself, units are kept that are read on in steps of so many bytes at most.
const STEP_KEPT_MAX: usize = UNIT_SIZE / 16;

/// Least bytes that are worth while to be read where another agent of this host has them, without keeping them: fewer are part of
/// what is read on in memory.
const PLACED_MIN: usize = 32 << 10;

/// What a read needs next.
enum Plan {
    /// The bytes are here.
    Ready(Payload),
    /// These bytes of the unit are to be fetched. Where there is no frame to keep them in, this node's own store may also be
    /// read as with `Direct`.
    Fetch { range: Range<u32>, fetch: FetchInFlight, or_direct: bool },
    /// As `Fetch`, from this node's own store: served without keeping a copy.
    Direct { generation: Generation },
    /// The inline content is to be fetched.
    Content,
    /// Somebody fetches the unit already.
    Wait,
}

/// Bytes that this node did not have, and whether another node has them in memory.
struct Fetched {
    bytes: Payload,
    is_elsewhere: bool,
}

impl DataEngine {
    /// Reads at most `length` bytes (at most a unit's size) at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// Those of the unit's home.
    pub async fn read(self: &Arc<Self>, file: &Arc<FileData>, offset: u64, length: u32) -> Result<ReadBytes> {
        let (length, sequential) = {
            let mut state = file.state.lock();
            let length = u64::from(length).min(state.size.saturating_sub(offset));
            (length, state.streams.read(offset, length))
        };
        let mut bytes = Vec::new();
        for (index, start, count) in split(offset, length) {
            let part = self.read_unit(file, index, start..start + count, sequential).await?;
            if u64::from(count) == length {
                return Ok(ReadBytes::Frame(part));
            }
            // No read waits for a second frame with one in hand: such reads could hold all frames.
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
        if range.len() >= PLACED_MIN
            && let Some(bytes) = self.read_near(file, unit, &range, sequential).await
        {
            self.counters.homes.add(range.len());
            return Ok(bytes);
        }
        let mut was_here = true;
        loop {
            listener!(file.changed => ended);
            match self.plan(file, unit, &range, sequential) {
                Plan::Ready(payload) => {
                    if was_here {
                        self.counters.memory.add(range.len());
                    }
                    if sequential {
                        self.read_ahead(file, index);
                    }
                    return Ok(payload);
                }
                Plan::Wait => ended.await,
                Plan::Content => self.fetch_content(file).await?,
                Plan::Direct { generation } => {
                    return Ok(self.fetch_bytes(file, unit, range, generation, None).await?.bytes);
                }
                Plan::Fetch { range: wanted, fetch, or_direct } => {
                    let frame = match self.frame_now() {
                        None if or_direct => {
                            let generation = fetch.generation();
                            drop(fetch);
                            return Ok(self.fetch_bytes(file, unit, range, generation, None).await?.bytes);
                        }
                        None => self.take_frame().await,
                        Some(frame) => frame,
                    };
                    self.fetch(file, wanted, fetch, frame).await?;
                    was_here = false;
                }
            }
        }
    }

    /// Bytes of a unit that another agent of this host has on its device, without keeping a copy.
    async fn read_near(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        unit: UnitId,
        range: &Range<u32>,
        sequential: bool,
    ) -> Option<Payload> {
        if self.cluster.unit_home(file.layout, unit) == self.rpc.local() {
            return None;
        }
        let offset = unit.start() + u64::from(range.start);
        let length = range.len() as u32;
        let Placed { device, place, range } = self.place(file, offset, length, Some(sequential)).await?;
        let read = device.read_unit(&place, &range, self.frame_now()?);
        if read.is_none() {
            file.misplaced(offset);
        }
        read
    }

    fn plan(&self, file: &Arc<FileData>, unit: UnitId, range: &Range<u32>, sequential: bool) -> Plan {
        let mut state = file.state.lock();
        if let Some(held) = state.units.get_mut(&unit.index)
            && held.valid().contains(range)
        {
            held.used(range);
            return Plan::Ready(held.payload(range.clone()));
        }
        if state.fetching.contains(&unit.index) {
            return Plan::Wait;
        }
        if state.inline && state.content.is_none() {
            return Plan::Content;
        }
        let wanted = fetch_range(&state, unit, range, sequential);
        let local = self.cluster.unit_home(file.layout, unit) == self.rpc.local();
        // Who reads on in small steps reads in memory. A kernel that reads ahead asks for large ones at the same time: one
        // would wait for another.
        let is_kept = sequential && range.len() <= STEP_KEPT_MAX && wanted != *range;
        let is_all_there = local && !state.inline && !state.units.contains_key(&unit.index);
        if is_all_there && !is_kept {
            return Plan::Direct { generation: state.generation };
        }
        Plan::Fetch { range: wanted, fetch: state.begin_fetch(file, unit.index), or_direct: is_all_there }
    }

    /// Fetches bytes of a unit into the cache.
    async fn fetch(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        range: Range<u32>,
        fetch: FetchInFlight,
        frame: Frame,
    ) -> Result<()> {
        let unit = UnitId { inode: file.inode, index: fetch.index() };
        let (inline, content) = {
            let state = file.state.lock();
            // All units but the first are holes while the content is inline.
            (state.inline, if unit.index == 0 { state.content.clone() } else { Some(Vec::new()) })
        };
        let fetched = match (inline, content) {
            (true, Some(content)) => {
                Ok(Fetched { bytes: inline_bytes(&content, &range, frame), is_elsewhere: false })
            }
            // It has changed since it was fetched: the reader comes round again.
            (true, None) => return Ok(()),
            (false, _) => self.fetch_bytes(file, unit, range.clone(), fetch.generation(), Some(frame)).await,
        };
        let merged = match fetched {
            Ok(fetched) => self.merge(file, range, &fetch, fetched),
            Err(fault) => Err(fault),
        };
        drop(fetch);
        self.frames.freed();
        merged
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
        if let Some(bytes) = self.read_held(file, unit, &range, generation, &mut into, &mut tried).await {
            return Ok(Fetched { bytes, is_elsewhere: true });
        }
        let home = self.cluster.unit_home(file.layout, unit);
        let (mut searches, is_kept) = (0, into.is_some());
        let underway = self.sources.begin(home, Kind::of_home(range.len()), self.runtime.clock.monotonic());
        let answer = loop {
            let behind = file.home();
            let others = || {
                let mut holders = file.state.lock().holding();
                holders.retain(|node| !tried.contains(node));
                holders
            };
            let (offset, length, backing) = (range.start, range.end - range.start, behind.backing(others));
            let request = UnitRequest::Read { unit, offset, length, generation, backing };
            match (self.rpc.call(home, Request::Unit(request), None, into.take()).await, &behind) {
                // It has been renamed since its path was learnt, perhaps just now.
                (Err(fault), Home::Shared(path)) if is_missing(fault.errno) && searches < SEARCHES_MAX => {
                    self.find_again(path, file.inode).await?;
                    searches += 1;
                    if is_kept {
                        into = Some(self.take_frame().await);
                    }
                }
                (answer, _) => break answer?,
            }
        };
        underway.ended(self.runtime.clock.monotonic());
        match (&answer.reply, &answer.payload) {
            (Reply::Unit(UnitReply::Read), Some(bytes)) if bytes.len() == range.len() => {
                self.counters.homes.add(range.len());
                Ok(Fetched { bytes: bytes.clone(), is_elsewhere: false })
            }
            (Reply::Unit(UnitReply::Read), _) => Err(Fault::new(
                Errno::EPROTO,
                format!("{home} answered a read of {} bytes with others", range.len()),
            )),
            _ => Err(unexpected(&answer)),
        }
    }

    async fn fetch_content(&self, file: &FileData) -> Result<()> {
        let home = self.cluster.inode_home(file.inode);
        let answer = self.ask(home, Request::Meta(MetaRequest::GetContent { inode: file.inode })).await?;
        let Reply::Meta(MetaReply::Node(node)) = answer.reply else { return Err(unexpected(&answer)) };
        let mut state = file.state.lock();
        if !state.inline || node.attr.generation < state.generation {
            // It has left the record, or changed, meanwhile.
            return Ok(());
        }
        state.inline = node.attr.inline;
        state.content = node.content.map(|content| content.into_vec());
        if state.inline && state.content.is_none() {
            return Err(Fault::new(Errno::EPROTO, format!("{home} sent no content of {}", file.inode)));
        }
        Ok(())
    }

    /// Puts fetched bytes where the unit holds none yet, unless the cache was invalidated meanwhile.
    fn merge(
        &self,
        file: &Arc<FileData>,
        range: Range<u32>,
        fetch: &FetchInFlight,
        Fetched { bytes: fetched, is_elsewhere }: Fetched,
    ) -> Result<()> {
        let mut state = file.state.lock();
        if state.epoch != fetch.epoch() {
            return Ok(());
        }
        let index = fetch.index();
        if let Some(unit) = state.units.get_mut(&index)
            && unit.is_own()
        {
            unit.set_elsewhere(is_elsewhere);
            if unit.fill(&range, &fetched) {
                state.dropped(index);
            }
            return Ok(());
        }
        // Others read the frame that the unit has, or it has none: the fetched bytes bring theirs. To wait for one more
        // would be to come round for ever where there is none.
        let Some(frame) = frame_of(fetched, &range) else { return Ok(()) };
        match state.units.get_mut(&index) {
            Some(unit) => {
                if unit.replace_frame(frame) {
                    state.dropped(index);
                } else {
                    unit.fetched(range);
                }
            }
            None => {
                let mut unit = UnitFrame::new(frame);
                unit.fetched(range);
                state.units.insert(index, unit);
                self.frames.enter(file, &mut state, index);
            }
        }
        if let Some(unit) = state.units.get(&index) {
            unit.set_elsewhere(is_elsewhere);
        }
        Ok(())
    }

    fn read_ahead(self: &Arc<Self>, file: &Arc<FileData>, index: u64) {
        for next in index + 1..=index + READ_AHEAD_UNITS {
            let unit = UnitId { inode: file.inode, index: next };
            let local = self.cluster.unit_home(file.layout, unit) == self.rpc.local();
            let Some((range, fetch)) = self.plan_ahead(file, unit, local) else { continue };
            let Some(frame) = self.frame_ahead() else { return };
            let (engine, file) = (self.clone(), file.clone());
            self.runtime.clone().spawn(async move {
                if let Err(fault) = engine.fetch(&file, range, fetch, frame).await {
                    log::debug!("reading ahead: {fault}");
                }
            });
        }
    }

    fn plan_ahead(
        &self,
        file: &Arc<FileData>,
        unit: UnitId,
        local: bool,
    ) -> Option<(Range<u32>, FetchInFlight)> {
        let mut state = file.state.lock();
        let held = state.units.contains_key(&unit.index) || state.fetching.contains(&unit.index);
        if local || held || unit.start() >= state.size || state.inline || self.frames.is_wanted() {
            return None;
        }
        let range = fetch_range(&state, unit, &(0..1), true);
        Some((range, state.begin_fetch(file, unit.index)))
    }
}

/// The bytes to fetch for a read of `range`: all that the file has of the unit for a sequential reader, and where much of it
/// was read at random; else whole blocks.
fn fetch_range(state: &FileState, unit: UnitId, range: &Range<u32>, sequential: bool) -> Range<u32> {
    let in_file = state.size.saturating_sub(unit.start()).min(UNIT_SIZE as u64) as u32;
    let end = in_file.max(range.end);
    let is_dense = state.units.get(&unit.index).is_some_and(|held| held.valid().count() >= PIECES_DENSE);
    if sequential || is_dense || state.inline {
        return 0..end;
    }
    let block = BLOCK_SIZE as u32;
    range.start / block * block..range.end.next_multiple_of(block).min(end)
}

fn inline_bytes(content: &[u8], range: &Range<u32>, mut frame: Frame) -> Payload {
    let bytes = content.get(range.start as usize..).unwrap_or_default();
    let count = bytes.len().min(range.len());
    frame[..count].copy_from_slice(&bytes[..count]);
    frame[count..range.len()].fill(0);
    Payload::new(Arc::new(frame), 0..range.len() as u32)
}
