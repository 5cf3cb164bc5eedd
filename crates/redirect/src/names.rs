//! Calls on paths below the container's directory.

use crate::kernel::{self, Result, is_kind};
use crate::place::{self, Place};
use crate::resolve::{self, Found, Target};
use crate::spool::Spool;
use rustix::fs::{AtFlags, CWD, Mode, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{IntoRawFd, OwnedFd};
use tameike_core::spool::protocol::Request;
use tameike_core::spool::stub::Stub;
use tameike_interpose::Verdict;

/// How often a call is made again whose file was packed in between.
const TRIES: u32 = 100;
/// Flags by which a file is written to.
const WRITES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC | libc::O_CREAT;

/// Where the kernel finds what a path means, for a call of the C library's own.
pub enum Way {
    /// To what is there.
    Real(&'static Spool, Vec<u8>, Box<Stat>),
    /// There, and that is not in the tree; what it is, is not known.
    Outside(CString),
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
        Place::Inside(inner) => check_end(spool, &inner, path).and_then(|()| inside(spool, inner)),
        Place::Outside(path) => kernel::text(path).and_then(|path| outside(&path)),
    })
}

fn ends_as_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// A path that ends as that of a directory is one of a directory.
fn check_end(spool: &Spool, inner: &[u8], path: &[u8]) -> Result<()> {
    if !ends_as_directory(path) {
        return Ok(());
    }
    match resolve::resolve(spool, inner, true)? {
        Target::Outside(_) => Ok(()),
        inside if inside.is_directory() => Ok(()),
        _ => Err(Errno::NOTDIR),
    }
}

/// Calls `inside` on where a name is, or `outside` where its directory is elsewhere.
fn in_parent<T>(
    spool: &Spool,
    inner: &[u8],
    inside: impl FnOnce(Vec<u8>) -> Result<T>,
    outside: impl FnOnce(&CString) -> Result<T>,
) -> Result<T> {
    match resolve::resolve_parent(spool, inner)? {
        Place::Inside(inner) => {
            spool.list_parent(&inner)?;
            inside(inner)
        }
        Place::Outside(path) => outside(&kernel::text(path)?),
    }
}

/// What is made at a name: the kernel does it, wherever that is.
fn make<T>(directory: i32, path: &[u8], call: impl Fn(&CString) -> Result<T>) -> Verdict<T> {
    let (spool, place) = place::find(directory, path)?;
    Some(match place {
        Place::Inside(inner) => in_parent(spool, &inner, |inner| call(&spool.real(&inner)?), &call),
        Place::Outside(path) => kernel::text(path).and_then(|path| call(&path)),
    })
}

/// `openat`.
pub fn open(directory: i32, path: &[u8], flags: i32, mode: u32) -> Verdict<i32> {
    // Memory has no blocks that could be aligned.
    let flags = flags & !libc::O_DIRECT;
    if flags & libc::O_CREAT != 0 && ends_as_directory(path) {
        return place::find(directory, path).map(|_| Err(Errno::ISDIR));
    }
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
    let (mut inner, mut last) = (inner.to_vec(), Errno::AGAIN);
    for _ in 0..TRIES {
        let path = spool.real(&inner)?;
        match kernel::open_plain(&path, flags, mode) {
            Ok(file) if may_be_gone(flags) && is_gone(&file) => {}
            // The link itself, where somebody asks for it so.
            Ok(_)
                if flags & libc::O_PATH != 0
                    && matches!(resolve::look(spool, &inner), Ok(Found::Packed(_))) =>
            {
                spool.ask(&Request::Fill { path: inner.clone(), is_emptied: false })?;
            }
            Ok(file) => {
                if flags & libc::O_DIRECTORY != 0 {
                    spool.list(&inner)?;
                }
                return Ok(file);
            }
            Err(error @ (Errno::NOENT | Errno::LOOP | Errno::NOTDIR)) => {
                last = error;
                match open_elsewhere(spool, &inner, flags)? {
                    Elsewhere::Packed(path) => {
                        if flags & libc::O_DIRECTORY != 0 {
                            return Err(Errno::NOTDIR);
                        }
                        let is_emptied =
                            flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
                        spool.ask(&Request::Fill { path: path.clone(), is_emptied })?;
                        inner = path;
                    }
                    Elsewhere::Link => return Err(error),
                    // The same place: what is there has come since.
                    Elsewhere::At(Place::Inside(other)) => inner = other,
                    Elsewhere::At(Place::Outside(other)) => {
                        return kernel::open(&kernel::text(other)?, flags, mode);
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Where the kernel has not found its way.
enum Elsewhere {
    /// It is a link, which is not to be followed.
    Link,
    /// The file is packed.
    Packed(Vec<u8>),
    /// By links, or directories that only the container has so far.
    At(Place),
}

fn open_elsewhere(spool: &Spool, inner: &[u8], flags: i32) -> Result<Elsewhere> {
    let follows = flags & libc::O_NOFOLLOW == 0 && !makes_new(flags);
    match resolve::resolve(spool, inner, follows) {
        Ok(Target::Inside(inner, Found::Packed(_))) => Ok(Elsewhere::Packed(inner)),
        Ok(Target::Inside(_, Found::Real(stat))) if is_kind(stat.st_mode, libc::S_IFLNK) => {
            Ok(Elsewhere::Link)
        }
        Ok(Target::Inside(inner, Found::Real(_))) => Ok(Elsewhere::At(Place::Inside(inner))),
        Ok(Target::Outside(path)) => Ok(Elsewhere::At(Place::Outside(path))),
        Err(Errno::NOENT) if flags & libc::O_CREAT != 0 => {
            resolve::resolve_new(spool, inner, follows).map(Elsewhere::At)
        }
        Err(error) => Err(error),
    }
}

fn makes_new(flags: i32) -> bool {
    flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0
}

/// Whether a file that was just opened may have no name any more because it was packed.
fn may_be_gone(flags: i32) -> bool {
    flags & WRITES != 0 && !makes_new(flags) && flags & libc::O_TMPFILE != libc::O_TMPFILE
}

/// Whether the file was packed, or removed, since its name was looked up.
fn is_gone(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Where a call of the C library's own goes that finds, but does not make, what a path means.
pub fn way(directory: i32, path: &[u8], follow: bool) -> Verdict<Way> {
    let follow = follow || ends_as_directory(path);
    at(
        directory,
        path,
        |spool, inner| match resolve::resolve(spool, &inner, follow)? {
            Target::Inside(inner, Found::Packed(stub)) => Ok(Way::Packed(spool, inner, stub)),
            Target::Inside(inner, Found::Real(stat)) => Ok(Way::Real(spool, inner, stat)),
            Target::Outside(path) => kernel::text(path).map(Way::Outside),
        },
        |path| Ok(Way::Outside(path.clone())),
    )
}

/// The same, of a file that has content in the tree then.
pub fn filled(directory: i32, path: &[u8], follow: bool) -> Verdict<CString> {
    let way = way(directory, path, follow)?;
    Some(way.and_then(|way| match way {
        Way::Outside(path) => Ok(path),
        Way::Real(spool, inner, _) => spool.real(&inner),
        Way::Packed(spool, inner, _) => {
            spool.ask(&Request::Fill { path: inner.clone(), is_emptied: false })?;
            spool.real(&inner)
        }
    }))
}

/// Where something new goes.
pub fn new_name(directory: i32, path: &[u8]) -> Verdict<CString> {
    make(directory, path, |path| Ok(path.clone()))
}

/// `mkdirat`.
pub fn make_directory(directory: i32, path: &[u8], mode: u32) -> Verdict<()> {
    let mode = Mode::from_raw_mode(mode);
    make(directory, path, |path| rustix::fs::mkdirat(CWD, path, mode))
}

/// `symlinkat`.
pub fn make_link(target: &[u8], directory: i32, path: &[u8]) -> Verdict<()> {
    make(directory, path, |path| rustix::fs::symlinkat(target, CWD, path))
}

/// `truncate`.
pub fn truncate(path: &[u8], size: i64) -> Verdict<()> {
    let Ok(size) = u64::try_from(size) else {
        return place::find(libc::AT_FDCWD, path).map(|_| Err(Errno::INVAL));
    };
    let cut = |file: OwnedFd| rustix::fs::ftruncate(file, size);
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOCTTY;
    at(
        libc::AT_FDCWD,
        path,
        |spool, inner| open_inside(spool, &inner, flags, 0).and_then(cut),
        |path| kernel::open(path, flags, 0).and_then(cut),
    )
}

/// `unlinkat`, without a flag or with `AT_REMOVEDIR`.
pub fn remove(directory: i32, path: &[u8], is_directory: bool) -> Verdict<()> {
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let elsewhere = |path: &CString| rustix::fs::unlinkat(CWD, path, flags);
    let (spool, place) = place::find(directory, path)?;
    Some((|| {
        let inner = match place {
            Place::Inside(inner) => inner,
            Place::Outside(path) => return elsewhere(&kernel::text(path)?),
        };
        if is_directory && (path == b"." || path.ends_with(b"/.")) {
            return Err(Errno::INVAL);
        }
        if !is_directory && ends_as_directory(path) {
            let is_there = resolve::resolve(spool, &inner, false)?;
            return Err(if is_there.is_directory() { Errno::ISDIR } else { Errno::NOTDIR });
        }
        if inner.is_empty() {
            return Err(if is_directory { Errno::BUSY } else { Errno::ISDIR });
        }
        let request =
            |path| if is_directory { Request::RemoveDir { path } } else { Request::Unlink { path } };
        in_parent(spool, &inner, |path| spool.ask(&request(path)), elsewhere)
    })())
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
pub fn link(from: (i32, &[u8]), to: (i32, &[u8]), flags: i32) -> Verdict<()> {
    let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && from.1.is_empty();
    let follows = flags & libc::AT_SYMLINK_FOLLOW != 0;
    // A file without a name, by its descriptor, gets one.
    if by_descriptor || (follows && from.1.starts_with(b"/proc/")) {
        let flags = AtFlags::from_bits_retain(flags.cast_unsigned());
        return make(to.0, to.1, |path| {
            rustix::fs::linkat(kernel::borrow(from.0)?, from.1, CWD, path, flags)
        });
    }
    of_two(from, to, |from, to| Request::Link { from, to })
}

fn of_two(
    from: (i32, &[u8]),
    to: (i32, &[u8]),
    request: impl Fn(Vec<u8>, Vec<u8>) -> Request,
) -> Verdict<()> {
    let both = (place::find(from.0, from.1), place::find(to.0, to.1));
    let name = |spool: &Spool, inner: &[u8]| in_parent(spool, inner, Ok, |_| Err(Errno::XDEV));
    match both {
        (None, None) => None,
        (Some((spool, Place::Inside(source))), Some((_, Place::Inside(target)))) => {
            if source.is_empty() || target.is_empty() {
                return Some(Err(Errno::BUSY));
            }
            Some((|| {
                check_end(spool, &source, from.1)?;
                let source = name(spool, &source)?;
                spool.ask(&request(source, name(spool, &target)?))
            })())
        }
        // From one file system to another, as far as the program can tell.
        _ => Some(Err(Errno::XDEV)),
    }
}

/// `readlinkat`.
pub fn read_link(directory: i32, path: &[u8]) -> Verdict<Vec<u8>> {
    let read = |path: &CString| rustix::fs::readlink(path, Vec::new()).map(CString::into_bytes);
    Some(way(directory, path, false)?.and_then(|way| match way {
        Way::Outside(path) => read(&path),
        Way::Real(spool, inner, _) => read(&spool.real(&inner)?),
        Way::Packed(..) => Err(Errno::INVAL),
    }))
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

/// An absolute path for one that leads into the tree from elsewhere.
pub fn shown(directory: i32, path: &[u8]) -> Option<Vec<u8>> {
    let is_elsewhere = kernel::start_of(directory).is_ok_and(|start| outer(&start).is_none());
    match place::find(directory, path).filter(|_| path.first() != Some(&b'/') && is_elsewhere)? {
        (spool, Place::Inside(inner)) => Some(spool.outer(&inner)),
        (_, Place::Outside(path)) => Some(path),
    }
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
