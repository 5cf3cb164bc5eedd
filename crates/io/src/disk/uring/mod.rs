//! A disk on a file by `O_DIRECT`, through an io_uring that the agent's reactor watches.
//!
//! The device transfers directly from and to the frames, which are registered with the kernel if the user may lock that much
//! memory. No thread waits for the device, and none wakes up while the disk is idle. [`Runtime::block`] runs syncs, requests that
//! the kernel cannot start without waiting (such as a write to a hole, on most file systems), and the rest of partial transfers.
//! A thread that may block makes the calls itself, which saves both switches.
//!
//! Calls that are not of whole blocks are not supported. There is a single descriptor, so that no data of the file can be stale
//! in the page cache.

mod driver;
mod ring;
#[cfg(test)]
mod tests;

use super::Disk;
use super::file::FileDisk;
use crate::Runtime;
use crate::os::inline_blocking;
use crate::os::reactor::{Reactor, Registration};
use crate::os::runtime::promise;
use crate::slab::{Frame, Payload, Slab};
use driver::Driver;
use futures_util::future::{BoxFuture, FutureExt};
use ring::{Request, Ring};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::Result;

/// Bound on the requests in the ring; more are queued here.
const QUEUE_DEPTH: u32 = 32;

/// What a disk needs for `O_DIRECT` by io_uring.
#[derive(Clone)]
pub struct Direct {
    /// Watches the ring.
    pub reactor: Arc<Reactor>,
    /// The frames that are read and written.
    pub slab: Arc<Slab>,
}

/// Checks that this user can create an io_uring.
pub fn available() -> std::result::Result<(), String> {
    ring::build(QUEUE_DEPTH).map(drop)
}

/// A disk on a file by `O_DIRECT`.
pub(super) struct UringDisk {
    file: FileDisk,
    driver: Arc<Driver>,
    _registration: Registration,
}

impl UringDisk {
    /// Opens a disk on `file`.
    pub(super) fn open(
        file: &FileDisk,
        direct: &Direct,
        runtime: &Runtime,
    ) -> std::result::Result<Self, String> {
        Self::with_depth(file, direct, runtime, QUEUE_DEPTH)
    }

    fn with_depth(
        file: &FileDisk,
        direct: &Direct,
        runtime: &Runtime,
        depth: u32,
    ) -> std::result::Result<Self, String> {
        let ring = Ring::new(file.descriptor(), depth)?;
        let (driver, registration) =
            Driver::new(ring, &direct.reactor).map_err(|error| format!("cannot watch the ring ({error})"))?;
        file.pass_page_cache()?;
        driver.register(&direct.slab);
        runtime.spawn(driver.clone().run(runtime.clone()));
        Ok(Self { file: file.clone(), driver, _registration: registration })
    }
}

impl Disk for UringDisk {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn is_new(&self) -> bool {
        self.file.is_new()
    }

    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)> {
        super::assert_whole_blocks(offset, &range);
        if inline_blocking::is_taken() {
            return self.file.fetch(offset, frame, range);
        }
        let (resolver, ended) = promise();
        self.driver.enqueue(Request::Read { offset, frame, range: range.clone(), resolver });
        let file = self.file.clone();
        async move {
            let (frame, outcome) = ended.await;
            match outcome {
                Ok(done) if done == range.end - range.start => (frame, Ok(())),
                Ok(done) => file.fetch(offset + u64::from(done), frame, range.start + done..range.end).await,
                Err(error) => (frame, Err(file.fault("read", error))),
            }
        }
        .boxed()
    }

    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        super::assert_whole_blocks(offset, &payload.range());
        if inline_blocking::is_taken() {
            return self.file.store(offset, payload);
        }
        let (resolver, ended) = promise();
        self.driver.enqueue(Request::Write { offset, payload: payload.clone(), resolver });
        let file = self.file.clone();
        async move {
            let size = payload.len() as u32;
            match ended.await {
                Ok(done) if done == size => Ok(()),
                Ok(done) => file.store(offset + u64::from(done), payload.slice(done..size)).await,
                Err(error) => Err(file.fault("write", error)),
            }
        }
        .boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.file.sync()
    }

    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.file.allocate(range)
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.file.discard(range)
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        self.driver.close();
    }
}
