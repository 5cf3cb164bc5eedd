//! The spool that the environment names, and requests to its packer.

use crate::kernel::{self, Result};
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use tameike_core::spool::protocol::{
    CONTAINER_VARIABLE, LINKED, NAME_VARIABLE, PAGE, Page, REQUEST_SIZE_MAX, Request, SOCKET, SPOOL_VARIABLE,
    TREE,
};

/// Attempts to reach a packer, which another one may replace: ten seconds with [`RETRY_INTERVAL`].
const TRIES: u32 = 1000;
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Attempts to stat a directory that the packer is changing: two seconds with [`SETTLE_INTERVAL`]. The packer may wait for a core, and a
/// killed one never completes its change.
const SETTLE_TRIES: u32 = 30_000;
const SETTLE_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };
/// Listed directories that a process remembers.
const LISTED_MAX: usize = 1024;

#[derive(Debug)]
pub struct Spool {
    dir: Vec<u8>,
    tree: Vec<u8>,
    /// Paths of the container's directory: the kernel's, and the user's.
    names: [Vec<u8>; 2],
    /// `st_dev` of the tree.
    device: u64,
    /// `st_dev` of the container's directory.
    outer_device: u64,
    page: &'static Page,
    /// Hashes of listed directories, in slots by hash.
    listed: [AtomicU64; LISTED_MAX],
    /// Number of a change that did not complete in time.
    stalled_change: AtomicU64,
    has_reported: AtomicBool,
}

static SPOOL: OnceLock<Spool> = OnceLock::new();
/// Replaces the tree if there is none: no file can exist below it.
const NO_TREE: &[u8] = b"/dev/null/tameike";
static NO_PAGE: Page = Page { epoch: AtomicU64::new(0), changes: AtomicU64::new(0) };

/// Reads the spool from the environment.
pub fn begin() {
    let variable =
        |name| std::env::var_os(name).map(OsStringExt::into_vec).filter(|path| path.first() == Some(&b'/'));
    let (Some(dir), Some(container)) = (variable(SPOOL_VARIABLE), variable(CONTAINER_VARIABLE)) else {
        return;
    };
    let name = variable(NAME_VARIABLE).unwrap_or_else(|| container.clone());
    let _ = SPOOL.set(Spool::found(&dir, &container, &name));
}

/// Returns the spool, if the environment names one.
#[inline]
pub fn get() -> Option<&'static Spool> {
    SPOOL.get()
}

impl Spool {
    /// Creates the spool in `dir` for the container in `container`, which the user calls `name`.
    pub fn of(dir: &[u8], container: &[u8], name: &[u8]) -> Self {
        Self {
            dir: dir.to_vec(),
            tree: [dir, b"/", TREE.as_bytes()].concat(),
            names: [container.to_vec(), name.to_vec()],
            device: 0,
            outer_device: 0,
            page: &NO_PAGE,
            listed: [const { AtomicU64::new(0) }; LISTED_MAX],
            stalled_change: AtomicU64::new(0),
            has_reported: AtomicBool::new(false),
        }
    }

    /// As [`Self::of`], with the state of this host.
    fn found(dir: &[u8], container: &[u8], name: &[u8]) -> Self {
        let mut spool = Self::of(dir, container, name);
        let device = |path: &[u8]| kernel::lstat(&kernel::text(path.to_vec())?).map(|stat| stat.st_dev);
        let state = || match is_own(dir) {
            true => Ok((device(&spool.tree)?, device(container)?, spool.map_page()?)),
            false => Err(Errno::PERM),
        };
        match state() {
            Ok(found) => (spool.device, spool.outer_device, spool.page) = found,
            // On another host, paths below the container must reach neither the container's files nor files of another user at the
            // spool's path.
            Err(_) => spool.tree = NO_TREE.to_vec(),
        }
        spool
    }

    fn map_page(&self) -> Result<&'static Page> {
        let path = kernel::text(joined(&self.dir, PAGE.as_bytes()))?;
        let file = kernel::open(&path, libc::O_RDWR | libc::O_CLOEXEC, 0)?;
        if rustix::fs::fstat(&file)?.st_size < size_of::<Page>() as i64 {
            return Err(Errno::NXIO);
        }
        let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Page>());
        // SAFETY: a new mapping, which is never unmapped. The file has that many bytes, and is never truncated. It contains atomic
        // numbers.
        unsafe {
            let page =
                rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0)?;
            Ok(&*page.cast::<Page>())
        }
    }

    /// Converts an absolute path below the container's directory or the tree to a path relative to the tree.
    pub fn inner(&self, path: &[u8]) -> Option<Vec<u8>> {
        let names = self.names.iter().chain([&self.tree]);
        names.filter_map(|name| below(path, name)).next().map(<[u8]>::to_vec)
    }

    /// As [`Self::inner`], for paths below the tree only.
    pub fn inner_of_tree(&self, path: &[u8]) -> Option<Vec<u8>> {
        below(path, &self.tree).map(<[u8]>::to_vec)
    }

    /// Converts a path relative to the tree to the one that programs use.
    pub fn outer(&self, inner: &[u8]) -> Vec<u8> {
        joined(&self.names[0], inner)
    }

    /// Converts a path relative to the tree to the kernel's path.
    pub fn real(&self, inner: &[u8]) -> Result<CString> {
        kernel::text(joined(&self.tree, inner))
    }

    /// Returns the inode number to show for a file with several names, which the packer records.
    pub fn number_of_linked(&self, inode: u64) -> Option<u64> {
        let path = [&self.dir, b"/".as_slice(), LINKED.as_bytes(), inode.to_string().as_bytes()].concat();
        let kept = rustix::fs::readlink(kernel::text(path).ok()?, Vec::new()).ok()?;
        kept.to_str().ok()?.parse().ok()
    }

    /// Returns `st_dev` of the container's directory.
    pub fn outer_device(&self) -> u64 {
        self.outer_device
    }

    /// Returns whether files with this `st_dev` may be in the tree.
    pub fn is_on(&self, device: u64) -> bool {
        device == self.device
    }

    /// Ensures that the container's names of a directory are in the tree.
    pub fn list(&self, dir: &[u8]) -> Result<()> {
        let epoch = self.page.epoch.load(Ordering::Acquire);
        if epoch == 0 && self.device != 0 {
            return Ok(());
        }
        let mut hasher = DefaultHasher::new();
        (epoch, dir).hash(&mut hasher);
        let mark = hasher.finish() | 1;
        let slot = &self.listed[mark as usize / 2 % LISTED_MAX];
        if slot.load(Ordering::Relaxed) == mark {
            return Ok(());
        }
        self.ask(&Request::List { dir: dir.to_vec() })?;
        slot.store(mark, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Self::list`], for the directory of a path.
    pub fn list_parent(&self, inner: &[u8]) -> Result<()> {
        let end = inner.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.list(&inner[..end])
    }

    /// Runs `query`, and repeats it if it returns a directory in which the packer was replacing a name: that changes the directory's
    /// mtime for a moment.
    pub fn settled<T>(&self, mut query: impl FnMut() -> T, is_dir: impl Fn(&T) -> bool) -> T {
        for _ in 0..SETTLE_TRIES {
            let before = self.page.changes.load(Ordering::Acquire);
            let found = query();
            // Order `query` before the second read of the counter.
            fence(Ordering::Acquire);
            let is_in_progress = !before.is_multiple_of(2);
            let is_settled = !is_in_progress && self.page.changes.load(Ordering::Relaxed) == before;
            let is_stalled = is_in_progress && self.stalled_change.load(Ordering::Relaxed) == before;
            if is_settled || is_stalled || !is_dir(&found) {
                return found;
            }
            let _ = rustix::thread::nanosleep(&SETTLE_INTERVAL);
        }
        self.stalled_change.store(self.page.changes.load(Ordering::Relaxed), Ordering::Relaxed);
        query()
    }

    /// Waits until the spool has space for new files.
    pub fn await_space(&self) -> Result<()> {
        let space = rustix::fs::statvfs(self.real(b"")?)?;
        let space = [(space.f_bavail, space.f_blocks), (space.f_favail, space.f_files)];
        if tameike_core::spool::is_short(space) { self.ask(&Request::WaitForSpace) } else { Ok(()) }
    }

    /// Sends a request to the packer, and waits until it is complete.
    pub fn ask(&self, request: &Request) -> Result<()> {
        let bytes = request.encode().ok_or(Errno::NAMETOOLONG)?;
        let tries = if self.device == 0 { 0 } else { TRIES };
        for _ in 0..tries {
            match self.ask_once(&bytes) {
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE) => {
                    let _ = rustix::thread::nanosleep(&RETRY_INTERVAL);
                }
                Ok(0) => return Ok(()),
                Ok(errno) => return Err(Errno::from_raw_os_error(errno)),
                Err(error) => return Err(error),
            }
        }
        self.report_missing_packer();
        Err(Errno::IO)
    }

    fn ask_once(&self, request: &[u8]) -> Result<i32> {
        debug_assert!(request.len() <= REQUEST_SIZE_MAX);
        let path = joined(&self.dir, SOCKET.as_bytes());
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        until(|| connect(&socket, &SocketAddrUnix::new(path.as_slice())?))?;
        until(|| send(&socket, request, SendFlags::NOSIGNAL))?;
        let mut reply = [0; 4];
        match until(|| recv(&socket, &mut reply, RecvFlags::empty()))?.1 {
            4 => Ok(i32::from_ne_bytes(reply)),
            _ => Err(Errno::CONNRESET),
        }
    }

    /// Reports once on standard error that the packer is missing.
    fn report_missing_packer(&self) {
        if !self.has_reported.swap(true, Ordering::Relaxed) {
            let name = String::from_utf8_lossy(&self.names[0]);
            let message = format!(
                "tameike: {name}: the `tameike run --aggregate-only` that packs its files is not running on this host; start \
                 programs on other hosts through another one\n"
            );
            let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        }
    }
}

/// Returns whether a directory belongs to this user and is closed to writes of others. The environment may come from another host, on which
/// the packer created the directory.
fn is_own(dir: &[u8]) -> bool {
    let found = kernel::text(dir.to_vec()).and_then(|dir| kernel::lstat(&dir));
    found.is_ok_and(|found| {
        kernel::is_kind(found.st_mode, libc::S_IFDIR)
            && found.st_uid == rustix::process::geteuid().as_raw()
            && found.st_mode & 0o022 == 0
    })
}

/// Retries a call that a signal interrupts, as the packer replies soon.
fn until<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn below<'a>(path: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(dir)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

fn joined(dir: &[u8], inner: &[u8]) -> Vec<u8> {
    if inner.is_empty() { dir.to_vec() } else { [dir, b"/", inner].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, chown};

    /// On another host, another user has created the directory that the environment names.
    #[test]
    fn directories_that_others_can_write_to_are_no_spools() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join(TREE)).expect("created");
        std::fs::write(dir.path().join(PAGE), [0; 4096]).expect("written");
        let path = dir.path().as_os_str().as_bytes();
        let find = || {
            let spool = Spool::found(path, b"/", b"/");
            let real = spool.real(b"file").expect("a path").into_bytes();
            (
                spool.device != 0,
                real.starts_with(path),
                spool.ask(&Request::WaitForSpace).expect_err("no packer runs"),
            )
        };
        let set = |mode| {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).expect("permissions")
        };
        let refused = (false, false, Errno::IO);
        set(0o777);
        assert_eq!(find(), refused);
        set(0o700);
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(65_534), None).expect("chown");
            assert_eq!(find(), refused);
            chown(dir.path(), Some(0), None).expect("chown");
        }
        let spool = Spool::found(path, b"/", b"/");
        assert!(spool.device != 0 && spool.real(b"file").expect("a path").as_bytes().starts_with(path));
    }

    /// Each stat of a directory waited for a packer that had been killed.
    #[test]
    fn a_change_that_never_ends_delays_one_call() {
        let page: &Page = Box::leak(Box::new(Page { epoch: AtomicU64::new(0), changes: AtomicU64::new(1) }));
        let spool = Spool { page, ..Spool::of(b"/spool", b"/container", b"/container") };
        let count_queries = || {
            let count = Cell::new(0);
            spool.settled(|| count.set(count.get() + 1), |()| true);
            count.get()
        };
        assert_eq!(count_queries(), SETTLE_TRIES + 1);
        assert_eq!(count_queries(), 1);
        page.changes.store(2, Ordering::Relaxed);
        assert_eq!(count_queries(), 1);
    }
}
