//! Resolves programs to execute: files of the tree, and scripts whose interpreter is one.
//!
//! The kernel would resolve the interpreter's path without this library, and pass it the script's path in the spool.

use crate::kernel::{self, Result};
use crate::script::{HEAD_SIZE, interpreter};
use crate::{attributes, names, permissions, spool};
use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use tameike_interpose::Verdict;

/// Largest depth of interpreters that are scripts, as in Linux.
const LEVELS: usize = 5;
/// Search path without the variable PATH, as in the C library.
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";

pub struct Program {
    /// The kernel's path.
    pub path: CString,
    /// Replacement of the first argument for a script: interpreter, its argument, script.
    pub first: Vec<CString>,
    /// Open until execution, so that the packer does not pack the file.
    _file: Option<OwnedFd>,
}

/// Finds the program of a path; `None` leaves it to the kernel.
pub fn find(directory: i32, path: &[u8]) -> Verdict<Program> {
    spool::get()?;
    resolve(directory, path).transpose()
}

fn resolve(directory: i32, path: &[u8]) -> Result<Option<Program>> {
    if path.is_empty() {
        return Ok(None);
    }
    let mut first: Vec<CString> = Vec::new();
    let (mut name, mut start, mut is_ours) = (path.to_vec(), directory, false);
    for level in 0.. {
        let unpacked = names::unpacked(start, &name, true).transpose()?;
        is_ours |= unpacked.is_some();
        let real = unpacked.map_or_else(|| kernel::text(name.clone()), Ok)?;
        let (file, head) =
            head(start, &real).map_or((None, [0; HEAD_SIZE]), |(file, head)| (Some(file), head));
        let Some(found) = interpreter(&head) else {
            return Ok(is_ours.then_some(Program { path: real, first, _file: file }));
        };
        let may_run = || {
            let start = kernel::borrow(start)?;
            rustix::fs::accessat(start, &real, Access::EXEC_OK, AtFlags::EACCESS)
        };
        let run = if level < LEVELS { may_run() } else { Err(Errno::LOOP) };
        if let Err(error) = run {
            return if is_ours { Err(error) } else { Ok(None) };
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
        first = before.chain(after).collect::<Result<_>>()?;
        (name, start) = (found.path.to_vec(), libc::AT_FDCWD);
    }
    Ok(None)
}

/// Opens a program, and reads its first bytes.
fn head(directory: i32, path: &CStr) -> Option<(OwnedFd, [u8; HEAD_SIZE])> {
    let directory = kernel::borrow(directory).ok()?;
    // Before the open, as opening a FIFO or device has effects.
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

/// Returns candidates for a program name without a slash: one path for each directory of `list`.
pub fn candidates(name: &[u8], list: Option<&[u8]>) -> Result<Vec<CString>> {
    let dirs = list.unwrap_or(PATH_DEFAULT).split(|byte| *byte == b':');
    let path = |dir: &[u8]| if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() };
    dirs.map(|dir| kernel::text(path(dir))).collect()
}

/// Returns the first path of an executable file, or else the first that exists.
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
    let allowed = permissions::access(libc::AT_FDCWD, path.as_bytes(), libc::X_OK, libc::AT_EACCESS);
    allowed.unwrap_or_else(|| rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)).is_ok()
}
