//! What a door is made of, and what its requests share.

use super::ahead::OpenAhead;
use super::answer::answer_entry;
use super::convert::{errno, file};
use super::kernel_cache::KernelCache;
use super::rights::Rights;
use super::tasks::Tasks;
use super::{REQUEST_SIZE_MAX, WaitingRoom};
use fuser::{INodeNo, InitFlags, KernelConfig, ReplyEmpty, ReplyEntry};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use tameike_client::vfs::Vfs;
use tameike_core::Result;
use tameike_core::wire::meta::NewInode;
use tameike_io::os::process;

/// A kernel of this version drops pages once more after a write past them, so that mappings stay true.
const DROPS_AFTER_WRITE: (u32, u32) = (6, 18);

/// One view behind one FUSE mount.
pub struct FuseDoor<V> {
    pub(super) tasks: Tasks,
    pub(super) vfs: Arc<V>,
    pub(super) waiting: WaitingRoom,
    pub(super) kernel: KernelCache,
    pub(super) rights: Rights,
    pub(super) ahead: OpenAhead,
}

impl<V: Vfs> FuseDoor<V> {
    /// A door to `vfs`, whose writes wait in `waiting`.
    pub fn new(tasks: Tasks, vfs: Arc<V>, waiting: WaitingRoom) -> Self {
        let ahead = OpenAhead::new(tasks.runtime().clone());
        let (kernel, rights) = (KernelCache::default(), Rights::default());
        Self { tasks, vfs, waiting, kernel, rights, ahead }
    }

    pub(super) fn kernel_cache(&self) -> KernelCache {
        self.kernel.clone()
    }

    /// Makes a name with a new inode, and answers.
    pub(super) fn make(&self, dir: INodeNo, name: &OsStr, new: NewInode, reply: ReplyEntry) {
        let (vfs, name) = (self.vfs.clone(), name.as_bytes().to_vec());
        self.tasks.spawn(async move {
            answer_entry(reply, vfs.make(file(dir), &name, new).await);
        });
    }

    /// Runs an operation that is answered by success alone.
    pub(super) fn run<F>(&self, reply: ReplyEmpty, operation: impl FnOnce(Arc<V>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let done = operation(self.vfs.clone());
        self.tasks.spawn(async move {
            match done.await {
                Ok(()) => reply.ok(),
                Err(fault) => reply.error(errno(&fault)),
            }
        });
    }

    /// Agrees with the kernel on what both can.
    pub(super) fn configure(&self, config: &mut KernelConfig) {
        for wanted in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ] {
            // An older kernel does without.
            let _ = config.add_capabilities(wanted);
        }
        let maps = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        if maps && process::kernel_version() >= DROPS_AFTER_WRITE {
            self.kernel.maps_direct();
        }
        if self.vfs.locks().is_some() {
            for wanted in [InitFlags::FUSE_POSIX_LOCKS, InitFlags::FUSE_FLOCK_LOCKS] {
                let _ = config.add_capabilities(wanted);
            }
        }
        for refused in [config.set_max_write(REQUEST_SIZE_MAX), config.set_max_readahead(REQUEST_SIZE_MAX)] {
            if let Err(nearest) = refused {
                log::info!("the kernel takes requests of {nearest} bytes at most");
            }
        }
    }
}
