//! A spool: a tree in memory that programs of this host use in place of a container's directory, and its packer.
//!
//! Programs reach the tree through `libtameike_redirect.so` (crate `redirect`); `tameike_core::spool` defines the protocol. All runs of
//! `tameike run --aggregate-only` on a host with the same container share one spool. One of them is the packer: it moves closed files into
//! the container, through its own lane, and answers requests. If it ends or is killed, another run takes over; what is not packed is still
//! in the tree.
//!
//! The packer replaces a file by a stub when its record is written to the container's file system, no process has it open for writing
//! (by the kernel's leases), and it is unchanged since.
#![forbid(unsafe_code)]

mod batch;
mod clean;
mod intent;
mod listing;
mod members;
mod packer;
mod page;
mod requests;
mod space;
mod tree;

use clean::Clean;
use libc::{SIGKILL, SIGTERM};
use listing::Listed;
use members::Membership;
use page::SharedPage;
use parking_lot::{Condvar, Mutex};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_container::session::{Permissions, Refresh, Session, SessionOptions};
use tameike_container::{Brief, Codec, Superblock};
use tameike_core::spool::protocol::{
    CONTAINER_VARIABLE, NAME_VARIABLE, RUN_VARIABLE, SOCKET, SPOOL_VARIABLE, TREE,
};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ask_until, start_thread, user, wait_ended, with_variables};
use tameike_io::os::{lease, owned, range_lock};
use tameike_io::shared::{PosixTree, SharedFs};
use tree::Tree;

/// File whose lock makes a run the packer.
const PACKER: &str = "packer";
/// How often other runs check whether the packer is there.
const LOOK_STEP: Duration = Duration::from_millis(20);

/// Time for processes to end after a signal.
const END_WAIT: Duration = Duration::from_secs(5);

/// Options of a spool.
#[derive(Clone, Debug)]
pub struct SpoolOptions {
    /// Directory of the container, without symbolic links. A missing container is created.
    pub container: PathBuf,
    /// The same directory as an absolute path in the user's terms.
    pub name: PathBuf,
    /// Parent directory of the spool, in memory or on a local disk.
    pub base: PathBuf,
    /// Block size of a new container, in bytes.
    pub block_size: u32,
    /// Compression of data.
    pub codec: Codec,
}

/// Result of a spool.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// Number of packed files; a file counts each time it is packed.
    pub files: u64,
    /// Bytes of packed content.
    pub bytes: u64,
    /// Files that are not in the container, each with its path.
    pub faults: Vec<Fault>,
    /// Directory with the files that are not packed.
    pub kept: Option<PathBuf>,
}

/// A member of a spool: the packer, or a run that can become the packer.
pub struct Spool {
    shared: Arc<Shared>,
    membership: Membership,
    worker: JoinHandle<Result<Packed>>,
}

/// State shared by the packer's threads.
struct Shared {
    options: SpoolOptions,
    dir: PathBuf,
    tree: Tree,
    container: Arc<dyn SharedFs>,
    /// The program has ended.
    has_ended: AtomicBool,
    /// No other run uses the tree, which is removed after everything is packed.
    is_last: AtomicBool,
    /// Wakes the packer before its next round.
    wake: (Mutex<bool>, Condvar),
    /// The packer's socket exists, or the packer has failed.
    is_ready: AtomicBool,
}

/// State of the packer.
struct Packer {
    shared: Arc<Shared>,
    session: Session,
    names: Mutex<Names>,
    /// Held during a round, so that one thread packs at a time.
    packing: Mutex<()>,
    space: space::SpaceWait,
    files: AtomicU64,
    bytes: AtomicU64,
}

/// State that changes together with names of the tree and of the container; its lock covers both.
#[derive(Default)]
struct Names {
    listed: Listed,
    clean: Clean,
    /// Current value of [`Page::epoch`](tameike_core::spool::protocol::Page::epoch).
    epoch: u64,
}

impl Spool {
    /// Joins the spool of a container on this host (creates it if it is missing), and waits until programs can use it.
    ///
    /// # Errors
    /// `EINVAL` if the directory is not empty and no container, and errors of the file systems.
    pub fn join(options: SpoolOptions) -> Result<Self> {
        let container: Arc<dyn SharedFs> = Arc::new(PosixTree::open(&options.container)?);
        // Opened before anything is created here: a container that cannot be opened fails now.
        drop(open_session(&container, &options)?);
        let number = Superblock::read(&*container)?.container;
        let dir = options.base.join(format!(
            "tameike-spool-{}-{:016x}",
            user(),
            spool_id(number, &options.container)?
        ));
        let membership = Membership::begin(&dir)?;
        make_tree(&options.container, &dir.join(TREE))?;
        let page = SharedPage::open(&dir)?;
        lease::ignore_waiters()?;
        let tree = Tree::new(dir.join(TREE), &dir, page);
        let shared = Arc::new(Shared {
            options,
            dir,
            tree,
            container,
            has_ended: AtomicBool::new(false),
            is_last: AtomicBool::new(false),
            wake: (Mutex::new(false), Condvar::new()),
            is_ready: AtomicBool::new(false),
        });
        let worker = start_thread("packer", {
            let shared = shared.clone();
            move || shared.work()
        })?;
        let is_ready = || shared.is_ready.load(Ordering::Acquire).then_some(());
        let spool = Self { shared: shared.clone(), membership, worker };
        if ask_until(Duration::from_secs(60), Duration::from_millis(1), is_ready).is_none() {
            return Err(Fault::new(
                Errno::ETIMEDOUT,
                "the packer of the spool did not start within 60 seconds",
            ));
        }
        Ok(spool)
    }

    /// Environment variables by which programs find the spool.
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        let Shared { options, dir, .. } = &*self.shared;
        [
            (SPOOL_VARIABLE, dir.clone().into()),
            (RUN_VARIABLE, run()),
            (CONTAINER_VARIABLE, options.container.clone().into()),
            (NAME_VARIABLE, options.name.clone().into()),
        ]
    }

    /// Ends the spool after the program: packs everything in the tree, and makes it durable. Errors of single files are in
    /// [`Packed::faults`].
    pub fn finish(self) -> Result<Packed> {
        let Self { shared, membership, worker } = self;
        end_processes(&shared.dir);
        // A run that joins after this check finds files, and packs them once more.
        let is_last = membership.is_alone(&shared.dir).unwrap_or(false) && !shared.has_programs();
        shared.is_last.store(is_last, Ordering::Release);
        shared.has_ended.store(true, Ordering::Release);
        shared.wake();
        let packed = worker.join().map_err(|_| Fault::new(Errno::EIO, "the packer has failed"))?;
        let is_whole = packed.as_ref().is_ok_and(|packed| packed.faults.is_empty());
        if is_whole {
            // Programs of a killed run may continue. The next run packs their files.
            membership.end(&shared.dir, !shared.has_programs())?;
        }
        match packed {
            Ok(packed) => Ok(Packed { kept: (!is_whole).then(|| shared.dir.clone()), ..packed }),
            Err(fault) => {
                let message = format!(
                    "{fault}; files that are not in the container yet are kept in {}: the next run with the same container on this \
                     host packs them",
                    shared.dir.display()
                );
                Err(Fault::new(fault.errno, message))
            }
        }
    }
}

impl Shared {
    /// Becomes the packer when no other run is, and packs until the program has ended.
    fn work(self: Arc<Self>) -> Result<Packed> {
        let lock = std::fs::File::options().create(true).append(true).open(self.dir.join(PACKER));
        let lock = lock.map_err(|error| Fault::from_os("creating the packer's lock", &error))?;
        let socket = self.dir.join(SOCKET);
        loop {
            if range_lock::try_lock_range(std::os::fd::AsFd::as_fd(&lock), 0, 1)? {
                let done = Packer::begin(self.clone()).and_then(Packer::work);
                self.is_ready.store(true, Ordering::Release);
                return done;
            }
            if !self.is_ready.load(Ordering::Acquire) && socket.exists() {
                self.is_ready.store(true, Ordering::Release);
            }
            // The packer packs the files of this run. If it fails, this run becomes the packer.
            if self.has_ended.load(Ordering::Acquire) && requests::request_sync(&socket).is_ok() {
                return Ok(Packed::default());
            }
            self.sleep(LOOK_STEP);
        }
    }

    /// Returns true if programs of any run use the tree.
    fn has_programs(&self) -> bool {
        !with_variables(&[(SPOOL_VARIABLE, self.dir.as_os_str())]).is_empty()
    }

    fn wake(&self) {
        *self.wake.0.lock() = true;
        self.wake.1.notify_all();
    }

    /// Sleeps until a wake-up, at most for a time.
    fn sleep(&self, most: Duration) {
        let mut is_woken = self.wake.0.lock();
        if !*is_woken {
            self.wake.1.wait_for(&mut is_woken, most);
        }
        *is_woken = false;
    }
}

/// Identifier of this run in its programs' environment.
fn run() -> OsString {
    std::process::id().to_string().into()
}

/// Ends processes that the program has left running.
fn end_processes(dir: &Path) {
    let run = run();
    let mine: [(&str, &OsStr); 2] = [(SPOOL_VARIABLE, dir.as_os_str()), (RUN_VARIABLE, &run)];
    for signal in [SIGTERM, SIGKILL] {
        let left = with_variables(&mine);
        if left.is_empty() {
            return;
        }
        for process in &left {
            // It may have ended already.
            let _ = process.signal(signal);
        }
        wait_ended(&left, END_WAIT);
    }
}

fn open_session(container: &Arc<dyn SharedFs>, options: &SpoolOptions) -> Result<Session> {
    let SpoolOptions { block_size, codec, .. } = *options;
    let options = SessionOptions {
        rank: None,
        is_collective: false,
        create: true,
        permissions: Permissions::Private,
        is_read_only: false,
        block_size: Some(block_size),
        subfiles: None,
        codec,
        streams: tameike_container::STREAMS,
        umask: 0,
        uid: user(),
        gid: tameike_io::os::process::group(),
        refresh: Refresh::OnRequest,
    };
    Session::open(container.clone(), options)
}

/// The attributes of a path in the container, if it exists.
fn find(session: &Session, path: &[u8]) -> Result<Option<Brief>> {
    match session.stat(path) {
        Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
        found => found.map(Some),
    }
}

/// Creates a directory that only this user can access, or checks an existing one.
fn make_dir(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => owned::is_own_dir(path).map(drop),
        Err(error) => Err(Fault::from_os(format_args!("creating {}", path.display()), &error)),
    }
}

/// A number for a container at its location: a copy of the container gets another spool.
fn spool_id(container: u64, dir: &Path) -> Result<u64> {
    let found = std::fs::metadata(dir)
        .map_err(|error| Fault::from_os(format_args!("reading {}", dir.display()), &error))?;
    let mut hasher = DefaultHasher::new();
    (container, found.dev(), found.ino()).hash(&mut hasher);
    Ok(hasher.finish())
}

/// Creates the root of the tree if it is missing. It has the mode of the container's directory, which programs see; the directory of the
/// spool above it is private.
fn make_tree(container: &Path, root: &Path) -> Result<()> {
    let make = || {
        std::fs::create_dir_all(root)?;
        std::fs::set_permissions(root, std::fs::metadata(container)?.permissions())
    };
    make().map_err(|error| Fault::from_os(format_args!("creating {}", root.display()), &error))
}
