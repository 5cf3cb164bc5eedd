//! Serves a directory tree through FUSE, without a job (`tameike mount`).

use crate::arbiter::Arbiter;
use crate::fuse::{self, FuseFrontend, Tasks, WriteBacklog};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_client::local::LocalView;
use tameike_core::{Fault, Result};
use tameike_io::os::system::System;
use tameike_io::shared::SharedFs;

const BLOCKING_THREADS_MAX: usize = 4;
/// Size of the write backlog in bytes; a read-only tree does not use it.
const BACKLOG_SIZE: usize = 1 << 20;

/// Serves a tree through an open `/dev/fuse` until it is unmounted. Blocks. If the tree `is_unchanging`, the kernel caches names,
/// attributes and pages.
pub fn serve_tree(tree: Arc<dyn SharedFs>, is_unchanging: bool, fuse: OwnedFd) -> Result<()> {
    let system = System::start(BLOCKING_THREADS_MAX)
        .map_err(|error| Fault::from_os("starting the threads of a mount", &error))?;
    let runtime = system.runtime();
    let view = Arc::new(LocalView::new(runtime.clone(), tree, 0));
    let tasks = Tasks::new(runtime.clone(), None, fuse::THREADS_BLOCKED_MAX);
    let arbiter = Arbiter::new(runtime.clone(), is_unchanging);
    let frontend = FuseFrontend::new(tasks, view, WriteBacklog::new(BACKLOG_SIZE), arbiter);
    fuse::serve(frontend, fuse, None)
}
