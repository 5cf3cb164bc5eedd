//! A spool: a tree of files in memory that programs of this host have in place of a container's directory, and its packer.
//!
//! Programs reach the tree through `libtameike_redirect.so` (crate `redirect`); `tameike_core::spool` defines the protocol.
//! Every `tameike run --aggregate-only` of a host with the same container shares one spool. One of them is the packer: it moves what
//! is closed into the container, in a lane of its own, and answers requests. When it ends or is killed, another one takes over; what
//! it has not packed is still in the tree.
//!
//! A file goes from the tree when its record has been written to the container's file system, nobody has it open for
//! writing (the kernel's leases tell), and it is still as it was packed. Then a stub takes its name.
#![forbid(unsafe_code)]

mod batch;
mod clean;
mod intent;
mod listing;
mod lookup;
mod members;
mod packer;
mod page;
mod requests;
mod room;
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
use tameike_container::session::{LookAgain, Openness, Session, SessionOptions};
use tameike_container::{Codec, Superblock};
use tameike_core::spool::protocol::{
    CONTAINER_VARIABLE, NAME_VARIABLE, RUN_VARIABLE, SOCKET, SPOOL_VARIABLE, TREE,
};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ask_until, start_thread, user, wait_ended, with_variables};
use tameike_io::os::{lease, owned, range_lock};
use tameike_io::shared::{PosixTree, SharedFs};
use tree::Tree;

/// Whose lock makes one the packer.
const PACKER: &str = "packer";
/// How often who is not the packer looks whether it is there.
const LOOK_STEP: Duration = Duration::from_millis(20);

/// How long processes have to end when they are asked to.
const END_WAIT: Duration = Duration::from_secs(5);

/// What a spool is for.
#[derive(Clone, Debug)]
pub struct SpoolOptions {
    /// The container's directory, without symbolic links. The container is made where there is none.
    pub container: PathBuf,
    /// The same as the user calls it, from the root on.
    pub name: PathBuf,
    /// Where the spool is: a directory of memory, or of a local disk.
    pub base: PathBuf,
    /// Bytes of a block of a container that is made.
    pub block_size: u32,
    /// What makes data smaller.
    pub codec: Codec,
}

/// What was packed when all has ended, and what was not.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// Files, each time that it was packed.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// What is not in the container, each with its path.
    pub faults: Vec<Fault>,
    /// Where what is not packed still is.
    pub kept: Option<PathBuf>,
}

/// A member of a spool: the packer, or one that is ready to be it.
pub struct Spool {
    shared: Arc<Shared>,
    membership: Membership,
    worker: JoinHandle<Result<Packed>>,
}

/// What the packer's threads share.
struct Shared {
    options: SpoolOptions,
    dir: PathBuf,
    tree: Tree,
    container: Arc<dyn SharedFs>,
    /// The program has ended.
    has_ended: AtomicBool,
    /// And nobody else sees the tree, which goes when all of it is packed.
    is_last: AtomicBool,
    /// Somebody waits for the packer to go on.
    wake: (Mutex<bool>, Condvar),
    /// The packer's socket is there, or will not be.
    is_ready: AtomicBool,
}

/// What only the packer has.
struct Packer {
    shared: Arc<Shared>,
    session: Session,
    names: Mutex<Names>,
    /// One packs at a time.
    packing: Mutex<()>,
    room: room::Room,
    files: AtomicU64,
    bytes: AtomicU64,
}

/// What is held while names of the tree and of the container change together.
#[derive(Default)]
struct Names {
    listed: Listed,
    clean: Clean,
    /// What [`Page::epoch`] is.
    epoch: u64,
}

impl Spool {
    /// Joins the spool of a container on this host, which is made where there is none, and waits until programs can use it.
    ///
    /// # Errors
    /// `EINVAL` where the directory holds something that is no container; what the file systems say.
    pub fn join(options: SpoolOptions) -> Result<Self> {
        let container: Arc<dyn SharedFs> = Arc::new(PosixTree::open(&options.container)?);
        // Whether it can be opened is known, and its number there, before anything is made here.
        drop(open_session(&container, &options)?);
        let number = Superblock::read(&*container)?.container;
        let dir = options.base.join(format!(
            "tameike-spool-{}-{:016x}",
            user(),
            place_of(number, &options.container)?
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
            return Err(Fault::new(Errno::ETIMEDOUT, "the packer does not begin"));
        }
        Ok(spool)
    }

    /// The variables by which programs find the spool.
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        let Shared { options, dir, .. } = &*self.shared;
        [
            (SPOOL_VARIABLE, dir.clone().into()),
            (RUN_VARIABLE, run()),
            (CONTAINER_VARIABLE, options.container.clone().into()),
            (NAME_VARIABLE, options.name.clone().into()),
        ]
    }

    /// Ends after the program: all that is in the tree is in the container then, and safe.
    ///
    /// # Errors
    /// What the container's file system says of all together; of single files, [`Packed::faults`] tells.
    pub fn finish(self) -> Result<Packed> {
        let Self { shared, membership, worker } = self;
        end_processes(&shared.dir);
        // Who joins from now on finds files, and packs them once more.
        let is_last = membership.is_alone(&shared.dir).unwrap_or(false) && !shared.has_programs();
        shared.is_last.store(is_last, Ordering::Release);
        shared.has_ended.store(true, Ordering::Release);
        shared.wake();
        let packed = worker.join().map_err(|_| Fault::new(Errno::EIO, "the packer has failed"))?;
        let is_whole = packed.as_ref().is_ok_and(|packed| packed.faults.is_empty());
        if is_whole {
            // Programs of a run that was killed may go on. The next one packs what they leave.
            membership.end(&shared.dir, !shared.has_programs())?;
        }
        match packed {
            Ok(packed) => Ok(Packed { kept: (!is_whole).then(|| shared.dir.clone()), ..packed }),
            Err(fault) => {
                let message = format!(
                    "{fault}; what is not in the container yet is kept in {}: the next run with the same container on this \
                     host packs it",
                    shared.dir.display()
                );
                Err(Fault::new(fault.errno, message))
            }
        }
    }
}

impl Shared {
    /// Is the packer as soon as nobody else is, until the program has ended.
    fn work(self: Arc<Self>) -> Result<Packed> {
        let lock = std::fs::File::options().create(true).append(true).open(self.dir.join(PACKER));
        let lock = lock.map_err(|error| Fault::from_os("making the packer's lock", &error))?;
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
            // What this program has left is the packer's to pack. One that has gone is followed.
            if self.has_ended.load(Ordering::Acquire) && requests::ask_to_sync(&socket).is_ok() {
                return Ok(Packed::default());
            }
            self.sleep(LOOK_STEP);
        }
    }

    /// Whether programs have the tree, of whichever run.
    fn has_programs(&self) -> bool {
        !with_variables(&[(SPOOL_VARIABLE, self.dir.as_os_str())]).is_empty()
    }

    fn wake(&self) {
        *self.wake.0.lock() = true;
        self.wake.1.notify_all();
    }

    /// Until somebody wakes the packer, or for a time.
    fn sleep(&self, most: Duration) {
        let mut is_woken = self.wake.0.lock();
        if !*is_woken {
            self.wake.1.wait_for(&mut is_woken, most);
        }
        *is_woken = false;
    }
}

/// What programs know this run by.
fn run() -> OsString {
    std::process::id().to_string().into()
}

/// What a program leaves running ends with it.
fn end_processes(dir: &Path) {
    let run = run();
    let mine: [(&str, &OsStr); 2] = [(SPOOL_VARIABLE, dir.as_os_str()), (RUN_VARIABLE, &run)];
    for signal in [SIGTERM, SIGKILL] {
        let left = with_variables(&mine);
        if left.is_empty() {
            return;
        }
        for process in &left {
            // It may have ended just now.
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
        openness: Openness::Private,
        is_read_only: false,
        block_size: Some(block_size),
        subfiles: None,
        codec,
        streams: tameike_container::STREAMS,
        umask: 0,
        uid: user(),
        gid: tameike_io::os::process::group(),
        look_again: LookAgain::Asked,
    };
    Session::open(container.clone(), options)
}

/// Makes a directory of this user's alone, or finds one.
fn make_dir(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => owned::is_own_dir(path).map(drop),
        Err(error) => Err(Fault::from_os(format_args!("making {}", path.display()), &error)),
    }
}

/// A container and where it is, as a number: a copy of it has another spool.
fn place_of(container: u64, dir: &Path) -> Result<u64> {
    let found = std::fs::metadata(dir)
        .map_err(|error| Fault::from_os(format_args!("looking at {}", dir.display()), &error))?;
    let mut hasher = DefaultHasher::new();
    (container, found.dev(), found.ino()).hash(&mut hasher);
    Ok(hasher.finish())
}

/// Makes the tree's root, or finds it. Programs see its mode as that of the container's directory, which may be open to others;
/// the directory of the spool above it is not.
fn make_tree(container: &Path, root: &Path) -> Result<()> {
    let make = || {
        std::fs::create_dir_all(root)?;
        std::fs::set_permissions(root, std::fs::metadata(container)?.permissions())
    };
    make().map_err(|error| Fault::from_os(format_args!("making {}", root.display()), &error))
}
