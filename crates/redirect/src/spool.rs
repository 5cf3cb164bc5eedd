//! The spool that the environment names: where it is, and its packer.

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

/// How often a packer is asked that is not there: another one may take over. With [`STEP`], ten seconds.
const TRIES: u32 = 1000;
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often a look at a directory is tried again that the packer changes meanwhile, and how long each waits, two seconds in all: the packer may
/// have to wait for a processor, and one that was killed may never end what it has begun.
const LOOKS: u32 = 30_000;
const LOOK_STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };
/// Directories that a process knows to be listed.
const LISTED_MAX: usize = 1024;

/// A spool.
#[derive(Debug)]
pub struct Spool {
    dir: Vec<u8>,
    tree: Vec<u8>,
    /// The container's directory; first as the kernel calls it.
    names: [Vec<u8>; 2],
    /// `st_dev` of the tree.
    device: u64,
    /// `st_dev` of the container's directory.
    outer_device: u64,
    page: &'static Page,
    /// Marks of directories that are listed, each where its mark says.
    listed: [AtomicU64; LISTED_MAX],
    /// The change of which the end was waited for in vain.
    unended: AtomicU64,
    has_complained: AtomicBool,
}

static SPOOL: OnceLock<Spool> = OnceLock::new();
/// In the place of a tree: nothing can be there.
const NO_TREE: &[u8] = b"/dev/null/tameike";
static NO_PAGE: Page = Page { epoch: AtomicU64::new(0), changes: AtomicU64::new(0) };

/// Learns of the spool from the environment.
pub fn begin() {
    let variable =
        |name| std::env::var_os(name).map(OsStringExt::into_vec).filter(|path| path.first() == Some(&b'/'));
    let (Some(dir), Some(container)) = (variable(SPOOL_VARIABLE), variable(CONTAINER_VARIABLE)) else {
        return;
    };
    let name = variable(NAME_VARIABLE).unwrap_or_else(|| container.clone());
    let _ = SPOOL.set(Spool::found(&dir, &container, &name));
}

/// The spool, where there is one.
#[inline]
pub fn get() -> Option<&'static Spool> {
    SPOOL.get()
}

impl Spool {
    /// The one in `dir` for a container in `container`, which the user calls `name`.
    pub fn of(dir: &[u8], container: &[u8], name: &[u8]) -> Self {
        Self {
            dir: dir.to_vec(),
            tree: [dir, b"/", TREE.as_bytes()].concat(),
            names: [container.to_vec(), name.to_vec()],
            device: 0,
            outer_device: 0,
            page: &NO_PAGE,
            listed: [const { AtomicU64::new(0) }; LISTED_MAX],
            unended: AtomicU64::new(0),
            has_complained: AtomicBool::new(false),
        }
    }

    /// The same, as it is on this host.
    fn found(dir: &[u8], container: &[u8], name: &[u8]) -> Self {
        let mut spool = Self::of(dir, container, name);
        let device = |path: &[u8]| kernel::look(&kernel::text(path.to_vec())?).map(|stat| stat.st_dev);
        let look = || match is_own(dir) {
            true => Ok((device(&spool.tree)?, device(container)?, spool.map_page()?)),
            false => Err(Errno::PERM),
        };
        match look() {
            Ok(found) => (spool.device, spool.outer_device, spool.page) = found,
            // On another host: paths below the container must reach neither its own files nor what another user makes under the spool's name there.
            Err(_) => spool.tree = NO_TREE.to_vec(),
        }
        spool
    }

    fn map_page(&self) -> Result<&'static Page> {
        let path = kernel::text([&self.dir, b"/".as_slice(), PAGE.as_bytes()].concat())?;
        let file = kernel::open(&path, libc::O_RDWR | libc::O_CLOEXEC, 0)?;
        if rustix::fs::fstat(&file)?.st_size < size_of::<Page>() as i64 {
            return Err(Errno::NXIO);
        }
        let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Page>());
        // SAFETY: a new mapping, which is never taken down; the file has as many bytes, and is not cut by anybody. What is in it is
        // atomic numbers.
        unsafe {
            let page =
                rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0)?;
            Ok(&*page.cast::<Page>())
        }
    }

    /// The path in the tree of an absolute path, that of the container's directory or of the tree.
    pub fn inner(&self, path: &[u8]) -> Option<Vec<u8>> {
        let names = self.names.iter().chain([&self.tree]);
        names.filter_map(|name| below(path, name)).next().map(<[u8]>::to_vec)
    }

    /// The same, where it is a real path of the tree's.
    pub fn inner_of_tree(&self, path: &[u8]) -> Option<Vec<u8>> {
        below(path, &self.tree).map(<[u8]>::to_vec)
    }

    /// What programs call a path of the tree.
    pub fn outer(&self, inner: &[u8]) -> Vec<u8> {
        joined(&self.names[0], inner)
    }

    /// Where the kernel has a path of the tree.
    pub fn real(&self, inner: &[u8]) -> Result<CString> {
        kernel::text(joined(&self.tree, inner))
    }

    /// What programs are told as the number of a file that has several names, which the packer keeps.
    pub fn number_of_linked(&self, inode: u64) -> Option<u64> {
        let path = [&self.dir, b"/".as_slice(), LINKED.as_bytes(), inode.to_string().as_bytes()].concat();
        let kept = rustix::fs::readlink(kernel::text(path).ok()?, Vec::new()).ok()?;
        kept.to_str().ok()?.parse().ok()
    }

    /// `st_dev` of the container's directory.
    pub fn outer_device(&self) -> u64 {
        self.outer_device
    }

    /// Whether files with this `st_dev` may be the tree's.
    pub fn is_on(&self, device: u64) -> bool {
        device == self.device
    }

    /// Has the names that the container has in a directory be in the tree.
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

    /// The same for the directory that a path is in.
    pub fn list_parent(&self, inner: &[u8]) -> Result<()> {
        let end = inner.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.list(&inner[..end])
    }

    /// Looks at a directory while the packer puts nothing in the place of something there: that changes its time for a moment.
    pub fn settled<T>(&self, mut look: impl FnMut() -> T, is_dir: impl Fn(&T) -> bool) -> T {
        for _ in 0..LOOKS {
            let before = self.page.changes.load(Ordering::Acquire);
            let found = look();
            // What was looked at comes before the second look at the number.
            fence(Ordering::Acquire);
            let is_under_way = !before.is_multiple_of(2);
            let is_settled = !is_under_way && self.page.changes.load(Ordering::Relaxed) == before;
            let is_unended = is_under_way && self.unended.load(Ordering::Relaxed) == before;
            if is_settled || is_unended || !is_dir(&found) {
                return found;
            }
            let _ = rustix::thread::nanosleep(&LOOK_STEP);
        }
        self.unended.store(self.page.changes.load(Ordering::Relaxed), Ordering::Relaxed);
        look()
    }

    /// Waits until there is room for new files.
    pub fn await_room(&self) -> Result<()> {
        let space = rustix::fs::statvfs(self.real(b"")?)?;
        let space = [(space.f_bavail, space.f_blocks), (space.f_favail, space.f_files)];
        if tameike_core::spool::is_short(space) { self.ask(&Request::Room) } else { Ok(()) }
    }

    /// Asks the packer for something, and waits until it is done.
    pub fn ask(&self, request: &Request) -> Result<()> {
        let bytes = request.encode().ok_or(Errno::NAMETOOLONG)?;
        let tries = if self.device == 0 { 0 } else { TRIES };
        for _ in 0..tries {
            match self.ask_once(&bytes) {
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE) => {
                    let _ = rustix::thread::nanosleep(&STEP);
                }
                Ok(0) => return Ok(()),
                Ok(errno) => return Err(Errno::from_raw_os_error(errno)),
                Err(error) => return Err(error),
            }
        }
        self.complain();
        Err(Errno::IO)
    }

    fn ask_once(&self, request: &[u8]) -> Result<i32> {
        debug_assert!(request.len() <= REQUEST_SIZE_MAX);
        let path = [&self.dir, b"/".as_slice(), SOCKET.as_bytes()].concat();
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        until(|| connect(&socket, &SocketAddrUnix::new(path.as_slice())?))?;
        until(|| send(&socket, request, SendFlags::NOSIGNAL))?;
        let mut reply = [0; 4];
        match until(|| recv(&socket, &mut reply, RecvFlags::empty()))?.1 {
            4 => Ok(i32::from_ne_bytes(reply)),
            _ => Err(Errno::CONNRESET),
        }
    }

    /// Tells a person, once, why nothing works.
    fn complain(&self) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            let name = String::from_utf8_lossy(&self.names[0]);
            let message = format!(
                "tameike: {name}: the `tameike run --aggregate-only` that packs its files is not there; on other hosts, \
                 programs are started through one of their own\n"
            );
            let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        }
    }
}

/// Whether a directory is one of this user that no other user can write to: variables may have come from another host, where the packer has
/// made it.
fn is_own(dir: &[u8]) -> bool {
    let found = kernel::text(dir.to_vec()).and_then(|dir| kernel::look(&dir));
    found.is_ok_and(|found| {
        kernel::is_kind(found.st_mode, libc::S_IFDIR)
            && found.st_uid == rustix::process::geteuid().as_raw()
            && found.st_mode & 0o022 == 0
    })
}

/// What a signal interrupts is tried again: the packer does not take long.
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

    /// The variables come to another host, where another user has made what they name.
    #[test]
    fn what_another_user_can_write_to_is_no_spool() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join(TREE)).expect("made");
        std::fs::write(dir.path().join(PAGE), [0; 4096]).expect("written");
        let path = dir.path().as_os_str().as_bytes();
        let find = || {
            let spool = Spool::found(path, b"/", b"/");
            let real = spool.real(b"file").expect("a path").into_bytes();
            (
                spool.device != 0,
                real.starts_with(path),
                spool.ask(&Request::Room).expect_err("nobody is there"),
            )
        };
        let set = |mode| std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).expect("ours");
        let refused = (false, false, Errno::IO);
        set(0o777);
        assert_eq!(find(), refused);
        set(0o700);
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(65_534), None).expect("given");
            assert_eq!(find(), refused);
            chown(dir.path(), Some(0), None).expect("given");
        }
        let spool = Spool::found(path, b"/", b"/");
        assert!(spool.device != 0 && spool.real(b"file").expect("a path").as_bytes().starts_with(path));
    }

    /// Who looked at a directory waited each time for a packer that had been killed.
    #[test]
    fn a_change_that_never_ends_is_waited_for_once() {
        let page: &Page = Box::leak(Box::new(Page { epoch: AtomicU64::new(0), changes: AtomicU64::new(1) }));
        let spool = Spool { page, ..Spool::of(b"/spool", b"/container", b"/container") };
        let looks = || {
            let count = Cell::new(0);
            spool.settled(|| count.set(count.get() + 1), |()| true);
            count.get()
        };
        assert_eq!(looks(), LOOKS + 1);
        assert_eq!(looks(), 1);
        page.changes.store(2, Ordering::Relaxed);
        assert_eq!(looks(), 1);
    }
}
