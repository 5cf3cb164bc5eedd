//! Having the kernel forget what it has cached of a file that another node has changed.
//!
//! To drop a file's pages, the kernel waits for reads of them that are under way, which this agent must answer: so
//! it is told by a thread that does nothing else, never by one that serves requests.
//!
//! It is told once for each version, and one request at a time: attributes that arrive while it is told anything of the file
//! are not taken, and the program that asked for them goes by the old size.

use fuser::{INodeNo, Notifier};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use tameike_client::vfs::{HandleNumber, Vfs};
use tameike_core::{Fault, Generation, Result};
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
pub(crate) struct KernelCache(Arc<OnceLock<Sender<Order>>>);

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
        let _ = self.0.set(sender);
        Ok(())
    }

    /// Drops attributes and pages of a file that [`Vfs::revalidate`] found to be older than `stale`.
    pub(super) async fn drop_stale<V: Vfs>(
        &self,
        vfs: &Arc<V>,
        file: INodeNo,
        handle: HandleNumber,
        stale: Option<Generation>,
    ) -> Result<()> {
        let Some(generation) = stale else { return Ok(()) };
        let vfs = vfs.clone();
        self.order(move |notifier| {
            if vfs.has_pages_before(handle, generation) {
                notifier.inval_inode(file, 0, 0)?;
                vfs.pages_dropped(handle, generation);
            }
            Ok(())
        })
        .await
    }

    /// Drops attributes of a file, if the kernel has any.
    pub(crate) async fn drop_attributes(&self, file: INodeNo) -> Result<()> {
        self.order(move |notifier| match notifier.inval_inode(file, ATTRIBUTES_ONLY, 0) {
            // It knows nothing of the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            dropped => dropped,
        })
        .await
    }

    /// Has the thread do something, and waits for it.
    async fn order(&self, work: impl FnOnce(&Notifier) -> io::Result<()> + Send + 'static) -> Result<()> {
        let Some(sender) = self.0.get() else { return Ok(()) };
        let (work, (done, dropped)) = (Box::new(work), promise());
        let failed = |error| Fault::from_os("having the kernel drop what it has cached of a file", &error);
        sender.send(Order { work, done }).map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        dropped.await.map_err(failed)
    }
}
