//! What a door is made of, and what its requests share.

use super::WaitingRoom;
use super::ahead::OpenAhead;
use super::answer::{answer_done, answer_entry};
use super::directories::Directories;
use super::looked::Looked;
use super::tasks::Tasks;
use crate::custody::Custody;
use crate::kernel_cache::KernelCache;
use futures_util::FutureExt;
use std::sync::Arc;
use tameike_client::reported_sizes::ReportedSizes;
use tameike_client::vfs::{FileNumber, Vfs};
use tameike_core::Result;
use tameike_core::wire::meta::NewInode;
use tameike_fuse::Reply;
use tameike_io::os::process;

/// A kernel of this version drops pages once more after a write past them, so that mappings stay true.
const DROPS_AFTER_WRITE: (u32, u32) = (6, 18);

/// One view behind one FUSE mount.
pub struct FuseDoor<V> {
    pub(super) tasks: Tasks,
    pub(super) vfs: Arc<V>,
    pub(super) waiting: WaitingRoom,
    pub(super) custody: Arc<Custody>,
    pub(super) ahead: OpenAhead,
    pub(super) looked: Arc<Looked>,
    pub(super) directories: Arc<Directories>,
    pub(super) reported_sizes: Arc<ReportedSizes>,
    /// All that is written by who can map a file goes through the kernel's pages.
    pub(crate) coherent_mmap: bool,
}

impl<V: Vfs> FuseDoor<V> {
    /// A door to `vfs`, whose writes wait in `waiting`, and which has the files that `custody` says.
    pub(crate) fn new(tasks: Tasks, vfs: Arc<V>, waiting: WaitingRoom, custody: Arc<Custody>) -> Self {
        let ahead = OpenAhead::new(tasks.runtime().clone());
        let (looked, directories, reported_sizes) = Default::default();
        Self {
            tasks,
            vfs,
            waiting,
            custody,
            ahead,
            looked,
            directories,
            reported_sizes,
            coherent_mmap: false,
        }
    }

    pub(super) fn kernel_cache(&self) -> KernelCache {
        self.custody.kernel().clone()
    }

    /// The kernel and we have agreed on what both can.
    pub(super) fn agreed(&self, maps_direct: bool) {
        if maps_direct && !self.coherent_mmap && process::kernel_version() >= DROPS_AFTER_WRITE {
            self.custody.kernel().maps_direct();
        }
    }

    /// Makes a name with a new inode, and answers.
    pub(super) fn make(&self, dir: FileNumber, name: &[u8], new: NewInode, reply: Reply) {
        let (vfs, custody, name) = (self.vfs.clone(), self.custody.clone(), name.to_vec());
        let directories = self.directories.clone();
        self.tasks.spawn(async move {
            let changes = custody.changes();
            let made = vfs.make(dir, &name, new).await;
            if let Ok(made) = &made {
                directories.record(made.file, &made.attr);
            }
            answer_entry(reply, made, &custody, changes);
        });
    }

    /// Makes the names of a directory safe, unless it is removed.
    pub(super) fn sync_directory(&self, file: FileNumber, reply: Reply) {
        let directories = self.directories.clone();
        self.run(reply, move |vfs| async move {
            let synced = vfs.fsync_dir(file).await;
            if directories.is_removed(file, &synced) { Ok(()) } else { synced }
        });
    }

    /// Runs an operation that is answered by success alone.
    pub(super) fn run<F>(&self, reply: Reply, operation: impl FnOnce(Arc<V>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let done = operation(self.vfs.clone());
        self.tasks.spawn(done.map(|done| answer_done(reply, done)));
    }
}
