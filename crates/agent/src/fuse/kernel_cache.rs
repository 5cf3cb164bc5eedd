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

type Work = Box<dyn FnOnce(&Notifier) -> io::Result<()> + Send>;

/// What the thread is to do.
struct Order {
    work: Work,
    done: Resolver<io::Result<()>>,
}

/// What the kernel has cached of one view.
#[derive(Clone, Default)]
pub(super) struct KernelCache(Arc<OnceLock<Sender<Order>>>);

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
        let (Some(generation), Some(sender)) = (stale, self.0.get()) else { return Ok(()) };
        let vfs = vfs.clone();
        let work = Box::new(move |notifier: &Notifier| {
            if vfs.has_pages_before(handle, generation) {
                notifier.inval_inode(file, 0, 0)?;
                vfs.pages_dropped(handle, generation);
            }
            Ok(())
        });
        let (done, dropped) = promise();
        let failed = |error| Fault::from_os("having the kernel drop what it has cached of a file", &error);
        sender.send(Order { work, done }).map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        dropped.await.map_err(failed)
    }
}
