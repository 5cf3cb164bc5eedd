//! Invalidates the kernel's cached attributes and pages of files that another node, the ring or a direct write has changed.
//!
//! To drop pages of a file, the kernel waits for reads of them in flight, which this agent must serve. A separate thread therefore
//! sends invalidations, never one that serves requests.
//!
//! It invalidates once per generation, one request at a time: the kernel ignores attributes that arrive during an invalidation of
//! the file, and the program that requested them sees the old size.
//!
//! For a write through a direct handle, the kernel drops the pages at most before it sends the write (Linux 6.18 also after it). A
//! concurrent read may bring old pages back. After the write and before its reply, the agent therefore drops them again if a handle
//! that reads through the page cache is open. If none is, the next open keeps no pages.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode, Opened, Vfs};
use tameike_core::{Fault, Generation, Result};
use tameike_fuse::Notifier;
use tameike_io::os::process;
use tameike_io::os::runtime::{Resolver, promise};

/// Offset in `FUSE_NOTIFY_INVAL_INODE` that invalidates attributes only.
const ATTRIBUTES_ONLY: i64 = -1;

type Work = Box<dyn FnOnce(&Notifier) -> io::Result<()> + Send>;

/// Task of the invalidation thread.
struct Order {
    work: Work,
    done: Resolver<io::Result<()>>,
}

/// The kernel's cache of one view.
#[derive(Clone, Default)]
pub(crate) struct KernelCache(Arc<Inner>);

#[derive(Default)]
struct Inner {
    orders: OnceLock<Sender<Order>>,
    /// The kernel keeps mappings of files with direct handles coherent.
    maps_direct: AtomicBool,
    /// Open handles that use the page cache, by file.
    handles: Mutex<BTreeSet<(u64, HandleNumber)>>,
}

impl KernelCache {
    /// Starts the invalidation thread. Before, the kernel has nothing cached.
    pub(super) fn attach(&self, notifier: Notifier) -> Result<()> {
        let (sender, receiver) = channel::<Order>();
        process::start_thread("tameike-pages", move || {
            for Order { work, done } in receiver {
                done.resolve(work(&notifier));
            }
        })?;
        // Called once.
        let _ = self.0.orders.set(sender);
        Ok(())
    }

    /// Drops attributes and pages of a file if they are older than generation `stale`, which `Locking::revalidate` returned.
    pub(super) async fn drop_stale<V: Vfs>(
        &self,
        vfs: &Arc<V>,
        file: FileNumber,
        handle: HandleNumber,
        stale: Option<Generation>,
    ) -> Result<()> {
        let Some(generation) = stale else { return Ok(()) };
        let vfs = vfs.clone();
        self.order(move |notifier| {
            if vfs.has_pages_before(handle, generation) {
                notifier.invalidate(file.0, 0, 0)?;
                vfs.pages_dropped(handle, generation);
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn drop_attributes(&self, file: FileNumber) -> Result<()> {
        self.drop_known(file, ATTRIBUTES_ONLY).await
    }

    pub(crate) async fn drop_all(&self, file: FileNumber) -> Result<()> {
        self.drop_known(file, 0).await
    }

    async fn drop_known(&self, file: FileNumber, offset: i64) -> Result<()> {
        self.order(move |notifier| match notifier.invalidate(file.0, offset, 0) {
            // The kernel has not cached the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            dropped => dropped,
        })
        .await
    }

    pub(super) fn maps_direct(&self) {
        self.0.maps_direct.store(true, Ordering::Relaxed);
    }

    /// Registers a handle, and decides whether the kernel keeps pages. Only after the registration is this decision reliable: a
    /// concurrent direct write either sees the handle, or is seen here.
    pub(super) fn opened<V: Vfs>(&self, vfs: &V, file: FileNumber, mode: OpenMode, opened: Opened) -> Opened {
        // Readers may map the file. Older kernels refuse mappings of direct handles, or do not keep them coherent.
        let direct =
            opened.direct && (mode.append || !mode.read || self.0.maps_direct.load(Ordering::Relaxed));
        if direct {
            return Opened { direct, ..opened };
        }
        self.0.handles.lock().insert((file.0, opened.handle));
        Opened { direct, keep_cache: opened.keep_cache && vfs.keeps_pages(opened.handle), ..opened }
    }

    pub(super) fn closed(&self, file: FileNumber, handle: HandleNumber) {
        self.0.handles.lock().remove(&(file.0, handle));
    }

    /// Returns whether a handle bypasses the page cache.
    pub(super) fn is_direct(&self, file: FileNumber, handle: HandleNumber) -> bool {
        !self.0.handles.lock().contains(&(file.0, handle))
    }

    /// Returns whether the file has handles that use the page cache.
    pub(super) fn is_used(&self, file: FileNumber) -> bool {
        let of_file = (file.0, HandleNumber(0))..=(file.0, HandleNumber(u64::MAX));
        self.0.handles.lock().range(of_file).next().is_some()
    }

    pub(super) async fn drop_bytes(&self, file: FileNumber, offset: u64, length: u32) -> Result<()> {
        self.order(move |notifier| notifier.invalidate(file.0, offset as i64, length.into())).await
    }

    /// Runs a task on the invalidation thread, and waits for it.
    async fn order(&self, work: impl FnOnce(&Notifier) -> io::Result<()> + Send + 'static) -> Result<()> {
        let Some(sender) = self.0.orders.get() else { return Ok(()) };
        let (work, (done, dropped)) = (Box::new(work), promise());
        let failed = |error| Fault::from_os("invalidating the kernel's cache of a file", &error);
        sender.send(Order { work, done }).map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        dropped.await.map_err(failed)
    }
}
