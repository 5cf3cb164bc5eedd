//! The state of a FUSE frontend, and operations that several requests share.

use super::WriteBacklog;
use super::answer::{answer_done, answer_entry};
use super::directories::Directories;
use super::open_ahead::OpenAhead;
use super::recent_lookups::RecentLookups;
use super::tasks::{InFlight, Tasks};
use crate::arbiter::Arbiter;
use crate::kernel_cache::KernelCache;
use futures_util::FutureExt;
use std::sync::Arc;
use tameike_client::reported_sizes::ReportedSizes;
use tameike_client::vfs::{FileNumber, Vfs};
use tameike_core::Result;
use tameike_core::wire::meta::NewInode;
use tameike_fuse::Reply;
use tameike_io::os::process;

/// From this version on, the kernel drops pages again after a direct write, so that mappings stay coherent.
const DROPS_AFTER_WRITE: (u32, u32) = (6, 18);

/// Serves one view through one FUSE mount.
pub struct FuseFrontend<V> {
    pub(super) tasks: Tasks,
    pub(super) vfs: Arc<V>,
    pub(super) backlog: WriteBacklog,
    pub(super) arbiter: Arc<Arbiter>,
    pub(super) open_ahead: OpenAhead,
    pub(super) recent_lookups: Arc<RecentLookups>,
    pub(super) directories: Arc<Directories>,
    pub(super) reported_sizes: Arc<ReportedSizes>,
    /// Writes through handles that allow mappings use the page cache.
    pub(crate) coherent_mmap: bool,
    /// The kernel's thread numbers are those of this process's PID namespace.
    pub(crate) sees_threads: bool,
}

impl<V: Vfs> FuseFrontend<V> {
    /// Creates a frontend of `vfs`, whose writes wait in `backlog`.
    pub(crate) fn new(tasks: Tasks, vfs: Arc<V>, backlog: WriteBacklog, arbiter: Arc<Arbiter>) -> Self {
        let open_ahead = OpenAhead::new(tasks.runtime().clone());
        let (recent_lookups, directories, reported_sizes) = Default::default();
        Self {
            tasks,
            vfs,
            backlog,
            arbiter,
            open_ahead,
            recent_lookups,
            directories,
            reported_sizes,
            coherent_mmap: false,
            sees_threads: true,
        }
    }

    /// Counts requests from now on.
    pub(crate) fn count_requests(&mut self) -> Arc<InFlight> {
        self.tasks.count()
    }

    pub(super) fn kernel_cache(&self) -> KernelCache {
        self.arbiter.kernel().clone()
    }

    /// Takes the result of the FUSE handshake: `maps_direct` if the kernel allows mappings of direct handles.
    pub(super) fn set_maps_direct(&self, maps_direct: bool) {
        if maps_direct && !self.coherent_mmap && process::kernel_version() >= DROPS_AFTER_WRITE {
            self.arbiter.kernel().maps_direct();
        }
    }

    pub(super) fn make(&self, dir: FileNumber, name: &[u8], new: NewInode, reply: Reply) {
        let (vfs, arbiter, name) = (self.vfs.clone(), self.arbiter.clone(), name.to_vec());
        let directories = self.directories.clone();
        self.tasks.spawn(async move {
            let changes = arbiter.changes();
            let made = vfs.make(dir, &name, new).await;
            if let Ok(made) = &made {
                directories.record(made.file, &made.attr);
            }
            answer_entry(reply, made, &arbiter, changes);
        });
    }

    /// Makes the names of a directory durable, unless it is removed.
    pub(super) fn sync_directory(&self, file: FileNumber, reply: Reply) {
        let directories = self.directories.clone();
        self.run(reply, move |vfs| async move {
            let synced = vfs.fsync_dir(file).await;
            if directories.is_removed(file, &synced) { Ok(()) } else { synced }
        });
    }

    pub(super) fn run<F>(&self, reply: Reply, operation: impl FnOnce(Arc<V>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let done = operation(self.vfs.clone());
        self.tasks.spawn(done.map(|done| answer_done(reply, done)));
    }
}
