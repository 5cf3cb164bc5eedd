//! One file's data on this node.

use super::access::Access;
use super::holders::Hints;
use super::home::{FileVersion, Home};
use super::lend::LentFile;
use super::places::Places;
use super::streams::Streams;
use super::unit::UnitFrame;
use event_listener::Event;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::attr::Times;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Attr, Errno, Fault, Generation, InodeId, Layout, NodeId, Result, Timestamp};

/// Writes that the file's home was not told of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncommitted {
    /// End of all of them.
    pub end: u64,
    /// Time of the last.
    pub time: Timestamp,
    /// Whether any began behind the end of the file.
    pub holes: bool,
}

impl Uncommitted {
    fn and(self, later: Option<Self>) -> Self {
        let Some(later) = later else { return self };
        Self { end: self.end.max(later.end), time: later.time, holes: self.holes || later.holes }
    }
}

#[derive(Default)]
pub(super) struct FileState {
    pub opens: u32,
    /// Size as this node sees it, its own writes included.
    pub size: u64,
    pub generation: Generation,
    /// Generation for which what the kernel caches is true.
    pub kernel: Option<Generation>,
    /// Generation for which the kernel's pages are known to be true. Not set by opens: what the kernel drops at one, it
    /// still has while the answer is under way.
    pub pages: Option<Generation>,
    /// Whether the content lies in the inode record, which it leaves for good.
    pub inline: bool,
    /// Inline content of `generation`.
    pub content: Option<Vec<u8>>,
    pub units: BTreeMap<u64, UnitFrame>,
    /// Units that are being fetched.
    pub fetching: BTreeSet<u64>,
    /// Counts invalidations: what was asked for before the last one is not cached.
    pub epoch: u64,
    /// Sends under way.
    pub in_flight: u32,
    /// Counts writes.
    pub writes: u64,
    /// Writes since the last flush began, and those that it tells the home, or could not tell.
    pub uncommitted: Option<Uncommitted>,
    pub committing: Option<Uncommitted>,
    /// Whether any of them went to units: what goes to the inode record tells the home with it.
    pub in_units: bool,
    /// Unit homes that hold writes of this node not yet made safe.
    pub unsynced: BTreeSet<NodeId>,
    /// Generation of which all else is safe: what other nodes have written, and this one before it last had the file.
    pub safe: Option<Generation>,
    /// What last went wrong with a write that had been acknowledged; told once to each handle that writes.
    pub fault: Option<Fault>,
    /// Counts such writes.
    pub faults: u64,
    /// Of how many of them somebody has been told.
    pub heard: u64,
    pub streams: Streams,
    pub places: Places,
    pub hints: Hints,
    /// Last access and change as this node knows them; `None` where the shared file system keeps the former.
    pub times: Option<Times>,
    /// The last access, until somebody tells the home.
    pub access: Option<Access>,
    /// Set once frames may be lent.
    pub lent: Option<LentFile>,
    /// Whether none are, as its content is elsewhere.
    pub lends_nothing: bool,
    /// Attributes as the home told them with this node's last write.
    pub told: Option<Attr>,
}

impl FileState {
    /// Takes note of a write.
    pub(super) fn wrote(&mut self, offset: u64, length: u64, time: Timestamp) {
        let write = Uncommitted { end: offset + length, time, holes: offset > self.size };
        self.writes += 1;
        self.grow(write.end);
        self.changed_at(time);
        self.uncommitted = Some(self.uncommitted.map_or(write, |before| before.and(Some(write))));
    }

    /// The file is as large as somebody has said.
    fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.recall();
            self.size = size;
        }
        self.grow(size);
    }

    /// The file is at least so large.
    pub(super) fn grow(&mut self, size: u64) {
        if size > self.size {
            self.recall_end();
            self.size = size;
        }
    }

    /// All that the home was not told of.
    pub(super) fn untold(&self) -> Option<Uncommitted> {
        self.committing.map(|told| told.and(self.uncommitted)).or(self.uncommitted)
    }

    /// A flush begins: what was written so far is to be told, and what an earlier one could not tell.
    pub(super) fn begin_commit(&mut self) {
        self.committing = self.untold();
        self.uncommitted = None;
    }

    /// Bytes of the unit that were here are dropped. What is being fetched of it may have been read at the home
    /// before they came there, so that it is not cached.
    pub(super) fn dropped(&mut self, index: u64) {
        if self.fetching.contains(&index) {
            self.epoch += 1;
        }
    }

    fn drop_clean(&mut self) {
        self.epoch += 1;
        self.content = None;
        self.units.retain(|_, unit| {
            unit.drop_clean();
            !unit.is_clean()
        });
    }

    /// What was on its way of a unit is there, or lost. What the kernel has read of it meanwhile may be of no version.
    pub(super) fn sent(&mut self, index: u64, is_lost: bool) {
        self.in_flight -= 1;
        let is_doubtful = self.units.get_mut(&index).is_some_and(|unit| unit.sent(is_lost));
        if is_doubtful {
            self.dropped(index);
            (self.kernel, self.pages) = (None, None);
        }
    }
}

/// One file's data on this node.
pub struct FileData {
    /// The file.
    pub inode: InodeId,
    /// Where its units lie.
    pub layout: Layout,
    home: Mutex<Home>,
    pub(super) state: Mutex<FileState>,
    /// Notified when a send or a fetch has ended.
    pub(super) changed: Event,
    /// Held while the file is flushed, so that a flush acknowledges all that was written before it.
    pub(super) flushing: async_lock::Mutex<()>,
    /// Held alone while the content of a file that is about to lose its last name leaves this room, shared by what reads or
    /// changes it: what is acknowledged before is taken along, and the rest goes to where it then is.
    pub leaving: async_lock::RwLock<()>,
    /// Counts what the home was told of writes here.
    pub(super) commits: AtomicU64,
}

impl FileData {
    pub(super) fn new(inode: InodeId, layout: Layout, home: Home) -> Self {
        Self {
            inode,
            layout,
            home: Mutex::new(home),
            state: Mutex::default(),
            changed: Event::new(),
            flushing: async_lock::Mutex::new(()),
            leaving: async_lock::RwLock::new(()),
            commits: AtomicU64::new(0),
        }
    }

    pub(super) fn home(&self) -> Home {
        self.home.lock().clone()
    }

    /// Takes note of an open that found `version`; whether what the kernel has cached is still true, if it opens the file.
    pub(super) fn opened(&self, home: Home, mut version: FileVersion, beside_kernel: bool) -> bool {
        *self.home.lock() = home;
        let mut state = self.state.lock();
        state.opens += 1;
        let kept = state.kernel == Some(version.generation);
        if !beside_kernel {
            state.kernel = Some(version.generation);
        }
        let (generation, holders) = (version.generation, std::mem::take(&mut version.holders));
        adopt(&mut state, version);
        state.learn_holders(generation, holders);
        kept && !beside_kernel
    }

    /// One open less. What the home could not be told of by the last close, whose program has heard of it, is given up:
    /// nobody else would ever tell it, and this node alone would see it, later even in a file that is given the number.
    pub(super) fn closed(&self) {
        let mut state = self.state.lock();
        state.opens = state.opens.saturating_sub(1);
        if state.opens == 0 {
            (state.lent, state.places) = (None, Places::default());
        }
        if state.opens == 0 && state.untold().is_some() {
            (state.uncommitted, state.committing, state.in_units, state.kernel) = (None, None, false, None);
            state.drop_clean();
        }
    }

    /// Takes note of what the home said in passing; drops what is cached of an older version.
    pub fn refresh(&self, version: FileVersion) {
        adopt(&mut self.state.lock(), version);
    }

    /// Size and time of last write that the home does not know yet.
    pub fn newer(&self) -> Option<(u64, Timestamp)> {
        let state = self.state.lock();
        state.untold().map(|untold| (state.size, untold.time))
    }

    /// Size as this node sees it.
    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// Whether this node knows of a newer version than this one.
    pub fn is_beyond(&self, generation: Generation) -> bool {
        self.state.lock().generation > generation
    }

    /// Whether this node has written to it: its attributes have changed, or will when the home is told.
    pub fn is_written(&self) -> bool {
        self.state.lock().writes > 0
    }

    /// Takes note of attributes that the home has told with a write.
    pub(super) fn learn_attr(&self, attr: Option<Attr>) {
        self.state.lock().told = attr;
    }

    /// Attributes as the home told them with this node's last write; none if it was not told all, or there is a later version.
    pub fn told_attr(&self) -> Option<Attr> {
        let state = self.state.lock();
        let told = state.told.as_ref().filter(|attr| attr.generation == state.generation)?;
        (state.untold().is_none() && state.in_flight == 0).then(|| told.clone())
    }

    /// Whether nothing happens to it that attributes of this version lack, until it is opened.
    pub fn is_settled(&self, generation: Generation) -> bool {
        let state = self.state.lock();
        let is_known = state.untold().is_none() && state.access.is_none() && state.generation <= generation;
        state.opens == 0 && is_known
    }

    /// Whether any handle of this node is open.
    pub fn is_open(&self) -> bool {
        self.state.lock().opens > 0
    }

    #[cfg(test)]
    pub(super) fn generation(&self) -> Generation {
        self.state.lock().generation
    }

    pub(super) fn invalidate(&self) {
        self.state.lock().drop_clean();
    }

    /// Whether its home lacks nothing that was written.
    pub fn is_flushed(&self) -> bool {
        let state = self.state.lock();
        state.untold().is_none() && state.in_flight == 0 && state.units.values().all(UnitFrame::is_clean)
    }

    /// What a handle that is opened now counts as told: what nobody has heard of yet it is told, too, as on Linux.
    pub fn told(&self) -> Told {
        let state = self.state.lock();
        Told { faults: AtomicU64::new(state.heard), opened: state.faults }
    }

    /// What went wrong with earlier writes and was not yet told to the holder of `told`.
    ///
    /// # Errors
    /// What went wrong last.
    pub fn tell(&self, told: &Told) -> Result<()> {
        let mut state = self.state.lock();
        if told.faults.swap(state.faults, Ordering::AcqRel) == state.faults {
            return Ok(());
        }
        state.heard = state.faults;
        state.fault.clone().map_or(Ok(()), Err)
    }

    /// Fails when a home was full since the holder of `told` opened the file, and it does not know yet: writing on would be
    /// in vain. It still has to be told at the end.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn check_room(&self, told: &Told) -> Result<()> {
        let state = self.state.lock();
        let known = told.faults.load(Ordering::Acquire).max(told.opened);
        match &state.fault {
            Some(fault) if fault.errno == Errno::ENOSPC && known != state.faults => Err(fault.clone()),
            _ => Ok(()),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.opens == 0 && state.units.is_empty() && state.in_flight == 0 && state.fetching.is_empty()
    }

    /// Drops all bytes at and after `size`.
    pub(super) fn cut(&self, size: u64) {
        let mut state = self.state.lock();
        state.epoch += 1;
        let unit_size = UNIT_SIZE as u64;
        state.units.retain(|index, unit| {
            let start = index * unit_size;
            let keep = size.saturating_sub(start).min(unit_size) as u32;
            unit.forget(keep..UNIT_SIZE as u32);
            !(unit.valid().is_empty() && unit.is_clean())
        });
        if let Some(content) = &mut state.content {
            content.truncate(size as usize);
        }
    }

    /// Takes note of a new generation that this node's own write made: if nobody else wrote in between, what is
    /// cached stays true.
    pub(super) fn own_change(&self, generation: Generation, inline: bool) {
        let mut state = self.state.lock();
        if generation < state.generation {
            return;
        }
        let alone = generation == state.generation.next() || generation == state.generation;
        if !alone {
            state.drop_clean();
        }
        state.kernel = if alone && state.kernel == Some(state.generation) { Some(generation) } else { None };
        state.pages = if alone && state.pages == Some(state.generation) { Some(generation) } else { None };
        state.safe = if alone && state.safe == Some(state.generation) { Some(generation) } else { None };
        state.content = None;
        state.generation = generation;
        state.inline &= inline;
    }

    pub(super) fn resized(&self, size: u64) {
        let mut state = self.state.lock();
        state.set_size(size);
        let FileState { uncommitted, committing, .. } = &mut *state;
        for untold in [uncommitted, committing].into_iter().flatten() {
            untold.end = untold.end.min(size);
        }
        // The home may have changed the place or the zeros of inline content.
        state.content = None;
    }
}

/// Which faults of a file the holder of a handle knows of.
pub struct Told {
    faults: AtomicU64,
    /// Those that were before the handle.
    opened: u64,
}

/// Takes over the home's version, unless a newer one is known already: answers overtake each other. What the
/// node has written beyond it stays in sight.
pub(super) fn adopt(state: &mut FileState, version: FileVersion) {
    if version.generation < state.generation {
        return;
    }
    let is_first = state.epoch == 0;
    if version.generation != state.generation || is_first {
        state.drop_clean();
    }
    state.generation = version.generation;
    state.inline = version.inline && (state.inline || is_first);
    if version.content.is_some() {
        state.content = version.content;
    }
    state.set_size(version.size.max(state.untold().map_or(0, |untold| untold.end)));
}
