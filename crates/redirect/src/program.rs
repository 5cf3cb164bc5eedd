//! What the kernel runs when a program is started: files of the tree, and those whose interpreter is one.
//!
//! The kernel would look for an interpreter itself, and tell it the name that a script has in the spool.

use crate::kernel::{self, Result};
use crate::script::{HEAD_SIZE, interpreter};
use crate::{attributes, names, rights, spool};
use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use tameike_interpose::Verdict;

/// Interpreters that are scripts themselves, one after the other: as Linux has it.
const LEVELS: usize = 5;
/// Where programs are looked for when no variable says so: as the C library has it.
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";

/// What is run in the place of a path.
pub struct Program {
    /// Where the kernel has it.
    pub path: CString,
    /// What comes in the place of the first argument, where there is an interpreter: it, its own argument, the script.
    pub first: Vec<CString>,
    /// Held open until it runs, so that nobody packs it before.
    _file: Option<OwnedFd>,
}

/// The program of a path; `None` leaves it to the kernel.
pub fn find(directory: i32, path: &[u8]) -> Verdict<Program> {
    spool::get()?;
    if path.is_empty() {
        return None;
    }
    let mut first: Vec<CString> = Vec::new();
    let (mut name, mut start, mut is_ours) = (path.to_vec(), directory, false);
    for level in 0.. {
        let real = match names::filled(start, &name, true) {
            Some(Ok(real)) => {
                is_ours = true;
                Some(real)
            }
            Some(Err(error)) => return Some(Err(error)),
            None => None,
        };
        let real = match real.map_or_else(|| kernel::text(name.clone()), Ok) {
            Ok(real) => real,
            Err(error) => return Some(Err(error)),
        };
        let (file, head) =
            head(start, &real).map_or((None, [0; HEAD_SIZE]), |(file, head)| (Some(file), head));
        let Some(found) = interpreter(&head) else {
            return is_ours.then_some(Ok(Program { path: real, first, _file: file }));
        };
        if level >= LEVELS {
            return is_ours.then_some(Err(Errno::LOOP));
        }
        if let Err(error) =
            rustix::fs::accessat(kernel::borrow(start).ok()?, &real, Access::EXEC_OK, AtFlags::EACCESS)
        {
            return is_ours.then_some(Err(error));
        }
        let script = if let Some(shown) = names::shown(start, &name) {
            shown
        } else if start == libc::AT_FDCWD || name.starts_with(b"/") {
            name
        } else {
            [format!("/dev/fd/{start}/").as_bytes(), &name].concat()
        };
        let before = [Some(found.path), found.argument, Some(script.as_slice())];
        let before = before.into_iter().flatten().map(|text| kernel::text(text.to_vec()));
        let after = first.into_iter().skip(1).map(Ok);
        first = match before.chain(after).collect::<Result<_>>() {
            Ok(first) => first,
            Err(error) => return Some(Err(error)),
        };
        (name, start) = (found.path.to_vec(), libc::AT_FDCWD);
    }
    None
}

/// A program's file, and what it begins with.
fn head(directory: i32, path: &CStr) -> Option<(OwnedFd, [u8; HEAD_SIZE])> {
    let directory = kernel::borrow(directory).ok()?;
    // Before it is opened: opening a pipe or a device does something.
    let found = rustix::fs::statat(directory, path, AtFlags::empty()).ok()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return None;
    }
    let flags = rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = rustix::fs::openat(directory, path, flags, rustix::fs::Mode::empty()).ok()?;
    let mut head = [0; HEAD_SIZE];
    let mut end = 0;
    while end < HEAD_SIZE {
        match rustix::io::pread(&file, &mut head[end..], end as u64) {
            Ok(0) => break,
            Ok(count) => end += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some((file, head))
}

/// Where a program is looked for that is called by a name without a slash: one path for each directory of `list`.
pub fn candidates(name: &[u8], list: Option<&[u8]>) -> Result<Vec<CString>> {
    let dirs = list.unwrap_or(PATH_DEFAULT).split(|byte| *byte == b':');
    let path = |dir: &[u8]| if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() };
    dirs.map(|dir| kernel::text(path(dir))).collect()
}

/// The path at which there is a file that may be run; else one at which there is something.
pub fn first(paths: Vec<CString>) -> Option<CString> {
    let there: Vec<CString> = paths.into_iter().filter(|path| kind(path).is_some()).collect();
    there.iter().find(|path| kind(path) == Some(libc::S_IFREG) && may_run(path)).or(there.first()).cloned()
}

fn kind(path: &CString) -> Option<u32> {
    let found = attributes::of_path(libc::AT_FDCWD, path.as_bytes(), true);
    let found = found.unwrap_or_else(|| rustix::fs::statat(CWD, path, AtFlags::empty()));
    found.ok().map(|stat| stat.st_mode & libc::S_IFMT)
}

fn may_run(path: &CString) -> bool {
    let allowed = rights::access(libc::AT_FDCWD, path.as_bytes(), libc::X_OK, libc::AT_EACCESS);
    allowed.unwrap_or_else(|| rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)).is_ok()
}
