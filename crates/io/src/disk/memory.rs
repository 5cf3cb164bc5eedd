//! Disk and log in memory, for tests and simulated clusters: they can fail, tear and lose power at will.
//!
//! Every call takes effect only when its future is polled a second time, so that calls in flight overlap as
//! they do on a real disk.

use super::{AppendFile, Disk};
use crate::slab::{Frame, Payload};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tameike_core::{Fault, Result};

/// A countdown shared by disks that fail together, as the disks of one machine do.
///
/// The call that meets zero takes effect in part and fails; all later calls fail without effect.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Option<u64>>>);

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs.
    Whole,
    /// It takes effect in part, and fails.
    Torn,
    /// It fails.
    Dead,
}

impl Faults {
    /// Lets `calls` more calls run.
    pub fn after(&self, calls: u64) {
        *self.0.lock() = Some(calls + 1);
    }

    /// Lets all calls run.
    pub fn none(&self) {
        *self.0.lock() = None;
    }

    /// Counts one call.
    pub fn next(&self) -> Fate {
        match &mut *self.0.lock() {
            None => Fate::Whole,
            Some(0) => Fate::Dead,
            Some(left) => {
                *left -= 1;
                if *left == 0 { Fate::Torn } else { Fate::Whole }
            }
        }
    }
}

fn injected() -> Fault {
    Fault::io("injected failure")
}

/// Ready at the second poll.
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

/// Bytes now, bytes that survive power loss, and the writes between them.
#[derive(Default)]
struct Media {
    now: Vec<u8>,
    safe: Vec<u8>,
    unsafe_writes: Vec<(usize, Vec<u8>)>,
}

fn put(target: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if target.len() < offset + bytes.len() {
        target.resize(offset + bytes.len(), 0);
    }
    target[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl Media {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        put(&mut self.now, offset, bytes);
        self.unsafe_writes.push((offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.safe.clone_from(&self.now);
        self.unsafe_writes.clear();
    }

    fn lose_power(&mut self, mut survives: impl FnMut() -> bool) {
        for (offset, bytes) in std::mem::take(&mut self.unsafe_writes) {
            if survives() {
                put(&mut self.safe, offset, &bytes);
            }
        }
        self.now.clone_from(&self.safe);
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
        let media = Media { now: vec![0; size], safe: vec![0; size], unsafe_writes: Vec::new() };
        Self { media: Arc::new(Mutex::new(media)), faults }
    }

    /// Loses the writes since the last sync for which `survives` says no.
    pub fn lose_power(&self, survives: impl FnMut() -> bool) {
        self.media.lock().lose_power(survives);
    }

    /// Turns one bit.
    pub fn damage(&self, offset: usize) {
        let media = &mut *self.media.lock();
        media.now[offset] ^= 1;
        media.safe[offset] ^= 1;
    }
}

impl Disk for MemoryDisk {
    fn size(&self) -> u64 {
        self.media.lock().now.len() as u64
    }

    fn read(
        &self,
        offset: u64,
        mut frame: Frame,
        range: Range<u32>,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() != Fate::Whole {
                return (frame, Err(injected()));
            }
            let offset = offset as usize;
            frame[range.start as usize..range.end as usize]
                .copy_from_slice(&disk.media.lock().now[offset..offset + range.len()]);
            (frame, Ok(()))
        }
        .boxed()
    }

    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        let disk = self.clone();
        async move {
            Later::default().await;
            let size = match disk.faults.next() {
                Fate::Whole => payload.len(),
                Fate::Torn => payload.len() / 2,
                Fate::Dead => 0,
            };
            let media = &mut *disk.media.lock();
            assert!(offset as usize + payload.len() <= media.now.len(), "a write lies on the disk");
            media.write(offset as usize, &payload[..size]);
            if size == payload.len() { Ok(()) } else { Err(injected()) }
        }
        .boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() != Fate::Whole {
                return Err(injected());
            }
            disk.media.lock().sync();
            Ok(())
        }
        .boxed()
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        let disk = self.clone();
        async move {
            Later::default().await;
            if disk.faults.next() != Fate::Whole {
                return Err(injected());
            }
            let media = &mut *disk.media.lock();
            let range = range.start as usize..range.end as usize;
            media.now[range.clone()].fill(0xDD);
            media.safe[range].fill(0xDD);
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

    /// Loses the appends since the last sync for which `survives` says no; zeros stand in their place when
    /// later ones survive.
    pub fn lose_power(&self, survives: impl FnMut() -> bool) {
        self.media.lock().lose_power(survives);
    }

    /// Changes the content as a failing device or a meddling person would.
    pub fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let media = &mut *self.media.lock();
        change(&mut media.now);
        media.sync();
    }
}

impl AppendFile for MemoryLog {
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>> {
        let log = self.clone();
        async move {
            Later::default().await;
            let size = match log.faults.next() {
                Fate::Whole => bytes.len(),
                Fate::Torn => bytes.len() / 2,
                Fate::Dead => 0,
            };
            let media = &mut *log.media.lock();
            media.write(media.now.len(), &bytes[..size]);
            if size == bytes.len() { Ok(()) } else { Err(injected()) }
        }
        .boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        let log = self.clone();
        async move {
            Later::default().await;
            if log.faults.next() != Fate::Whole {
                return Err(injected());
            }
            log.media.lock().sync();
            Ok(())
        }
        .boxed()
    }

    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>> {
        let log = self.clone();
        async move { Ok(log.media.lock().now.clone()) }.boxed()
    }

    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>> {
        let log = self.clone();
        async move {
            Later::default().await;
            if log.faults.next() != Fate::Whole {
                return Err(injected());
            }
            let media = &mut *log.media.lock();
            media.now.truncate(size as usize);
            media.sync();
            Ok(())
        }
        .boxed()
    }
}
