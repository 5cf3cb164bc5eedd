//! Flush: sends the bytes that processes of this node have stored to the units' homes.
//!
//! Processes may store meanwhile. A byte that they store after it was compared is found by the next flush, because the twin has the
//! byte that was sent.

use super::memory::{Memory, add_page};
use crate::replies::unexpected_reply;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::patch::{Difference, PagePatch, PatchWriter, RECORD_SIZE_MAX, patches};
use tameike_core::ranges::RangeSet;
use tameike_core::region::Tracking;
use tameike_core::wire::region::{RegionReply, RegionRequest};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, MapEpoch, NodeId, Result, UnitId};
use tameike_dsm::control::{Counter, PAGE_SIZE, PageState, PageWord, UNIT_PAGES};
use tameike_fabric::Destination;
use tameike_io::{Frame, Payload};

/// Number of flushes in a row after which an unchanged page is closed: comparing it as often costs about as much as a fault.
const UNCHANGED_MAX: u16 = 6;
/// Patches of one flush in flight.
const IN_FLIGHT_MAX: usize = 4;

/// A page in memory of this process.
pub(super) type Page = [u8; PAGE_SIZE];

/// Differences between pages and their twins, one node after the other, in patches.
pub(super) struct Differences<'a> {
    memory: &'a Memory,
    /// The home map by which `runs` is sorted.
    epoch: MapEpoch,
    /// The pages, in runs that are each of one unit, by the node that serves the unit.
    runs: BTreeMap<NodeId, Vec<Range<u32>>>,
    /// Pages of the current run that are not compared yet.
    rest: Range<u32>,
    /// Chooses among the pages by their words.
    is_compared: fn(PageWord) -> bool,
    /// Pages that several flushes in a row have found unchanged, in runs that are each of one unit.
    unchanged: Vec<Range<u32>>,
}

/// A patch for a node.
struct Patch {
    to: Destination,
    payload: Payload,
}

impl Memory {
    /// Sends changes to the homes, for a barrier. Returns the pages that the barrier must announce; after an error those that have
    /// reached their homes. The next flush sends the others.
    pub async fn flush(self: &Arc<Self>) -> (RangeSet, Result<()>) {
        let mut unannounced = self.syncing.lock().await;
        let result = self.send_all(&mut unannounced).await;
        let pages = std::mem::take(&mut *unannounced);
        self.added.lock().arriving.insert_all(&pages);
        (pages, result)
    }

    /// Sends changes to the homes, and announces them to the coordinator.
    pub async fn publish(self: &Arc<Self>) -> Result<()> {
        // Held until the announcement: a second flush, which finds nothing to send, must not return before it.
        let mut unannounced = self.syncing.lock().await;
        let result = self.send_all(&mut unannounced).await;
        unannounced.insert_all(&std::mem::take(&mut self.added.lock().arriving));
        if !unannounced.is_empty() {
            let (region, memory, pages) = (self.file.inode, self.writer.memory, unannounced.clone());
            match self.parts.ask(region, RegionRequest::Publish { region, memory, pages }).await? {
                RegionReply::Published(_) => unannounced.clear(),
                other => return Err(unexpected_reply(&other)),
            }
        }
        result
    }

    async fn send_all(self: &Arc<Self>, changed: &mut RangeSet) -> Result<()> {
        changed.insert_all(&std::mem::take(&mut self.added.lock().unannounced));
        self.scan_written(0..self.control().pages())?;
        let unchanged = self.send_changes(|| Differences::written(self), changed).await?;
        self.close_unchanged(&unchanged, changed).await
    }

    /// Sends differences to the homes, and adds their pages to `changed`. Returns pages that several flushes in a row have found unchanged.
    ///
    /// # Errors
    /// The first one; other differences may have been sent.
    pub(super) async fn send_changes<'a>(
        self: &Arc<Self>,
        differences: impl Fn() -> Differences<'a>,
        changed: &mut RangeSet,
    ) -> Result<Vec<Range<u32>>> {
        loop {
            let mut differences = differences();
            match self.send_differences(&mut differences, changed).await {
                // A unit has moved to another node.
                Err(fault) if fault.errno == Errno::EREMCHG => {}
                sent => return sent.map(|()| differences.unchanged),
            }
        }
    }

    async fn send_differences(
        self: &Arc<Self>,
        differences: &mut Differences<'_>,
        changed: &mut RangeSet,
    ) -> Result<()> {
        let mut result = Ok(());
        let mut in_flight = FuturesUnordered::new();
        while differences.has_more() {
            let frame = self.parts.engine.take_frame().await;
            if let Some(patch) = differences.next_patch(frame) {
                in_flight.push(self.send(patch));
            }
            while in_flight.len() >= IN_FLIGHT_MAX || (!differences.has_more() && !in_flight.is_empty()) {
                match in_flight.next().await {
                    Some(Ok(payload)) => self.sent(&payload, changed),
                    Some(Err(fault)) => result = result.and(Err(fault)),
                    None => break,
                }
            }
        }
        result
    }

    async fn send(&self, patch: Patch) -> Result<Payload> {
        let Patch { to, payload } = patch;
        let request = Request::Unit(UnitRequest::Patch { inode: self.file.inode, layout: self.file.layout });
        match self.parts.call(to, request, Some(payload.clone())).await?.reply {
            Reply::Unit(UnitReply::Done) => Ok(payload),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// The home has the changes.
    fn sent(&self, payload: &[u8], changed: &mut RangeSet) {
        let mut count = 0;
        for patch in patches(payload).flatten() {
            let number = patch.page();
            match self.tracking {
                Tracking::WrittenPages => self.written.lock().remove(number..number + 1),
                Tracking::Twins | Tracking::OwnTwins => self.change_twin(&patch),
            }
            changed.insert(number..number + 1);
            count += 1;
        }
        self.control().count(Counter::PagesFlushed, count);
        self.control().count(Counter::BytesFlushed, payload.len() as u64);
    }
}

impl Memory {
    fn change_twin(&self, patch: &PagePatch<'_>) {
        let (number, at) = (patch.page(), u64::from(patch.page()) * PAGE_SIZE as u64);
        match patch.runs() {
            Some(runs) => runs.for_each(|(start, bytes)| self.memory.write_twins(at + start as u64, bytes)),
            None => {
                let mut twin: Page = [0; PAGE_SIZE];
                self.memory.read_twins(number..number + 1, &mut twin);
                patch.apply(&mut twin);
                self.memory.write_twins(at, &twin);
            }
        }
    }
}

impl<'a> Differences<'a> {
    /// Those of all written pages.
    fn written(memory: &'a Memory) -> Self {
        if memory.tracking == Tracking::WrittenPages {
            return Self::of(memory, memory.written_runs().into_iter(), |_| true);
        }
        let control = memory.control();
        let units = (0..control.units()).filter(|&unit| control.may_be_written(unit));
        let runs = units.map(|unit| control.pages_of(unit));
        // No process can store to a page without a complete twin.
        Self::of(memory, runs, |word| word.state().has_twin())
    }

    /// Those of pages that the agent has claimed, in runs that are each of one unit.
    pub(super) fn claimed(memory: &'a Memory, runs: &[Range<u32>]) -> Self {
        Self::of(memory, runs.iter().cloned(), |word| word.state() == PageState::Claimed)
    }

    fn of(
        memory: &'a Memory,
        pages: impl Iterator<Item = Range<u32>>,
        is_compared: fn(PageWord) -> bool,
    ) -> Self {
        let cluster = &memory.parts.cluster;
        let (map, mut runs) = (cluster.map(), BTreeMap::<NodeId, Vec<Range<u32>>>::new());
        for run in pages {
            let unit: UnitId = memory.unit(run.start / UNIT_PAGES);
            let home = cluster.unit_home(memory.file.layout, unit);
            runs.entry(map.primary(home)).or_default().push(run);
        }
        // They are taken from the end.
        runs.values_mut().for_each(|runs| runs.reverse());
        Self { memory, epoch: map.epoch, runs, rest: 0..0, is_compared, unchanged: Vec::new() }
    }

    fn has_more(&self) -> bool {
        !self.rest.is_empty() || !self.runs.is_empty()
    }

    /// The next pages to compare, of one run of a node.
    fn advance(&mut self, node: NodeId) -> bool {
        if !self.rest.is_empty() {
            return true;
        }
        let Some(runs) = self.runs.get_mut(&node) else { return false };
        match runs.pop() {
            Some(run) => self.rest = run,
            None => {
                self.runs.remove(&node);
                return false;
            }
        }
        true
    }

    /// Counts the flushes in a row that have found a written page unchanged.
    fn count_flush(&mut self, page: u32, word: PageWord, is_unchanged: bool) {
        let count = if is_unchanged { word.owner() + 1 } else { 0 };
        if count == UNCHANGED_MAX {
            add_page(&mut self.unchanged, page);
        } else if count != word.owner() {
            // Not if a process is opening the page: it will store to it.
            self.memory.control().replace(page, word, word.with(PageState::Written, count));
        }
    }

    /// Fills `frame` with the changes for the next node; `None` if there are none.
    fn next_patch(&mut self, mut frame: Frame) -> Option<Patch> {
        let node = *self.runs.keys().next()?;
        let mut writer = PatchWriter::new(&mut frame);
        let is_full = |writer: &PatchWriter<'_>, capacity: usize| writer.len() + RECORD_SIZE_MAX > capacity;
        let (mut data, mut twin): (Page, Page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        while !is_full(&writer, tameike_core::limits::UNIT_SIZE) && self.advance(node) {
            let page = self.rest.start;
            self.rest.start += 1;
            let memory = &self.memory.memory;
            let word = memory.control.load(page);
            if !(self.is_compared)(word) {
                continue;
            }
            let fits = if self.memory.tracking == Tracking::WrittenPages {
                writer.push_whole(page, |data| memory.read(page..page + 1, data))
            } else {
                memory.read(page..page + 1, &mut data);
                memory.read_twins(page..page + 1, &mut twin);
                let difference = Difference::between(&twin, &data);
                if word.state() == PageState::Written {
                    self.count_flush(page, word, difference.is_empty());
                }
                writer.push(page, &difference, &data)
            };
            if !fits {
                log::error!("a patch of a page of a region exceeds its largest size");
            }
        }
        let size = writer.len() as u32;
        (size > 0).then(|| Patch {
            to: Destination::Primary(node, self.epoch),
            payload: Payload::new(Arc::new(frame), 0..size),
        })
    }
}
