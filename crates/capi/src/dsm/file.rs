//! Files of regions and windows, opened through the ring.

use crate::file::{File, Result, RingFile, unlink};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_dsm::control::PAGE_SIZE;
use tameike_io::os::process::monotonic;
use tameike_ring::client::Answer;

/// Mode of a new file.
const MODE: u32 = 0o600;
/// Time limit for opens that the agent declines, as another process may be creating the file, or the kernel has it open for a moment; and for
/// attaches while processes of an earlier region detach.
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// The path from the root directory, as the working directory may change.
pub fn absolute(path: &CStr) -> Result<CString> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let path = std::path::absolute(OsStr::from_bytes(path.to_bytes())).map_err(|_| Errno::NOENT)?;
    if path.as_os_str().len() >= PATH_SIZE_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    CString::new(path.into_os_string().into_vec()).map_err(|_| Errno::INVAL)
}

/// The path of the same file without links and dots; only the file itself may be missing.
fn resolved(path: &CStr) -> Option<CString> {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let found = path.canonicalize();
    let found = found.or_else(|error| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map(|parent| parent.join(name)),
        _ => Err(error),
    });
    CString::new(found.ok()?.into_os_string().into_vec()).ok()
}

/// Opens the file of a region or window, creates it if `creates` is true, and attaches to it. Waits for a while if processes of an earlier
/// region have not detached yet. Removes a new file that no process can use, as space is missing or the view has no regions.
#[expect(clippy::disallowed_methods, reason = "no event shows that the last process has detached")]
pub fn attach<T>(path: &CStr, creates: bool, attach: impl Fn(RingFile) -> Result<T>) -> Result<T> {
    let until = monotonic() + ATTACH_WAIT_MAX;
    loop {
        let (file, is_new) = if creates { open_or_create(path)? } else { (open(path, libc::O_RDWR)?, false) };
        match attach(file) {
            Err(Errno::PIPE) if monotonic() < until => std::thread::sleep(PAUSE),
            Err(error @ (Errno::NOSPC | Errno::OPNOTSUPP)) if is_new => {
                // The error of the attach is the one to report.
                let _ = unlink(path);
                return Err(error);
            }
            attached => return attached,
        }
    }
}

/// Opens a file, or creates it; returns true if it is new.
fn open_or_create(path: &CStr) -> Result<(RingFile, bool)> {
    match open(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) {
        Err(Errno::EXIST) => Ok((open(path, libc::O_RDWR | libc::O_CREAT)?, false)),
        opened => Ok((opened?, true)),
    }
}

/// Gives an empty file of a region `size` bytes, in whole pages. Without a size, the file must have one.
pub fn set_size(file: &RingFile, size: Option<u64>) -> Result<()> {
    let client = file.client();
    match (size, size_of(file)?) {
        (None, 0) => Err(Errno::INVAL),
        (None, _) => Ok(()),
        (Some(size), found) if size == found => Ok(()),
        (Some(size), 0) => {
            file.note_change();
            client.set_size(file.handle(), size).served().unwrap_or(Err(Errno::BUSY))
        }
        (Some(_), _) => Err(Errno::EXIST),
    }
}

/// Checks that the file of a window is empty.
pub fn check_empty(file: &RingFile) -> Result<()> {
    if size_of(file)? == 0 { Ok(()) } else { Err(Errno::EXIST) }
}

fn size_of(file: &RingFile) -> Result<u64> {
    let status = file.client().status(file.handle()).served().unwrap_or(Err(Errno::OPNOTSUPP));
    Ok(status?.size)
}

/// The size in whole pages, if a region can have it.
pub fn whole_pages(size: u64) -> Result<u64> {
    let pages = size.div_ceil(PAGE_SIZE as u64);
    let is_possible = pages > 0 && u32::try_from(pages).is_ok();
    if is_possible { Ok(pages * PAGE_SIZE as u64) } else { Err(Errno::INVAL) }
}

#[expect(clippy::disallowed_methods, reason = "no event shows that the agent would serve the file again")]
fn open(path: &CStr, flags: i32) -> Result<RingFile> {
    let until = monotonic() + ATTACH_WAIT_MAX;
    loop {
        let opened = match RingFile::open(path, flags, MODE) {
            None | Some(Answer::Declined) => {
                resolved(path).and_then(|path| RingFile::open(&path, flags, MODE))
            }
            opened => opened,
        };
        match opened.map(Answer::served) {
            None => {
                if flags & libc::O_CREAT == 0 {
                    // The file may be missing.
                    rustix::fs::stat(path)?;
                }
                return Err(Errno::OPNOTSUPP);
            }
            Some(Some(opened)) => return opened,
            Some(None) if monotonic() > until => {
                File::open(path, flags, MODE)?.close()?;
                return Err(Errno::BUSY);
            }
            Some(None) => std::thread::sleep(PAUSE),
        }
    }
}
