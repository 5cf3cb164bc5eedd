//! A tree of files behind a mount of its own, without a job.

use crate::custody::Custody;
use crate::fuse::{self, FuseDoor, Tasks, WaitingRoom};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_client::local::LocalView;
use tameike_core::{Fault, Result};
use tameike_io::os::system::System;
use tameike_io::shared::SharedFs;

/// Threads for calls that may block.
const BLOCKING_THREADS_MAX: usize = 4;
/// Room for writes that wait, of which there are none in a tree that cannot be changed.
const WAITING_SIZE: usize = 1 << 20;

/// Serves a tree behind an open `/dev/fuse` until it is unmounted. If it `is_unchanging`, the kernel caches names, attributes and pages. Blocks.
///
/// # Errors
/// When the system has no threads left, or the kernel refuses the session.
pub fn serve_tree(tree: Arc<dyn SharedFs>, is_unchanging: bool, fuse: OwnedFd) -> Result<()> {
    let system = System::start(BLOCKING_THREADS_MAX)
        .map_err(|error| Fault::from_os("starting the threads of a mount", &error))?;
    let runtime = system.runtime();
    let view = Arc::new(LocalView::new(runtime.clone(), tree, 0));
    let tasks = Tasks::new(runtime.clone(), None, fuse::THREADS_LENT_MAX);
    let custody = match is_unchanging {
        true => Custody::of_unchanging(runtime.clone()),
        false => Custody::new(runtime.clone()),
    };
    let door = FuseDoor::new(tasks, view, WaitingRoom::new(WAITING_SIZE), custody);
    fuse::serve(door, fuse, None)
}
