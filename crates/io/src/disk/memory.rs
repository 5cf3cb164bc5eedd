//! Disk and log in memory for tests and simulated clusters, with injected failures, torn writes and power losses.
//!
//! A call takes effect at the second poll of its future, so that calls in flight overlap as on a real disk.

use super::{AppendFile, Disk, assert_whole_blocks};
use crate::os::runtime::yield_now;
use crate::slab::{Frame, Payload};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use tameike_core::{Fault, Result};

/// A countdown of calls, shared by disks that fail together, as those of one node do.
///
/// The call at zero takes effect in part and fails; all later calls fail without effect.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Option<u64>>>);

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOutcome {
    /// The call succeeds.
    Whole,
    /// The call takes effect in part and fails.
    Torn,
    /// The call fails without effect.
    Failed,
}

impl Faults {
    /// Lets `calls` more calls succeed.
    pub fn after(&self, calls: u64) {
        *self.0.lock() = Some(calls + 1);
    }

    /// Lets all calls succeed.
    pub fn none(&self) {
        *self.0.lock() = None;
    }

    /// Draws the outcome of a call.
    pub fn next(&self) -> FaultOutcome {
        match &mut *self.0.lock() {
            None => FaultOutcome::Whole,
            Some(0) => FaultOutcome::Failed,
            Some(left) => {
                *left -= 1;
                if *left == 0 { FaultOutcome::Torn } else { FaultOutcome::Whole }
            }
        }
    }
}

fn injected() -> Fault {
    Fault::io("injected failure")
}

/// Granularity of a power loss in bytes: a write can be torn between pieces.
const PIECE: usize = 4096;

/// Sparse bytes: those that were never written are zero, and take no memory.
#[derive(Clone, Default)]
struct Sparse {
    pieces: BTreeMap<usize, Box<[u8; PIECE]>>,
    size: usize,
}

impl Sparse {
    /// Calls `work` for each piece of a range, with the piece's number, the part of the piece, and the part of the range.
    fn split(range: Range<usize>, mut work: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let mut at = range.start;
        while at < range.end {
            let start = at % PIECE;
            let count = (PIECE - start).min(range.end - at);
            work(at / PIECE, start..start + count, at - range.start..at - range.start + count);
            at += count;
        }
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.size = self.size.max(offset + bytes.len());
        Self::split(offset..offset + bytes.len(), |piece, inside, part| {
            let piece = self.pieces.entry(piece).or_insert_with(|| Box::new([0; PIECE]));
            piece[inside].copy_from_slice(&bytes[part]);
        });
    }

    fn get(&self, offset: usize, bytes: &mut [u8]) {
        Self::split(offset..offset + bytes.len(), |piece, inside, part| match self.pieces.get(&piece) {
            Some(piece) => bytes[part].copy_from_slice(&piece[inside]),
            None => bytes[part].fill(0),
        });
    }

    fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        self.get(0, &mut bytes);
        bytes
    }

    fn resize(&mut self, size: usize) {
        if size < self.size {
            self.pieces.split_off(&size.div_ceil(PIECE));
            if let Some(last) = self.pieces.get_mut(&(size / PIECE)) {
                last[size % PIECE..].fill(0);
            }
        }
        self.size = size;
    }

    /// Discarded bytes have undefined content.
    fn discard(&mut self, range: Range<usize>) {
        Self::split(range, |piece, inside, _| {
            if let Some(piece) = self.pieces.get_mut(&piece) {
                piece[inside].fill(0xDD);
            }
        });
    }
}

/// The current bytes, the durable bytes, and the writes since the last sync.
#[derive(Default)]
struct Media {
    now: Sparse,
    durable: Sparse,
    unsynced_writes: Vec<(usize, Vec<u8>)>,
}

impl Media {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.now.put(offset, bytes);
        self.unsynced_writes.push((offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        for (offset, bytes) in std::mem::take(&mut self.unsynced_writes) {
            self.durable.put(offset, &bytes);
        }
        self.durable.resize(self.now.size);
    }

    fn lose_power(&mut self, mut survives: impl FnMut() -> bool) {
        for (offset, bytes) in std::mem::take(&mut self.unsynced_writes) {
            for (piece, bytes) in bytes.chunks(PIECE).enumerate() {
                if survives() {
                    self.durable.put(offset + piece * PIECE, bytes);
                }
            }
        }
        self.now = self.durable.clone();
    }

    /// Makes the current bytes durable.
    fn settle(&mut self) {
        self.durable = self.now.clone();
        self.unsynced_writes.clear();
    }
}

/// Media whose calls fail by a countdown.
#[derive(Clone)]
struct Storage {
    media: Arc<Mutex<Media>>,
    faults: Faults,
}

impl Storage {
    fn new(size: usize, faults: Faults) -> Self {
        let mut media = Media::default();
        media.now.resize(size);
        media.durable.resize(size);
        Self { media: Arc::new(Mutex::new(media)), faults }
    }

    /// Runs `act`, or fails without effect.
    fn call(&self, act: impl FnOnce(&mut Media) + Send + 'static) -> BoxFuture<'static, Result<()>> {
        let storage = self.clone();
        async move {
            yield_now().await;
            if storage.faults.next() != FaultOutcome::Whole {
                return Err(injected());
            }
            act(&mut storage.media.lock());
            Ok(())
        }
        .boxed()
    }

    /// Writes at `offset`, or at the end without one.
    fn write(
        &self,
        offset: Option<usize>,
        bytes: impl Deref<Target = [u8]> + Send + 'static,
    ) -> BoxFuture<'static, Result<()>> {
        let storage = self.clone();
        async move {
            yield_now().await;
            let size = match storage.faults.next() {
                FaultOutcome::Whole => bytes.len(),
                FaultOutcome::Torn => bytes.len() / 2,
                FaultOutcome::Failed => 0,
            };
            let media = &mut *storage.media.lock();
            media.write(offset.unwrap_or(media.now.size), &bytes[..size]);
            if size == bytes.len() { Ok(()) } else { Err(injected()) }
        }
        .boxed()
    }
}

/// A disk in memory.
#[derive(Clone)]
pub struct MemoryDisk(Storage);

impl MemoryDisk {
    /// A disk of `size` bytes, all zero.
    pub fn new(size: usize, faults: Faults) -> Self {
        Self(Storage::new(size, faults))
    }

    /// Loses the writes since the last sync for which `survives` is false.
    pub fn lose_power(&self, survives: impl FnMut() -> bool) {
        self.0.media.lock().lose_power(survives);
    }

    /// Writes the first half of `payload`, as a failing device does.
    pub fn write_half(&self, offset: u64, payload: Payload) -> BoxFuture<'static, ()> {
        let media = self.0.media.clone();
        async move {
            yield_now().await;
            media.lock().write(offset as usize, &payload[..payload.len() / 2]);
        }
        .boxed()
    }

    /// Copies the current bytes at `offset`, without faults.
    pub fn look(&self, offset: u64, bytes: &mut [u8]) {
        self.0.media.lock().now.get(offset as usize, bytes);
    }

    /// Flips one bit.
    pub fn damage(&self, offset: usize) {
        let media = &mut *self.0.media.lock();
        for bytes in [&mut media.now, &mut media.durable] {
            let mut byte = [0];
            bytes.get(offset, &mut byte);
            bytes.put(offset, &[byte[0] ^ 1]);
        }
    }
}

impl Disk for MemoryDisk {
    fn size(&self) -> u64 {
        self.0.media.lock().now.size as u64
    }

    /// True until the first write.
    fn is_new(&self) -> bool {
        self.0.media.lock().now.pieces.is_empty()
    }

    fn read(
        &self,
        offset: u64,
        mut frame: Frame,
        range: Range<u32>,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
        assert_whole_blocks(offset, &range);
        let Storage { media, faults } = self.0.clone();
        async move {
            yield_now().await;
            if faults.next() != FaultOutcome::Whole {
                return (frame, Err(injected()));
            }
            let bytes = &mut frame[range.start as usize..range.end as usize];
            media.lock().now.get(offset as usize, bytes);
            (frame, Ok(()))
        }
        .boxed()
    }

    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        assert_whole_blocks(offset, &payload.range());
        assert!(offset + payload.len() as u64 <= self.size(), "a write lies on the disk");
        self.0.write(Some(offset as usize), payload)
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.0.call(Media::sync)
    }

    fn allocate(&self, _: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.0.call(|_| {})
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        let range = range.start as usize..range.end as usize;
        self.0.call(move |media| {
            media.now.discard(range.clone());
            media.durable.discard(range);
        })
    }
}

/// A log in memory.
#[derive(Clone)]
pub struct MemoryLog(Storage);

impl MemoryLog {
    /// An empty log.
    pub fn new(faults: Faults) -> Self {
        Self(Storage::new(0, faults))
    }

    /// Loses the appends since the last sync for which `survives` is false. They become zeros if later ones survive.
    pub fn lose_power(&self, survives: impl FnMut() -> bool) {
        self.0.media.lock().lose_power(survives);
    }

    /// The current content, without faults.
    pub fn content(&self) -> Vec<u8> {
        self.0.media.lock().now.to_vec()
    }

    /// Changes the content, as a failing device or another program would.
    pub fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let media = &mut *self.0.media.lock();
        let mut bytes = media.now.to_vec();
        change(&mut bytes);
        media.now = Sparse::default();
        media.now.put(0, &bytes);
        media.settle();
    }
}

impl AppendFile for MemoryLog {
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>> {
        self.0.write(None, bytes)
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.0.call(Media::sync)
    }

    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>> {
        let log = self.clone();
        async move { Ok(log.content()) }.boxed()
    }

    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>> {
        self.0.call(move |media| {
            media.now.resize(size as usize);
            media.settle();
        })
    }
}
