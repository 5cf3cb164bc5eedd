//! Having the kernel forget what it has cached of a file that another node has changed.
//!
//! To drop a file's pages, the kernel waits for reads of them that are under way, which this agent must answer: so
//! it is told by a thread that does nothing else, never by one that serves requests. Attributes are dropped without
//! waiting.

use fuser::{INodeNo, Notifier};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use tameike_client::vfs::{HandleNumber, Vfs};
use tameike_core::{Fault, Generation, Result};
use tameike_io::os::process;
use tameike_io::os::runtime::{Resolver, promise};

/// An offset that stands for no page.
const ATTRIBUTES_ONLY: i64 = -1;

struct Dropped {
    file: INodeNo,
    done: Resolver<io::Result<()>>,
}

/// What the kernel has cached of one view.
#[derive(Clone, Default)]
pub(super) struct KernelCache(Arc<OnceLock<(Notifier, Sender<Dropped>)>>);

impl KernelCache {
    /// Says how the kernel is told; before, it has nothing cached.
    pub(super) fn attach(&self, notifier: Notifier) -> Result<()> {
        let (sender, receiver) = channel::<Dropped>();
        let pages = notifier.clone();
        process::start_thread("tameike-pages", move || {
            for Dropped { file, done } in receiver {
                done.resolve(pages.inval_inode(file, 0, 0));
            }
        })?;
        // It is called once.
        let _ = self.0.set((notifier, sender));
        Ok(())
    }

    /// Drops what [`Vfs::revalidate`] found to be stale, and attributes in any case.
    pub(super) async fn drop_stale<V: Vfs>(
        &self,
        vfs: &V,
        file: INodeNo,
        handle: HandleNumber,
        stale: Option<Generation>,
    ) -> Result<()> {
        let dropped = self.drop_file(file, stale.is_some()).await;
        dropped
            .map_err(|error| Fault::from_os("having the kernel drop what it has cached of a file", &error))?;
        stale.into_iter().for_each(|generation| vfs.pages_dropped(handle, generation));
        Ok(())
    }

    /// Drops attributes and, if they are `stale`, pages of a file.
    async fn drop_file(&self, file: INodeNo, stale: bool) -> io::Result<()> {
        let Some((notifier, sender)) = self.0.get() else { return Ok(()) };
        if !stale {
            return notifier.inval_inode(file, ATTRIBUTES_ONLY, 0);
        }
        let (done, dropped) = promise();
        sender.send(Dropped { file, done }).map_err(io::Error::other)?;
        dropped.await
    }
}
