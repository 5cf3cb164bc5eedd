//! Which units of files programs may read in the agent's frames, without asking.
//!
//! The agent *lends* frames: a table in memory that programs can only read tells which bytes of which unit a frame holds, and
//! the slab beside it is mapped for reading. Before anything makes that untrue the agent *recalls* the frame, or all of a file
//! at once. Nobody waits for anybody: who reads copies, and looks again.
//!
//! ```text
//! table   0      files: 4096, of 32 bytes:
//!                  0  epoch                                                      u64
//!                  8  key of the file whose end is told                          u64
//!                 16  its size, + 1; or 0, and nothing is told                   u64
//!                 24  when a request for its end came last, in nanoseconds       u64
//!         131072 index: for each set of two, frames that may hold a unit, + 1    u32
//!                then records, one for each frame, of 64 bytes:
//!                  0  version: odd while it is lent                              u64
//!                  8  key of the file                                            u64
//!                 16  epoch of the file then                                     u64
//!                 24  index of the unit                                          u64
//!                 32  bytes of it that are true: first << 32 | end               u64
//!                 40  when a request for the unit came last, in nanoseconds      u64
//! ```
//!
//! Nobody reads what is not true. The agent makes the version even, or the epoch another, and only then changes bytes of the
//! frame or lets go of it; a program reads version and epoch, copies the bytes, and reads both again, with a fence between: if
//! one byte is newer than the recall, it sees the recall. Who hears of a change, from whomever, has a recall that is older
//! before its eyes: a read that begins after that finds nothing, and asks.
//!
//! The end of a file is *told* in the same way: after a request has met it, until the size is another. A read that goes beyond is
//! cut there, as a request is; the program looks again whether it is still told when it has read.
//!
//! What is lent is so for [`LEASE`] after a request, so that the agent sees of a unit in use that it is, and of a file that it
//! is read. A program whose agent is gone reads on for no longer than that.

use crate::message::FileKey;
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;
use tameike_io::Slab;
use tameike_io::os::arena::Notice;
use tameike_io::os::process::monotonic_coarse;

/// How long after the last request for it a unit is lent.
pub(crate) const LEASE: Duration = Duration::from_millis(50);
/// Files of which frames can be lent at the same time.
pub const FILES_MAX: usize = 1 << 12;

const PAGE_SIZE: usize = 4096;
const FILE_SIZE: usize = 32;
const INDEX: usize = FILES_MAX * FILE_SIZE;
/// Frames that may hold a unit: so many are looked at.
pub(crate) const WAYS: usize = 2;
/// Places in the index for each frame: few units are in the way of another.
const PLACES_PER_FRAME: usize = 8;
const RECORD_SIZE: usize = 64;
/// Spreads keys over the index; units of one file follow each other there.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What lies where in the table of so many frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub frames: u32,
    sets: u64,
}

impl Layout {
    pub fn new(frames: u32) -> Self {
        let places = (frames as usize * PLACES_PER_FRAME).next_power_of_two();
        Self { frames, sets: (places / WAYS) as u64 }
    }

    pub fn size(self) -> usize {
        (self.records() + self.frames as usize * RECORD_SIZE).next_multiple_of(PAGE_SIZE)
    }

    fn records(self) -> usize {
        (INDEX + self.sets as usize * WAYS * 4).next_multiple_of(RECORD_SIZE)
    }

    pub fn record(self, frame: u32) -> Record {
        Record { at: self.records() + frame as usize * RECORD_SIZE }
    }

    /// Where the frames are told that may hold a unit.
    pub fn places(self, key: FileKey, unit: u64) -> [usize; WAYS] {
        let set = (key.get().wrapping_mul(SPREAD) >> 32).wrapping_add(unit) & (self.sets - 1);
        std::array::from_fn(|way| INDEX + (set as usize * WAYS + way) * 4)
    }
}

/// Where the words of a file lie.
#[derive(Clone, Copy)]
pub(crate) struct File {
    at: usize,
}

impl File {
    pub fn of(key: FileKey) -> Self {
        Self { at: (key.get() as usize % FILES_MAX) * FILE_SIZE }
    }
    pub fn epoch(self) -> usize {
        self.at
    }
    pub fn key(self) -> usize {
        self.at + 8
    }
    pub fn end(self) -> usize {
        self.at + 16
    }
    pub fn time(self) -> usize {
        self.at + 24
    }
}

/// Where the words of a record lie.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    at: usize,
}

impl Record {
    pub fn version(self) -> usize {
        self.at
    }
    pub fn key(self) -> usize {
        self.at + 8
    }
    pub fn epoch(self) -> usize {
        self.at + 16
    }
    pub fn unit(self) -> usize {
        self.at + 24
    }
    pub fn bytes(self) -> usize {
        self.at + 32
    }
    pub fn time(self) -> usize {
        self.at + 40
    }
}

/// Whether the frame of a record of this version is lent.
pub(crate) fn is_lent(version: u64) -> bool {
    version % 2 == 1
}

/// For the word of a record.
fn bytes_word(range: &Range<u32>) -> u64 {
    u64::from(range.start) << 32 | u64::from(range.end)
}

/// The bytes that such a word tells.
pub(crate) fn bytes_of(word: u64) -> Range<u32> {
    (word >> 32) as u32..word as u32
}

/// Now, as leases count it.
pub(crate) fn now() -> u64 {
    monotonic_coarse().as_nanos() as u64
}

struct Keys {
    /// Numbers of files that are free.
    free: Vec<u16>,
    /// Counts keys: none is given twice.
    last: u64,
}

/// The end of the agent.
pub struct FrameTable {
    slab: Arc<Slab>,
    memory: Notice,
    layout: Layout,
    keys: Mutex<Keys>,
}

impl FrameTable {
    /// A table for a slab, of which nothing is lent.
    ///
    /// # Errors
    /// What the system refuses: to keep programs from writing there, it is of Linux 5.1 or later.
    pub fn new(slab: &Arc<Slab>) -> std::io::Result<Self> {
        if !slab.is_sealed() {
            let why = "the system does not keep others from writing to the frames";
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, why));
        }
        let layout = Layout::new(slab.usage().1);
        let memory = Notice::create("tameike-ring-frames", layout.size())?;
        let free = (0..FILES_MAX as u16).rev().collect();
        Ok(Self { slab: slab.clone(), memory, layout, keys: Mutex::new(Keys { free, last: 0 }) })
    }

    pub(crate) fn frames(&self) -> u32 {
        self.layout.frames
    }

    /// By which programs map the table, and the slab.
    pub(crate) fn memory(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.memory().as_fd(), self.slab.memory()]
    }

    /// A key for a file, unless too many have one.
    pub fn open(&self) -> Option<FileKey> {
        let mut keys = self.keys.lock();
        let number = keys.free.pop()?;
        keys.last += 1;
        FileKey::new(keys.last * FILES_MAX as u64 + u64::from(number))
    }

    /// Takes a key back: nothing is lent under it any more.
    pub fn close(&self, key: FileKey) {
        self.recall_all(key);
        self.keys.lock().free.push((key.get() % FILES_MAX as u64) as u16);
    }

    /// Recalls all frames of a file, and its end.
    pub fn recall_all(&self, key: FileKey) {
        let file = File::of(key);
        self.memory.long(file.end()).store(0, Ordering::Relaxed);
        self.memory.long(file.epoch()).fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Tells that a file ends at `size`, after a request for its end. It does so until [`Self::recall_end`]: who owns the file calls
    /// both, and the latter before its size is another.
    pub fn tell_end(&self, key: FileKey, size: u64) {
        let file = File::of(key);
        self.memory.long(file.key()).store(key.get(), Ordering::Relaxed);
        self.memory.long(file.time()).store(now(), Ordering::Relaxed);
        self.memory.long(file.end()).store(size.saturating_add(1), Ordering::Release);
    }

    /// The end of a file is told no more.
    pub fn recall_end(&self, key: FileKey) {
        self.memory.long(File::of(key).end()).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Lends a frame: it holds these bytes of a unit. Who owns the frame calls this, [`Self::renew`] and [`Self::recall`].
    pub fn lend(&self, frame: u32, key: FileKey, unit: u64, bytes: &Range<u32>) {
        self.recall(frame);
        let record = self.layout.record(frame);
        let epoch = self.memory.long(File::of(key).epoch()).load(Ordering::Relaxed);
        let words = [
            (record.key(), key.get()),
            (record.epoch(), epoch),
            (record.unit(), unit),
            (record.bytes(), bytes_word(bytes)),
            (record.time(), now()),
        ];
        for (place, word) in words {
            self.memory.long(place).store(word, Ordering::Relaxed);
        }
        self.version(frame).fetch_add(1, Ordering::Release);
        self.note(frame, key, unit);
    }

    /// A request for the unit of a lent frame has come.
    pub fn renew(&self, frame: u32, key: FileKey, unit: u64) {
        self.memory.long(self.layout.record(frame).time()).store(now(), Ordering::Relaxed);
        self.note(frame, key, unit);
    }

    /// The frame is lent no more. What is done to it after is not taken for what it held.
    pub fn recall(&self, frame: u32) {
        let version = self.version(frame);
        let now = version.load(Ordering::Relaxed);
        if is_lent(now) {
            version.store(now + 1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    fn version(&self, frame: u32) -> &AtomicU64 {
        self.memory.long(self.layout.record(frame).version())
    }

    fn place(&self, at: usize) -> &AtomicU32 {
        self.memory.word(at)
    }

    /// Tells where a unit is, in place of one that is lent no more if there is such.
    fn note(&self, frame: u32, key: FileKey, unit: u64) {
        let places = self.layout.places(key, unit);
        let told = places.map(|at| self.place(at).load(Ordering::Relaxed));
        if told.contains(&(frame + 1)) {
            return;
        }
        let is_free = |&told: &u32| told == 0 || !self.belongs(told - 1, places);
        let way = told.iter().position(is_free).unwrap_or(frame as usize % WAYS);
        self.place(places[way]).store(frame + 1, Ordering::Relaxed);
    }

    /// Whether a lent frame has one of these places.
    fn belongs(&self, frame: u32, places: [usize; WAYS]) -> bool {
        let record = self.layout.record(frame);
        let word = |place| self.memory.long(place).load(Ordering::Relaxed);
        let key = FileKey::new(word(record.key()));
        let is_here = key.is_some_and(|key| self.layout.places(key, word(record.unit())) == places);
        is_here && is_lent(word(record.version()))
    }
}
