//! Memory of a region on this node, as the agent sees it.

use super::{Parts, RegionFile};
use event_listener::Event;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tameike_core::UnitId;
use tameike_core::ranges::RangeSet;
use tameike_core::region::Tracking;
use tameike_core::wire::region::Writer;
use tameike_dsm::control::{Control, PageState, UNIT_PAGES};
use tameike_dsm::memory::RegionMemory;
use tameike_io::os::pagemap::Pagemap;
use tameike_io::os::userfault::Userfault;

/// Number of sequential readers that are recognized at a time.
const STREAMS: usize = 8;

/// Number of the processes of one memory; 0 is none.
pub(super) const OWNERS_MAX: u16 = u16::MAX;

/// A memory of the region, which some processes of the node share.
pub(super) struct Memory {
    pub parts: Arc<Parts>,
    pub file: RegionFile,
    /// As which its changes are announced.
    pub writer: Writer,
    pub tracking: Tracking,
    pub memory: RegionMemory,
    /// Sequence number up to which pages are up to date.
    sequence: AtomicU64,
    /// Units with a fetch in flight.
    fetching: Mutex<BTreeSet<u32>>,
    /// Notified when a fetch has ended.
    pub fetched: Event,
    /// Number of updates. Pages become valid while it is locked for reading, and are dropped while it is locked for writing: bytes
    /// that were read before an update must not become valid after it.
    pub epoch: RwLock<u64>,
    /// Held by a flush or update: twins change only then. Pages whose changes are at their homes and not announced yet.
    pub syncing: async_lock::Mutex<RangeSet>,
    /// Pages to which processes have stored, and whose homes may not have the stores; only with [`Tracking::WrittenPages`]. Changed while
    /// `syncing` is locked.
    pub written: Mutex<RangeSet>,
    /// Pages that were changed at their homes, apart from those in `syncing`.
    pub added: Mutex<AddedPages>,
    streams: Mutex<[Stream; STREAMS]>,
    /// The page from which on the next eviction looks for pages.
    pub hand: Mutex<u32>,
    /// The processes, with their mappings.
    owners: Mutex<BTreeMap<u16, MappingSlot>>,
}

/// The mapping of a process, once it has one.
pub(super) type MappingSlot = Arc<OnceLock<ProcessMapping>>;

/// How the agent changes the mapping of a process.
#[derive(Debug)]
pub struct ProcessMapping {
    /// Installs and protects pages.
    pub userfault: Userfault,
    /// Reports written pages, if the kernel records them.
    pub pagemap: Option<Pagemap>,
}

/// Pages that were changed at their homes.
#[derive(Default)]
pub(super) struct AddedPages {
    /// To be announced to others.
    pub unannounced: RangeSet,
    /// To be announced by a barrier that has not ended, or else by the next flush: other processes of this memory may flush before
    /// it ends.
    pub arriving: RangeSet,
    /// To be updated here.
    pub stale: RangeSet,
}

/// A sequential reader.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// Page after the last fetch.
    next: u32,
    /// Number of pages of the last fetch.
    window: u32,
}

/// A fetch in flight of pages of a unit; ends when dropped.
pub(super) struct UnitFetch<'a> {
    memory: &'a Memory,
    unit: u32,
}

/// Pages of the first fetch of a sequential reader.
const WINDOW_MIN: u32 = 16;

/// Adds a page to runs that are each of one unit. Pages are added in ascending order.
pub(super) fn add_page(runs: &mut Vec<Range<u32>>, page: u32) {
    match runs.last_mut() {
        Some(last) if last.end == page && !page.is_multiple_of(UNIT_PAGES) => last.end += 1,
        _ => runs.push(page..page + 1),
    }
}

impl Memory {
    pub fn new(
        parts: Arc<Parts>,
        file: RegionFile,
        (number, tracking): (u32, Tracking),
        memory: RegionMemory,
        sequence: u64,
    ) -> Arc<Self> {
        let writer = Writer { node: parts.rpc.local(), memory: number };
        let (fetching, fetched, epoch, syncing, written) = Default::default();
        let (added, streams, hand, owners) = Default::default();
        let sequence = AtomicU64::new(sequence);
        let this = Arc::new(Self {
            parts,
            file,
            writer,
            tracking,
            memory,
            sequence,
            fetching,
            fetched,
            epoch,
            syncing,
            written,
            added,
            streams,
            hand,
            owners,
        });
        this.parts.space.add(&this);
        this
    }

    pub fn control(&self) -> &Control {
        &self.memory.control
    }

    pub fn unit(&self, number: u32) -> UnitId {
        UnitId { inode: self.file.inode, index: u64::from(number) }
    }

    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// All changes up to `sequence` are in the memory.
    pub fn updated(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Begins a fetch of pages of a unit, unless one is in flight.
    pub fn begin_fetch(&self, unit: u32) -> Option<UnitFetch<'_>> {
        self.fetching.lock().insert(unit).then(|| UnitFetch { memory: self, unit })
    }

    /// The pages to fetch for a fault on an absent page: itself, and for a sequential reader absent ones after it, of the same unit.
    pub fn window(&self, page: u32) -> Range<u32> {
        let end = self.control().pages_of(page / UNIT_PAGES).end;
        let mut streams = self.streams.lock();
        let stream = streams.iter_mut().find(|stream| stream.next == page && stream.window > 0);
        let count = stream.map_or(1, |stream| {
            let wanted = if stream.window == 1 { WINDOW_MIN } else { stream.window * 2 };
            *stream = Stream::default();
            wanted.min(self.parts.space.window_max())
        });
        let pages = self.control().run(page..end.min(page + count), PageState::Absent);
        streams.rotate_right(1);
        streams[0] = Stream { next: pages.end, window: count };
        pages
    }

    /// Returns true if pages of a unit were fetched recently, or are being fetched.
    pub fn is_recent(&self, unit: u32) -> bool {
        let fetched = |stream: &Stream| stream.next > 0 && (stream.next - 1) / UNIT_PAGES == unit;
        self.streams.lock().iter().any(fetched) || self.fetching.lock().contains(&unit)
    }

    /// Chooses a number for a process; `None` if there are too many.
    pub fn add_owner(&self) -> Option<(u16, MappingSlot)> {
        let mut owners = self.owners.lock();
        let number = (1..OWNERS_MAX).find(|number| !owners.contains_key(number))?;
        let mapping = owners.entry(number).or_default();
        Some((number, mapping.clone()))
    }

    /// The mappings of all processes.
    pub fn mappings(&self) -> Vec<MappingSlot> {
        self.owners.lock().values().cloned().collect()
    }

    /// A process has ended, perhaps while it changed the state of pages. It has not stored to those without a complete twin. Returns
    /// true if it was the last one.
    pub fn remove_owner(&self, owner: u16) -> bool {
        let control = self.control();
        for unit in (0..control.units()).filter(|&unit| control.may_be_written(unit)) {
            for page in control.pages_of(unit) {
                let word = control.load(page);
                let state = match word.state() {
                    PageState::Claimed => PageState::Valid,
                    PageState::Opening => PageState::Written,
                    _ => continue,
                };
                if word.owner() == owner {
                    control.replace(page, word, word.with(state, 0));
                }
            }
        }
        let mut owners = self.owners.lock();
        owners.remove(&owner);
        owners.is_empty()
    }
}

impl Drop for UnitFetch<'_> {
    fn drop(&mut self) {
        self.memory.fetching.lock().remove(&self.unit);
        self.memory.fetched.notify(usize::MAX);
    }
}
