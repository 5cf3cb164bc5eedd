//! Calls on paths below the container's directory.

use crate::kernel::{self, Result, is_kind};
use crate::place::{self, Place};
use crate::protocol::Request;
use crate::resolve::{self, Found, Target};
use crate::spool::Spool;
use crate::stub::Stub;
use rustix::fs::{Access, AtFlags, CWD, Mode};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{IntoRawFd, OwnedFd};
use tameike_core::attr::AttrChange;
use tameike_interpose::Verdict;

/// How often a call is made again whose file was packed in between.
const TRIES: u32 = 100;
/// Flags by which a file is written to.
const WRITES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC | libc::O_CREAT;

/// Where the kernel finds what a path means, for a call of the C library's own.
pub enum Way {
    /// There.
    Real(CString),
    /// What is packed: it has no file.
    Packed(&'static Spool, Vec<u8>, Stub),
}

/// Runs `inside` on a path of the tree; one that leads out of it goes to `outside`.
fn at<T>(
    directory: i32,
    path: &[u8],
    inside: impl FnOnce(&'static Spool, Vec<u8>) -> Result<T>,
    outside: impl FnOnce(&CString) -> Result<T>,
) -> Verdict<T> {
    let (spool, place) = place::find(directory, path)?;
    Some(match place {
        Place::Inside(inner) => inside(spool, inner),
        Place::Outside(path) => kernel::text(path).and_then(|path| outside(&path)),
    })
}

/// Calls `call` on where a name is; once more by another way when its directory is not there.
fn in_parent<T>(spool: &Spool, inner: &[u8], call: impl Fn(&[u8], &CString) -> Result<T>) -> Result<T> {
    spool.list_parent(inner)?;
    match call(inner, &spool.real(inner)?) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if inner.contains(&b'/') => {}
        done => return done,
    }
    match resolve::resolve_parent(spool, inner)? {
        Place::Inside(inner) => call(&inner, &spool.real(&inner)?),
        Place::Outside(_) => Err(Errno::XDEV),
    }
}

/// `openat`.
pub fn open(directory: i32, path: &[u8], flags: i32, mode: u32) -> Verdict<i32> {
    // Memory has no blocks that could be aligned.
    let flags = flags & !libc::O_DIRECT;
    let outside = |path: &CString| kernel::open(path, flags, mode).map(IntoRawFd::into_raw_fd);
    at(
        directory,
        path,
        |spool, inner| open_inside(spool, &inner, flags, mode).map(IntoRawFd::into_raw_fd),
        outside,
    )
}

fn open_inside(spool: &Spool, inner: &[u8], flags: i32, mode: u32) -> Result<OwnedFd> {
    spool.list_parent(inner)?;
    if flags & libc::O_CREAT != 0 {
        spool.await_room()?;
    }
    let mut inner = inner.to_vec();
    let makes_new = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    for _ in 0..TRIES {
        let path = spool.real(&inner)?;
        match kernel::open(&path, flags, mode) {
            Ok(file) if flags & WRITES != 0 && !makes_new && is_gone(&file) => {}
            // The link itself, where somebody asks for it so.
            Ok(file) if flags & libc::O_PATH != 0 && resolve::is_packed(spool, &inner) => {
                drop(file);
                spool.ask(&Request::Fill { path: inner.clone(), is_emptied: false })?;
            }
            Ok(file) => {
                if flags & libc::O_DIRECTORY != 0 {
                    spool.list(&inner)?;
                }
                return Ok(file);
            }
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {
                if resolve::is_packed(spool, &inner) {
                    if flags & libc::O_DIRECTORY != 0 {
                        return Err(Errno::NOTDIR);
                    }
                    let is_emptied = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
                    spool.ask(&Request::Fill { path: inner.clone(), is_emptied })?;
                    continue;
                }
                match open_elsewhere(spool, &inner, flags)? {
                    Place::Inside(other) if other != inner => inner = other,
                    Place::Inside(_) => return kernel::open(&path, flags, mode),
                    Place::Outside(other) => return kernel::open(&kernel::text(other)?, flags, mode),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::AGAIN)
}

/// Where the kernel has not found its way: by links and directories that only the container has so far.
fn open_elsewhere(spool: &Spool, inner: &[u8], flags: i32) -> Result<Place> {
    let follows = flags & libc::O_NOFOLLOW == 0 && flags & libc::O_EXCL == 0;
    match resolve::resolve(spool, inner, follows) {
        Ok(Target::Inside(inner, _)) => Ok(Place::Inside(inner)),
        Ok(Target::Outside(path)) => Ok(Place::Outside(path)),
        Err(Errno::NOENT) if flags & libc::O_CREAT != 0 => resolve::resolve_parent(spool, inner),
        Err(error) => Err(error),
    }
}

/// Whether the file was packed, or removed, since its name was looked up.
fn is_gone(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Where a call of the C library's own goes that finds, but does not make, what a path means.
pub fn way(directory: i32, path: &[u8], follow: bool) -> Verdict<Way> {
    at(
        directory,
        path,
        |spool, inner| match resolve::resolve(spool, &inner, follow)? {
            Target::Inside(inner, Found::Packed(stub)) => Ok(Way::Packed(spool, inner, stub)),
            Target::Inside(inner, Found::Real(_)) => spool.real(&inner).map(Way::Real),
            Target::Outside(path) => kernel::text(path).map(Way::Real),
        },
        |path| Ok(Way::Real(path.clone())),
    )
}

/// The same, of a file that has content in the tree then.
pub fn filled(directory: i32, path: &[u8], follow: bool) -> Verdict<CString> {
    let way = way(directory, path, follow)?;
    Some(way.and_then(|way| match way {
        Way::Real(path) => Ok(path),
        Way::Packed(spool, inner, _) => {
            spool.ask(&Request::Fill { path: inner.clone(), is_emptied: false })?;
            spool.real(&inner)
        }
    }))
}

/// Where something new goes.
pub fn new_name(directory: i32, path: &[u8]) -> Verdict<CString> {
    at(
        directory,
        path,
        |spool, inner| {
            spool.await_room()?;
            match resolve::resolve_parent(spool, &inner)? {
                Place::Inside(inner) => {
                    spool.list_parent(&inner)?;
                    spool.real(&inner)
                }
                Place::Outside(path) => kernel::text(path),
            }
        },
        |path| Ok(path.clone()),
    )
}

/// `mkdirat`.
pub fn make_directory(directory: i32, path: &[u8], mode: u32) -> Verdict<()> {
    let mode = Mode::from_raw_mode(mode);
    let make = |path: &CString| rustix::fs::mkdirat(CWD, path, mode);
    at(directory, path, |spool, inner| in_parent(spool, &inner, |_, path| make(path)), make)
}

/// `symlinkat`.
pub fn make_link(target: &[u8], directory: i32, path: &[u8]) -> Verdict<()> {
    let make = |path: &CString| rustix::fs::symlinkat(target, CWD, path);
    at(directory, path, |spool, inner| in_parent(spool, &inner, |_, path| make(path)), make)
}

/// `unlinkat`, without a flag or with `AT_REMOVEDIR`.
pub fn remove(directory: i32, path: &[u8], is_directory: bool) -> Verdict<()> {
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    at(
        directory,
        path,
        |spool, inner| {
            if inner.is_empty() {
                return Err(if is_directory { Errno::BUSY } else { Errno::ISDIR });
            }
            in_parent(spool, &inner, |inner, _| {
                let path = inner.to_vec();
                spool.ask(&if is_directory { Request::RemoveDir { path } } else { Request::Unlink { path } })
            })
        },
        |path| rustix::fs::unlinkat(CWD, path, flags),
    )
}

/// `renameat2` with no flag, or `RENAME_NOREPLACE`.
pub fn rename(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Verdict<()> {
    let request = |from, to| Request::Rename { from, to, keeps: flags & libc::RENAME_NOREPLACE != 0 };
    if flags & !libc::RENAME_NOREPLACE != 0 {
        return place::find(from.0, from.1).or_else(|| place::find(to.0, to.1)).map(|_| Err(Errno::INVAL));
    }
    of_two(from, to, request)
}

/// `linkat`.
pub fn link(from: (i32, &[u8]), to: (i32, &[u8])) -> Verdict<()> {
    of_two(from, to, |from, to| Request::Link { from, to })
}

fn of_two(
    from: (i32, &[u8]),
    to: (i32, &[u8]),
    request: impl Fn(Vec<u8>, Vec<u8>) -> Request,
) -> Verdict<()> {
    let both = (place::find(from.0, from.1), place::find(to.0, to.1));
    let name = |spool: &Spool, inner: &[u8]| match resolve::resolve_parent(spool, inner)? {
        Place::Inside(inner) => spool.list_parent(&inner).map(|()| inner),
        Place::Outside(_) => Err(Errno::XDEV),
    };
    match both {
        (None, None) => None,
        (Some((spool, Place::Inside(from))), Some((_, Place::Inside(to)))) => {
            if from.is_empty() || to.is_empty() {
                return Some(Err(Errno::BUSY));
            }
            Some(name(spool, &from).and_then(|from| spool.ask(&request(from, name(spool, &to)?))))
        }
        // From one file system to another, as far as the program can tell.
        _ => Some(Err(Errno::XDEV)),
    }
}

/// `readlinkat`.
pub fn read_link(directory: i32, path: &[u8]) -> Verdict<Vec<u8>> {
    let read = |path: &CString| rustix::fs::readlink(path, Vec::new()).map(CString::into_bytes);
    Some(way(directory, path, false)?.and_then(|way| match way {
        Way::Real(path) => read(&path),
        Way::Packed(..) => Err(Errno::INVAL),
    }))
}

/// `faccessat`.
pub fn access(directory: i32, path: &[u8], wanted: i32, flags: i32) -> Verdict<()> {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let wanted = Access::from_bits_retain(wanted.cast_unsigned());
    let flags = AtFlags::from_bits_retain(flags.cast_unsigned());
    Some(way(directory, path, follow)?.and_then(|way| match way {
        Way::Real(path) => rustix::fs::accessat(CWD, &path, wanted, flags),
        Way::Packed(_, _, stub) => may(&stub, wanted),
    }))
}

fn may(stub: &Stub, wanted: Access) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let executes = stub.mode & 0o111 != 0;
    let bits = wanted.bits() as u16 & 0o7;
    let shift = if user == stub.uid {
        6
    } else if rustix::process::getegid().as_raw() == stub.gid {
        3
    } else {
        0
    };
    let allowed = if user == 0 { 0o6 | u16::from(executes) } else { stub.mode >> shift };
    if bits & !allowed == 0 { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Attributes by path: `fchmodat`, `fchownat`, `utimensat`. `of_directory` is the kernel's call.
pub fn change(
    directory: i32,
    path: &[u8],
    follow: bool,
    change: AttrChange,
    of_directory: impl FnOnce(&CString) -> Result<()>,
) -> Verdict<()> {
    let (spool, place) = place::find(directory, path)?;
    Some((|| {
        let inner = match place {
            Place::Inside(inner) => inner,
            Place::Outside(path) => return of_directory(&kernel::text(path)?),
        };
        match resolve::resolve(spool, &inner, follow)? {
            Target::Inside(inner, Found::Real(stat)) if is_kind(stat.st_mode, libc::S_IFDIR) => {
                of_directory(&spool.real(&inner)?)
            }
            Target::Inside(path, _) => spool.ask(&Request::Change { path, change }),
            Target::Outside(path) => of_directory(&kernel::text(path)?),
        }
    })())
}

/// `fsync` of an open file of the tree.
pub fn sync(number: i32) -> Verdict<()> {
    let spool = crate::spool::get()?;
    let stat = rustix::fs::fstat(kernel::borrow(number).ok()?).ok()?;
    let path =
        Some(stat).filter(|stat| spool.is_on(stat.st_dev)).and_then(|_| kernel::path_of(number).ok())?;
    let path = spool.inner_of_tree(&path)?;
    let is_file = is_kind(stat.st_mode, libc::S_IFREG) && stat.st_nlink > 0;
    Some(spool.ask(&Request::Sync { path: is_file.then_some(path) }))
}

/// `sync`.
pub fn sync_all() -> Verdict<()> {
    Some(crate::spool::get()?.ask(&Request::Sync { path: None }))
}

/// What programs call a real path of the tree.
pub fn outer(real: &[u8]) -> Option<Vec<u8>> {
    let spool = crate::spool::get()?;
    spool.inner_of_tree(real).map(|inner| spool.outer(&inner))
}

/// `realpath`, of a path below the container's directory.
pub fn real_path(path: &[u8]) -> Verdict<Vec<u8>> {
    at(
        libc::AT_FDCWD,
        path,
        |spool, inner| match resolve::resolve(spool, &inner, true)? {
            Target::Inside(inner, _) => Ok(spool.outer(&inner)),
            Target::Outside(path) => Ok(path),
        },
        |path| Ok(path.as_bytes().to_vec()),
    )
}
