//! The FUSE door: requests of the kernel to one view.
//!
//! A request is decoded, and its future polled for the first time, on the thread that read it; what need not
//! wait is answered there, without a hop. Calls to the file system behind the view are made there, too, as long as
//! other threads are left to read. What waits is answered by the thread that brings the last reply.
//! Writes are taken into frames on the reading thread. A write for which no frame is free waits with a copy of
//! its bytes, for which there is room in `--memory` ([`WaitingRoom`]); when that is full, the reading thread
//! waits, and with it in the end the view. That is the back-pressure on programs.
//!
//! Caching by the kernel follows from close-to-open: names of files are asked for anew each time; those of
//! directories, and attributes, live for [`DIRECTORY_LIFETIME`], which is over before another node's call that
//! changes the directory returns. Of files only calls on an open descriptor see attributes that old, since every
//! path walk refreshes them; pages live until an open finds another version, and what is only written passes them
//! by. There is no write-back cache: byte ranges, never pages, leave the node.

mod ahead;
mod answer;
mod convert;
mod directories;
mod door;
mod lists;
mod lock;
mod looked;
mod opening;
mod state;
mod tasks;
mod waiting;
mod writing;

pub use state::FuseDoor;
pub use tasks::Tasks;
pub use waiting::WaitingRoom;

use std::os::fd::OwnedFd;
use std::time::Duration;
use tameike_client::vfs::{OpenMode, Opened, Vfs};
use tameike_core::Result;
use tameike_core::limits::DIRECTORY_LIFETIME;
use tameike_fuse::abi::{Init, open_flag};
use tameike_fuse::{Session, Settings};
use tameike_io::Pool;

/// How long attributes may be shown without asking, and the name of a directory used: path walks then ask for the
/// last name only.
const ATTRIBUTE_LIFETIME: Duration = DIRECTORY_LIFETIME;
/// How long other names may be used without asking.
const NAME_LIFETIME: Duration = Duration::ZERO;
/// How long the kernel may use what it has of a view of which nothing changes.
const UNCHANGING_LIFETIME: Duration = Duration::from_secs(86_400);
/// Threads that read requests of one view.
const THREADS_PER_VIEW: usize = 4;
/// Of these, how many may be held up by calls to the file system behind the view: the others go on reading.
pub(crate) const THREADS_LENT_MAX: usize = THREADS_PER_VIEW / 2;
/// Largest read and write request, and the kernel's read-ahead, in bytes.
const REQUEST_SIZE_MAX: u32 = 1 << 20;

/// Serves a mounted view until it is unmounted, by rings with frames of `rings`, if they are wanted and to be had. Blocks;
/// runs on a thread of its own.
///
/// # Errors
/// When the kernel refuses the session.
pub fn serve<V: Vfs>(door: FuseDoor<V>, fuse: OwnedFd, rings: Option<Pool>) -> Result<()> {
    let init = Init { request_size: REQUEST_SIZE_MAX, keeps_locks: door.vfs.locks().is_some() };
    let session = Session::start(fuse, Settings { init, threads: THREADS_PER_VIEW, rings })?;
    door.agreed(session.maps_direct());
    door.custody.kernel().attach(session.notifier())?;
    session.run(door)
}

/// `keeps_locks`: the view keeps the locks of its files, and must hear of every close, which gives them back.
fn open_flags(opened: Opened, mode: OpenMode, keeps_locks: bool) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    // Else who cannot write has nothing to flush: the kernel need not ask at close.
    flag(!mode.write && !keeps_locks, open_flag::NO_FLUSH)
        | flag(opened.keep_cache, open_flag::KEEP_CACHE)
        | flag(opened.direct, open_flag::DIRECT_IO)
}
