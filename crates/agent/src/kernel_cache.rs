//! Having the kernel forget what it has cached of a file that another node has changed, or this one past its pages.
//!
//! To drop a file's pages, the kernel waits for reads of them that are under way, which this agent must answer: so
//! it is told by a thread that does nothing else, never by one that serves requests.
//!
//! It is told once for each version, and one request at a time: attributes that arrive while it is told anything of the file
//! are not taken, and the program that asked for them goes by the old size.
//!
//! A write through a direct handle has the kernel drop the pages of its bytes at most before it is sent (Linux 6.18 does it
//! after it, too): who reads them meanwhile brings old ones back. So they are dropped once more, when the bytes are written
//! and before the program is told, if a handle is open that reads through pages; and if none is, the next open keeps no pages.

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

/// An offset with which the kernel drops no pages.
const ATTRIBUTES_ONLY: i64 = -1;

type Work = Box<dyn FnOnce(&Notifier) -> io::Result<()> + Send>;

/// What the thread is to do.
struct Order {
    work: Work,
    done: Resolver<io::Result<()>>,
}

/// What the kernel has cached of one view.
#[derive(Clone, Default)]
pub(crate) struct KernelCache(Arc<Inner>);

#[derive(Default)]
struct Inner {
    orders: OnceLock<Sender<Order>>,
    /// Whether the kernel keeps mappings true of files that are open past its pages.
    maps_direct: AtomicBool,
    /// The open handles that read and write through the kernel's pages, by file.
    handles: Mutex<BTreeSet<(u64, HandleNumber)>>,
}

impl KernelCache {
    /// Says how the kernel is told; before, it has nothing cached.
    pub(super) fn attach(&self, notifier: Notifier) -> Result<()> {
        let (sender, receiver) = channel::<Order>();
        process::start_thread("tameike-pages", move || {
            for Order { work, done } in receiver {
                done.resolve(work(&notifier));
            }
        })?;
        // It is called once.
        let _ = self.0.orders.set(sender);
        Ok(())
    }

    /// Drops attributes and pages of a file that [`Locking::revalidate`](tameike_client::vfs::Locking::revalidate) found to be older than `stale`.
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

    /// Drops attributes of a file, if the kernel has any.
    pub(crate) async fn drop_attributes(&self, file: FileNumber) -> Result<()> {
        self.drop_known(file, ATTRIBUTES_ONLY).await
    }

    /// Drops attributes and pages of a file, if the kernel has any.
    pub(crate) async fn drop_all(&self, file: FileNumber) -> Result<()> {
        self.drop_known(file, 0).await
    }

    async fn drop_known(&self, file: FileNumber, offset: i64) -> Result<()> {
        self.order(move |notifier| match notifier.invalidate(file.0, offset, 0) {
            // It knows nothing of the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            dropped => dropped,
        })
        .await
    }

    /// The kernel keeps mappings true also of files that are open past its pages.
    pub(super) fn maps_direct(&self) {
        self.0.maps_direct.store(true, Ordering::Relaxed);
    }

    /// A handle was opened. Whether the kernel shall keep its pages is known only now, when a write past them has either
    /// seen this handle, or is seen here.
    pub(super) fn opened<V: Vfs>(&self, vfs: &V, file: FileNumber, mode: OpenMode, opened: Opened) -> Opened {
        // Who reads may map: an older kernel maps no direct handle, or mappings of one that are not seen here.
        let direct =
            opened.direct && (mode.append || !mode.read || self.0.maps_direct.load(Ordering::Relaxed));
        if direct {
            return Opened { direct, ..opened };
        }
        self.0.handles.lock().insert((file.0, opened.handle));
        Opened { direct, keep_cache: opened.keep_cache && vfs.keeps_pages(opened.handle), ..opened }
    }

    /// The last descriptor of a handle is gone.
    pub(super) fn closed(&self, file: FileNumber, handle: HandleNumber) {
        self.0.handles.lock().remove(&(file.0, handle));
    }

    /// Whether what goes through a handle passes by the kernel's pages.
    pub(super) fn is_direct(&self, file: FileNumber, handle: HandleNumber) -> bool {
        !self.0.handles.lock().contains(&(file.0, handle))
    }

    /// Whether there are handles of the file that read through the kernel's pages.
    pub(super) fn is_used(&self, file: FileNumber) -> bool {
        let of_file = (file.0, HandleNumber(0))..=(file.0, HandleNumber(u64::MAX));
        self.0.handles.lock().range(of_file).next().is_some()
    }

    /// Drops the pages of some bytes of a file.
    pub(super) async fn drop_bytes(&self, file: FileNumber, offset: u64, length: u32) -> Result<()> {
        self.order(move |notifier| notifier.invalidate(file.0, offset as i64, length.into())).await
    }

    /// Has the thread do something, and waits for it.
    async fn order(&self, work: impl FnOnce(&Notifier) -> io::Result<()> + Send + 'static) -> Result<()> {
        let Some(sender) = self.0.orders.get() else { return Ok(()) };
        let (work, (done, dropped)) = (Box::new(work), promise());
        let failed = |error| Fault::from_os("having the kernel drop what it has cached of a file", &error);
        sender.send(Order { work, done }).map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        dropped.await.map_err(failed)
    }
}
