//! Disk and log in memory for tests and simulated clusters, with injected failures, torn writes and power losses.
//!
//! A call takes effect at the second poll of its future, so that calls in flight overlap as on a real disk.

use super::{AppendFile, Disk, assert_whole_blocks};
use crate::slab::{Frame, Payload};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
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
    Dead,
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
            Some(0) => FaultOutcome::Dead,
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

#[derive(Default)]
struct Later(bool);

impl Future for Later {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
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

/// A disk in memory.
#[derive(Clone)]
pub struct MemoryDisk {
    media: Arc<Mutex<Media>>,
    faults: Faults,
}

impl MemoryDisk {
    /// A disk of `size` bytes, all zero.
    pub fn new(size: usize, faults: Faults) -> Self {
        let mut media = Media::default();
        media.now.resize(size);
        media.durable.resize(size);
        Self { media: Arc::new(Mutex::new(media)), faults }
    }

    /// Loses the writes since the last sync for which `survives` is false.
    pub fn lose_power(&self, survives: impl FnMut() -> bool) {
        self.media.lock().lose_power(survives);
    }

    /// Writes the first half of `payload`, as a failing device does.
    pub fn write_half(&self, offset: u64, payload: Payload) -> BoxFuture<'static, ()> {
        let disk = self.clone();
        async move {
            Later::default().await;
            disk.media.lock().write(offset as usize, &payload[..payload.len() / 2]);
        }
        .boxed()
    }

    /// Copies the current bytes at `offset`, without faults.
    pub fn look(&self, offset: u64, bytes: &mut [u8]) {
        self.media.lock().now.get(offset as usize, bytes);
    }

    /// Flips one bit.
    pub fn damage(&self, offset: usize) {
        let media = &mut *self.media.lock();
        for bytes in [&mut media.now, &mut media.durable] {
            let mut byte = [0];
            bytes.get(offset, &mut byte);
            bytes.put(offset, &[byte[0] ^ 1]);
        }
    }
}

impl Disk for MemoryDisk {
    fn size(&self) -> u64 {
        self.media.lock().now.size as u64
    }

    /// True until the first write.
    fn is_new(&self) -> bool {
        self.media.lock().now.pieces.is_empty()
    }

    fn read(
        &self,
        offset: u64,
        mut frame: Frame,
        range: Range<u32>,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
        assert_whole_blocks(offset, &range);
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() != FaultOutcome::Whole {
                return (frame, Err(injected()));
            }
            let offset = offset as usize;
            disk.media.lock().now.get(offset, &mut frame[range.start as usize..range.end as usize]);
            (frame, Ok(()))
        }
        .boxed()
    }

    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        assert_whole_blocks(offset, &payload.range());
        let disk = self.clone();
        async move {
            Later::default().await;
            let size = match disk.faults.next() {
                FaultOutcome::Whole => payload.len(),
                FaultOutcome::Torn => payload.len() / 2,
                FaultOutcome::Dead => 0,
            };
            let media = &mut *disk.media.lock();
            assert!(offset as usize + payload.len() <= media.now.size, "a write lies on the disk");
            media.write(offset as usize, &payload[..size]);
            if size == payload.len() { Ok(()) } else { Err(injected()) }
        }
        .boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() != FaultOutcome::Whole {
                return Err(injected());
            }
            disk.media.lock().sync();
            Ok(())
        }
        .boxed()
    }

    fn allocate(&self, _: Range<u64>) -> BoxFuture<'static, Result<()>> {
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() == FaultOutcome::Whole { Ok(()) } else { Err(injected()) }
        }
        .boxed()
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() != FaultOutcome::Whole {
                return Err(injected());
            }
            let media = &mut *disk.media.lock();
            let range = range.start as usize..range.end as usize;
            media.now.discard(range.clone());
            media.durable.discard(range);
            Ok(())
        }
        .boxed()
    }
}

/// A log in memory.
#[derive(Clone)]
pub struct MemoryLog {
    media: Arc<Mutex<Media>>,
    faults: Faults,
}

impl MemoryLog {
    /// An empty log.
    pub fn new(faults: Faults) -> Self {
        Self { media: Arc::default(), faults }
    }

    /// Loses the appends since the last sync for which `survives` is false. They become zeros if later ones survive.
    pub fn lose_power(&self, survives: impl FnMut() -> bool) {
        self.media.lock().lose_power(survives);
    }

    /// The current content, without faults.
    pub fn content(&self) -> Vec<u8> {
        self.media.lock().now.to_vec()
    }

    /// Changes the content, as a failing device or another program would.
    pub fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let media = &mut *self.media.lock();
        let mut bytes = media.now.to_vec();
        change(&mut bytes);
        media.now = Sparse::default();
        media.now.put(0, &bytes);
        media.settle();
    }
}

impl AppendFile for MemoryLog {
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>> {
        let log = self.clone();
        async move {
            Later::default().await;
            let size = match log.faults.next() {
                FaultOutcome::Whole => bytes.len(),
                FaultOutcome::Torn => bytes.len() / 2,
                FaultOutcome::Dead => 0,
            };
            let media = &mut *log.media.lock();
            media.write(media.now.size, &bytes[..size]);
            if size == bytes.len() { Ok(()) } else { Err(injected()) }
        }
        .boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        let log = self.clone();
        async move {
            Later::default().await;
            if log.faults.next() != FaultOutcome::Whole {
                return Err(injected());
            }
            log.media.lock().sync();
            Ok(())
        }
        .boxed()
    }

    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>> {
        let log = self.clone();
        async move { Ok(log.content()) }.boxed()
    }

    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>> {
        let log = self.clone();
        async move {
            Later::default().await;
            if log.faults.next() != FaultOutcome::Whole {
                return Err(injected());
            }
            let media = &mut *log.media.lock();
            media.now.resize(size as usize);
            media.settle();
            Ok(())
        }
        .boxed()
    }
}
