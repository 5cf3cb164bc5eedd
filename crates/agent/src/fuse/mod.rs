//! The FUSE frontend: serves the kernel's requests to one view.
//!
//! The thread that reads a request decodes it and polls its future first, so that requests that need not wait complete without a
//! thread switch. It also makes calls to the file system behind the view, as long as other threads are left to read requests. The
//! thread that receives the last reply completes a request that waits.
//!
//! The reading thread copies writes into frames. If no frame is free, a write waits with a copy of its data in the [`WriteBacklog`].
//! If that is full, the reading thread waits, and finally the whole view: this is the backpressure on programs.
//!
//! Caching by the kernel follows from close-to-open consistency:
//!
//! - The kernel looks names of files up each time.
//! - It caches names of directories, and attributes, for [`DIRECTORY_LIFETIME`], which ends before another node's call that changes
//!   the directory returns. Only calls on open descriptors of files see attributes that old, as each path walk refreshes them.
//! - It caches pages until an open finds another generation. Write-only handles bypass pages.
//! - There is no write-back cache: byte ranges, never pages, leave the node.

mod answer;
mod backlog;
mod convert;
mod directories;
mod lists;
mod lock;
mod open_ahead;
mod opening;
mod recent_lookups;
mod service;
mod state;
mod tasks;
mod writing;

pub use backlog::WriteBacklog;
pub use state::FuseFrontend;
pub use tasks::Tasks;

pub(crate) use convert::open_mode;
pub(crate) use tasks::InFlight;

use std::os::fd::OwnedFd;
use std::time::Duration;
use tameike_client::vfs::{OpenMode, Opened, Vfs};
use tameike_core::Result;
use tameike_core::limits::DIRECTORY_LIFETIME;
use tameike_fuse::abi::{Init, open_flag};
use tameike_fuse::{Session, Settings};
use tameike_io::Pool;

/// Time for which the kernel caches attributes and names of directories, so that path walks look up the last name only.
const ATTRIBUTE_LIFETIME: Duration = DIRECTORY_LIFETIME;
/// Time for which the kernel caches other names.
const NAME_LIFETIME: Duration = Duration::ZERO;
/// Time for which the kernel caches names and attributes of a view that never changes.
const UNCHANGING_LIFETIME: Duration = Duration::from_secs(86_400);
/// Threads that read requests of one view.
pub(crate) const THREADS_PER_VIEW: usize = 4;
/// Of these, the number that calls to the file system behind the view may block; the others continue to read requests.
pub(crate) const THREADS_BLOCKED_MAX: usize = THREADS_PER_VIEW / 2;
/// Largest read and write request, and the kernel's readahead, in bytes.
const REQUEST_SIZE_MAX: u32 = 1 << 20;

/// Serves a mounted view until it is unmounted. Blocks. Uses io_uring with frames of `rings`, if given and available.
pub fn serve<V: Vfs>(frontend: FuseFrontend<V>, fuse: OwnedFd, rings: Option<Pool>) -> Result<()> {
    begin(&frontend, fuse, Serving { threads: THREADS_PER_VIEW, rings, checks_permissions: false })?
        .run(frontend)
}

/// How a mount is served.
pub(crate) struct Serving {
    /// Threads that read requests.
    pub threads: usize,
    /// Frames for io_uring; `None` if requests shall arrive through the device.
    pub rings: Option<Pool>,
    /// Another user may have mounted without `default_permissions`: the kernel must check permissions all the same.
    pub checks_permissions: bool,
}

/// Answers the first request of a mount. [`Session::run`] then serves the others.
pub(crate) fn begin<V: Vfs>(frontend: &FuseFrontend<V>, fuse: OwnedFd, serving: Serving) -> Result<Session> {
    let Serving { threads, rings, checks_permissions } = serving;
    let keeps_locks = frontend.vfs.locks().is_some();
    let init = Init { request_size: REQUEST_SIZE_MAX, keeps_locks, checks_permissions };
    let session = Session::start(fuse, Settings { init, threads, rings })?;
    frontend.set_maps_direct(session.maps_direct());
    frontend.arbiter.kernel().attach(session.notifier())?;
    Ok(session)
}

/// `keeps_locks`: the view implements locks, and needs a flush at every close, which releases them.
fn open_flags(opened: Opened, mode: OpenMode, keeps_locks: bool) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    // A handle that cannot write has nothing to flush at close.
    flag(!mode.write && !keeps_locks, open_flag::NO_FLUSH)
        | flag(opened.keep_cache, open_flag::KEEP_CACHE)
        | flag(opened.direct, open_flag::DIRECT_IO)
}
