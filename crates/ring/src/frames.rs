//! Granted frames: units of files that programs may read in the agent's memory without a request.
//!
//! The agent *grants* frames: a table in memory that programs map read-only says which bytes of which unit a frame holds, and the slab is
//! mapped read-only, too. The agent *revokes* a frame, or all frames of a file at once, before anything changes what the table says.
//! Neither side waits for the other: a reader copies, and then checks that the grant is still valid.
//!
//! ```text
//! table   0      files: 4096, of 32 bytes:
//!                  0  epoch                                                      u64
//!                  8  key of the file whose end is published                     u64
//!                 16  its size, + 1; or 0 if none is published                   u64
//!                 24  time of the last request for its end, in nanoseconds       u64
//!         131072 index: for each set of two, frames that may hold a unit, + 1    u32
//!                then records, one for each frame, of 64 bytes:
//!                  0  version: odd while it is granted                           u64
//!                  8  key of the file                                            u64
//!                 16  epoch of the file at the grant                             u64
//!                 24  index of the unit                                          u64
//!                 32  valid bytes of it: first << 32 | end                       u64
//!                 40  time of the last request for the unit, in nanoseconds      u64
//! ```
//!
//! Readers never return stale bytes:
//!
//! - The agent makes the version even or changes the epoch, and only then changes bytes of the frame or reuses it.
//! - A program reads version and epoch, copies the bytes, and reads both again, with fences in between. If one byte is newer than the
//!   revocation, the program sees the revocation.
//! - Any notification of a change comes after the revocation. A read that begins later finds no grant, and sends a request.
//!
//! The end of a file is *published* in the same way, from a request that met it until the size changes. A read beyond it is truncated, as a
//! request is; after the copy the program checks that the end is still published.
//!
//! A grant is valid for [`LEASE`] after a request, so that the agent sees which units and files are in use. A program whose agent has failed
//! reads granted frames for that long at most.

use crate::message::FileKey;
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use tameike_io::Slab;
use tameike_io::os::arena::Notice;
use tameike_io::os::process::monotonic_coarse;

/// How long a grant is valid after the last request for its unit.
pub(crate) const LEASE: Duration = Duration::from_millis(50);
/// Maximum number of files with granted frames.
pub const FILES_MAX: usize = 1 << 12;

const PAGE_SIZE: usize = 4096;
const FILE_SIZE: usize = 32;
const INDEX: usize = FILES_MAX * FILE_SIZE;
/// Associativity of the index: number of frames that may hold a unit.
pub(crate) const WAYS: usize = 2;
/// Index entries per frame, so that few units collide.
const PLACES_PER_FRAME: usize = 8;
const RECORD_SIZE: usize = 64;

/// Offsets in the entry of a file.
pub(crate) const FILE_EPOCH: usize = 0;
pub(crate) const FILE_KEY: usize = 8;
pub(crate) const FILE_END: usize = 16;
pub(crate) const FILE_TIME: usize = 24;

/// Offsets in the record of a frame.
pub(crate) const VERSION: usize = 0;
pub(crate) const KEY: usize = 8;
pub(crate) const EPOCH: usize = 16;
pub(crate) const UNIT: usize = 24;
pub(crate) const BYTES: usize = 32;
pub(crate) const TIME: usize = 40;

/// Multiplier that spreads keys over the index; units of one file are adjacent.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Layout of the table for a number of frames.
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

    /// Offset of the record of a frame.
    pub fn record(self, frame: u32) -> usize {
        self.records() + frame as usize * RECORD_SIZE
    }

    /// Offsets of the index entries of a unit.
    pub fn places(self, key: FileKey, unit: u64) -> [usize; WAYS] {
        let set = (key.get().wrapping_mul(SPREAD) >> 32).wrapping_add(unit) & (self.sets - 1);
        std::array::from_fn(|way| INDEX + (set as usize * WAYS + way) * 4)
    }
}

/// Offset of the entry of a file.
pub(crate) fn file_of(key: FileKey) -> usize {
    (key.get() as usize % FILES_MAX) * FILE_SIZE
}

/// Returns true if the frame of a record with this version is granted.
pub(crate) fn is_granted(version: u64) -> bool {
    version % 2 == 1
}

/// Encodes the valid bytes for a record.
fn bytes_word(range: &Range<u32>) -> u64 {
    u64::from(range.start) << 32 | u64::from(range.end)
}

/// Decodes the valid bytes of a record.
pub(crate) fn bytes_of(word: u64) -> Range<u32> {
    (word >> 32) as u32..word as u32
}

/// The current time of leases.
pub(crate) fn now() -> u64 {
    monotonic_coarse().as_nanos() as u64
}

struct Keys {
    /// Numbers of files that have no key.
    free: Vec<u16>,
    /// Counter of keys, so that none is used twice.
    last: u64,
}

/// The agent's side of granted frames.
pub struct FrameTable {
    slab: Arc<Slab>,
    memory: Notice,
    layout: Layout,
    keys: Mutex<Keys>,
}

impl FrameTable {
    /// A table for a slab, without grants. Fails before Linux 5.1, which cannot seal the memory against writes of programs.
    pub fn new(slab: &Arc<Slab>) -> std::io::Result<Self> {
        if !slab.is_sealed() {
            let why = "the kernel cannot seal the frames against writes of other processes (Linux 5.1 or later is needed)";
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

    /// Descriptors of the table and the slab, for programs.
    pub(crate) fn memory(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.memory().as_fd(), self.slab.memory()]
    }

    /// A key for a file; `None` if too many files have one.
    pub fn open(&self) -> Option<FileKey> {
        let mut keys = self.keys.lock();
        let number = keys.free.pop()?;
        keys.last += 1;
        FileKey::new(keys.last * FILES_MAX as u64 + u64::from(number))
    }

    /// Returns a key, and revokes everything granted under it.
    pub fn close(&self, key: FileKey) {
        self.revoke_all(key);
        self.keys.lock().free.push((key.get() % FILES_MAX as u64) as u16);
    }

    /// Revokes all frames of a file, and its end.
    pub fn revoke_all(&self, key: FileKey) {
        let file = file_of(key);
        self.memory.long(file + FILE_END).store(0, Ordering::Relaxed);
        self.memory.long(file + FILE_EPOCH).fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Publishes the end of a file, after a request for it. The owner of the file calls this and [`Self::withdraw_end`], the latter before the
    /// size changes.
    pub fn publish_end(&self, key: FileKey, size: u64) {
        let file = file_of(key);
        self.memory.long(file + FILE_KEY).store(key.get(), Ordering::Relaxed);
        self.memory.long(file + FILE_TIME).store(now(), Ordering::Relaxed);
        self.memory.long(file + FILE_END).store(size.saturating_add(1), Ordering::Release);
    }

    /// Withdraws the end of a file.
    pub fn withdraw_end(&self, key: FileKey) {
        self.memory.long(file_of(key) + FILE_END).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Grants a frame, which holds these bytes of a unit. The owner of the frame calls this, [`Self::renew`] and [`Self::revoke`].
    pub fn grant(&self, frame: u32, key: FileKey, unit: u64, bytes: &Range<u32>) {
        self.revoke(frame);
        let record = self.layout.record(frame);
        let epoch = self.memory.long(file_of(key) + FILE_EPOCH).load(Ordering::Relaxed);
        let words =
            [(KEY, key.get()), (EPOCH, epoch), (UNIT, unit), (BYTES, bytes_word(bytes)), (TIME, now())];
        for (place, word) in words {
            self.memory.long(record + place).store(word, Ordering::Relaxed);
        }
        self.version(frame).fetch_add(1, Ordering::Release);
        self.index_unit(frame, key, unit);
    }

    /// Renews the grant of a frame, at a request for its unit.
    pub fn renew(&self, frame: u32, key: FileKey, unit: u64) {
        self.memory.long(self.layout.record(frame) + TIME).store(now(), Ordering::Relaxed);
        self.index_unit(frame, key, unit);
    }

    /// Revokes a frame. Changes after the call are not taken for what it held.
    pub fn revoke(&self, frame: u32) {
        let version = self.version(frame);
        let now = version.load(Ordering::Relaxed);
        if is_granted(now) {
            version.store(now + 1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    fn version(&self, frame: u32) -> &AtomicU64 {
        self.memory.long(self.layout.record(frame) + VERSION)
    }

    /// Adds a unit to the index; replaces the entry of a frame that is not granted any more, if there is one.
    fn index_unit(&self, frame: u32, key: FileKey, unit: u64) {
        let places = self.layout.places(key, unit);
        let known = places.map(|at| self.memory.word(at).load(Ordering::Relaxed));
        if known.contains(&(frame + 1)) {
            return;
        }
        let is_free = |&entry: &u32| entry == 0 || !self.belongs(entry - 1, places);
        let way = known.iter().position(is_free).unwrap_or(frame as usize % WAYS);
        self.memory.word(places[way]).store(frame + 1, Ordering::Relaxed);
    }

    /// Returns true if a frame is granted and its unit has these index entries.
    fn belongs(&self, frame: u32, places: [usize; WAYS]) -> bool {
        let record = self.layout.record(frame);
        let word = |place| self.memory.long(record + place).load(Ordering::Relaxed);
        let key = FileKey::new(word(KEY));
        let is_here = key.is_some_and(|key| self.layout.places(key, word(UNIT)) == places);
        is_here && is_granted(word(VERSION))
    }
}
