//! Calls on paths below the container's directory.

use crate::kernel::{self, Result, is_kind};
use crate::location::{self, Location};
use crate::resolve::{self, Found, Target};
use crate::spool::Spool;
use rustix::fs::{AtFlags, CWD, Mode, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{IntoRawFd, OwnedFd};
use tameike_core::spool::protocol::Request;
use tameike_core::spool::stub::Stub;
use tameike_interpose::Verdict;

/// Attempts of a call whose file is packed concurrently.
const TRIES: u32 = 100;
const WRITES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC | libc::O_CREAT;

/// Location of an existing file.
pub enum Existing {
    /// A file in the tree.
    Real(&'static Spool, Vec<u8>, Box<Stat>),
    /// A path outside the tree, whose file is not checked.
    Outside(CString),
    Packed(&'static Spool, Vec<u8>, Stub),
}

/// Runs `inside` for a path in the tree, or `outside` for one outside.
fn at<T>(
    directory: i32,
    path: &[u8],
    inside: impl FnOnce(&'static Spool, Vec<u8>) -> Result<T>,
    outside: impl FnOnce(&CString) -> Result<T>,
) -> Verdict<T> {
    let (spool, place) = location::find(directory, path)?;
    Some(match place {
        Location::Inside(inner) => check_end(spool, &inner, path).and_then(|()| inside(spool, inner)),
        Location::Outside(path) => kernel::text(path).and_then(|path| outside(&path)),
    })
}

fn ends_as_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// A path that ends with `/` or `/.` must be a directory.
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

/// Resolves the directory of a path, and calls `inside` or `outside` with the resulting path.
fn in_parent<T>(
    spool: &Spool,
    inner: &[u8],
    inside: impl FnOnce(Vec<u8>) -> Result<T>,
    outside: impl FnOnce(&CString) -> Result<T>,
) -> Result<T> {
    match resolve::resolve_parent(spool, inner)? {
        Location::Inside(inner) => {
            spool.list_parent(&inner)?;
            inside(inner)
        }
        Location::Outside(path) => outside(&kernel::text(path)?),
    }
}

/// Creates a name by a call of the kernel, inside or outside the tree.
fn make<T>(directory: i32, path: &[u8], call: impl Fn(&CString) -> Result<T>) -> Verdict<T> {
    let (spool, place) = location::find(directory, path)?;
    Some(match place {
        Location::Inside(inner) => in_parent(spool, &inner, |inner| call(&spool.real(&inner)?), &call),
        Location::Outside(path) => kernel::text(path).and_then(|path| call(&path)),
    })
}

/// `openat` of a redirected path.
pub fn open(directory: i32, path: &[u8], flags: i32, mode: u32) -> Verdict<i32> {
    // The spool in memory does not support O_DIRECT.
    let flags = flags & !libc::O_DIRECT;
    if flags & libc::O_CREAT != 0 && ends_as_directory(path) {
        return location::find(directory, path).map(|_| Err(Errno::ISDIR));
    }
    let opened = at(
        directory,
        path,
        |spool, inner| open_inside(spool, &inner, flags, mode),
        |path| kernel::open(path, flags, mode),
    );
    opened.map(|opened| opened.map(IntoRawFd::into_raw_fd))
}

fn open_inside(spool: &Spool, inner: &[u8], flags: i32, mode: u32) -> Result<OwnedFd> {
    spool.list_parent(inner)?;
    if flags & libc::O_CREAT != 0 {
        spool.await_space()?;
    }
    let (mut inner, mut last) = (inner.to_vec(), Errno::AGAIN);
    for _ in 0..TRIES {
        let path = spool.real(&inner)?;
        match kernel::open_plain(&path, flags, mode) {
            Ok(file) if may_be_unlinked(flags) && is_unlinked(&file) => {}
            // O_PATH opens the stub itself.
            Ok(_)
                if flags & libc::O_PATH != 0
                    && matches!(resolve::lookup(spool, &inner), Ok(Found::Packed(_))) =>
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
                    // The same path: its file has appeared since.
                    Elsewhere::At(Location::Inside(other)) => inner = other,
                    Elsewhere::At(Location::Outside(other)) => {
                        return kernel::open(&kernel::text(other)?, flags, mode);
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Location of a file that the kernel did not open.
enum Elsewhere {
    /// A link that must not be followed.
    Link,
    Packed(Vec<u8>),
    /// Reached through links, or directories that are only in the container so far.
    At(Location),
}

fn open_elsewhere(spool: &Spool, inner: &[u8], flags: i32) -> Result<Elsewhere> {
    let follows = flags & libc::O_NOFOLLOW == 0 && !makes_new(flags);
    match resolve::resolve(spool, inner, follows) {
        Ok(Target::Inside(inner, Found::Packed(_))) => Ok(Elsewhere::Packed(inner)),
        Ok(Target::Inside(_, Found::Real(stat))) if is_kind(stat.st_mode, libc::S_IFLNK) => {
            Ok(Elsewhere::Link)
        }
        Ok(Target::Inside(inner, Found::Real(_))) => Ok(Elsewhere::At(Location::Inside(inner))),
        Ok(Target::Outside(path)) => Ok(Elsewhere::At(Location::Outside(path))),
        Err(Errno::NOENT) if flags & libc::O_CREAT != 0 => {
            resolve::resolve_new(spool, inner, follows).map(Elsewhere::At)
        }
        Err(error) => Err(error),
    }
}

fn makes_new(flags: i32) -> bool {
    flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0
}

/// Returns whether packing may have unlinked a file that was just opened.
fn may_be_unlinked(flags: i32) -> bool {
    flags & WRITES != 0 && !makes_new(flags) && flags & libc::O_TMPFILE != libc::O_TMPFILE
}

/// Returns whether the file was packed or removed since its lookup.
fn is_unlinked(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Finds an existing file, for calls that do not create one.
pub fn find_existing(directory: i32, path: &[u8], follow: bool) -> Verdict<Existing> {
    let follow = follow || ends_as_directory(path);
    at(
        directory,
        path,
        |spool, inner| match resolve::resolve(spool, &inner, follow)? {
            Target::Inside(inner, Found::Packed(stub)) => Ok(Existing::Packed(spool, inner, stub)),
            Target::Inside(inner, Found::Real(stat)) => Ok(Existing::Real(spool, inner, stat)),
            Target::Outside(path) => kernel::text(path).map(Existing::Outside),
        },
        |path| Ok(Existing::Outside(path.clone())),
    )
}

/// As [`find_existing`], but unpacks a packed file into the tree.
pub fn unpacked(directory: i32, path: &[u8], follow: bool) -> Verdict<CString> {
    let existing = find_existing(directory, path, follow)?;
    Some(existing.and_then(|existing| match existing {
        Existing::Outside(path) => Ok(path),
        Existing::Real(spool, inner, _) => spool.real(&inner),
        Existing::Packed(spool, inner, _) => {
            spool.ask(&Request::Fill { path: inner.clone(), is_emptied: false })?;
            spool.real(&inner)
        }
    }))
}

/// Resolves the path of a new file.
pub fn new_name(directory: i32, path: &[u8]) -> Verdict<CString> {
    make(directory, path, |path| Ok(path.clone()))
}

/// `mkdirat` of a redirected path.
pub fn make_directory(directory: i32, path: &[u8], mode: u32) -> Verdict<()> {
    let mode = Mode::from_raw_mode(mode);
    make(directory, path, |path| rustix::fs::mkdirat(CWD, path, mode))
}

/// `symlinkat` at a redirected path.
pub fn make_link(target: &[u8], directory: i32, path: &[u8]) -> Verdict<()> {
    make(directory, path, |path| rustix::fs::symlinkat(target, CWD, path))
}

/// `truncate` of a redirected path.
pub fn truncate(path: &[u8], size: i64) -> Verdict<()> {
    let Ok(size) = u64::try_from(size) else {
        return location::find(libc::AT_FDCWD, path).map(|_| Err(Errno::INVAL));
    };
    let set_size = |file: OwnedFd| rustix::fs::ftruncate(file, size);
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOCTTY;
    at(
        libc::AT_FDCWD,
        path,
        |spool, inner| open_inside(spool, &inner, flags, 0).and_then(set_size),
        |path| kernel::open(path, flags, 0).and_then(set_size),
    )
}

/// `unlinkat`, without flags or with `AT_REMOVEDIR`.
pub fn remove(directory: i32, path: &[u8], is_directory: bool) -> Verdict<()> {
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let elsewhere = |path: &CString| rustix::fs::unlinkat(CWD, path, flags);
    let (spool, place) = location::find(directory, path)?;
    Some((|| {
        let inner = match place {
            Location::Inside(inner) => inner,
            Location::Outside(path) => return elsewhere(&kernel::text(path)?),
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

/// `renameat2`; supports `RENAME_NOREPLACE` only.
pub fn rename(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Verdict<()> {
    let request = |from, to| Request::Rename { from, to, keeps: flags & libc::RENAME_NOREPLACE != 0 };
    if flags & !libc::RENAME_NOREPLACE != 0 {
        return location::find(from.0, from.1)
            .or_else(|| location::find(to.0, to.1))
            .map(|_| Err(Errno::INVAL));
    }
    of_two(from, to, request)
}

/// `linkat` between redirected paths.
pub fn link(from: (i32, &[u8]), to: (i32, &[u8]), flags: i32) -> Verdict<()> {
    let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && from.1.is_empty();
    let follows = flags & libc::AT_SYMLINK_FOLLOW != 0;
    // Links an open file that has no name.
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
    let both = (location::find(from.0, from.1), location::find(to.0, to.1));
    let name = |spool: &Spool, inner: &[u8]| in_parent(spool, inner, Ok, |_| Err(Errno::XDEV));
    match both {
        (None, None) => None,
        (Some((spool, Location::Inside(source))), Some((_, Location::Inside(target)))) => {
            if source.is_empty() || target.is_empty() {
                return Some(Err(Errno::BUSY));
            }
            Some((|| {
                check_end(spool, &source, from.1)?;
                let source = name(spool, &source)?;
                spool.ask(&request(source, name(spool, &target)?))
            })())
        }
        // For programs, the container is a separate file system.
        _ => Some(Err(Errno::XDEV)),
    }
}

/// `readlinkat` of a redirected path.
pub fn read_link(directory: i32, path: &[u8]) -> Verdict<Vec<u8>> {
    let read = |path: &CString| rustix::fs::readlink(path, Vec::new()).map(CString::into_bytes);
    Some(find_existing(directory, path, false)?.and_then(|existing| match existing {
        Existing::Outside(path) => read(&path),
        Existing::Real(spool, inner, _) => read(&spool.real(&inner)?),
        Existing::Packed(..) => Err(Errno::INVAL),
    }))
}

/// Returns the location of an open file of the tree, and its attributes.
pub fn find_open(number: i32) -> Option<(&'static Spool, Vec<u8>, Stat)> {
    let spool = crate::spool::get()?;
    let stat = rustix::fs::fstat(kernel::borrow(number).ok()?).ok()?;
    if !spool.is_on(stat.st_dev) {
        return None;
    }
    Some((spool, spool.inner_of_tree(&kernel::path_of(number).ok()?)?, stat))
}

/// `fsync` of an open file of the tree.
pub fn sync(number: i32) -> Verdict<()> {
    let (spool, path, stat) = find_open(number)?;
    let is_file = is_kind(stat.st_mode, libc::S_IFREG) && stat.st_nlink > 0;
    Some(spool.ask(&Request::Sync { path: is_file.then_some(path) }))
}

/// `sync` of everything in the spool.
pub fn sync_all() -> Verdict<()> {
    Some(crate::spool::get()?.ask(&Request::Sync { path: None }))
}

/// Converts a kernel's path below the tree to the one that programs use.
pub fn outer(real: &[u8]) -> Option<Vec<u8>> {
    let spool = crate::spool::get()?;
    spool.inner_of_tree(real).map(|inner| spool.outer(&inner))
}

/// Converts a relative path from outside into the tree to an absolute one.
pub fn shown(directory: i32, path: &[u8]) -> Option<Vec<u8>> {
    let is_elsewhere = kernel::start_of(directory).is_ok_and(|start| outer(&start).is_none());
    match location::find(directory, path).filter(|_| path.first() != Some(&b'/') && is_elsewhere)? {
        (spool, Location::Inside(inner)) => Some(spool.outer(&inner)),
        (_, Location::Outside(path)) => Some(path),
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
