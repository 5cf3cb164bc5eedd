//! Files of regions and windows, opened through the ring.

use crate::file::{File, Result, RingFile};
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
/// Time limit for opens that the agent declines: another process may be creating the file, or the kernel has it open for a moment.
const OPEN_TIME: Duration = Duration::from_secs(5);
/// Time between two opens.
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

/// Opens the file of a region. With `size`, creates it if it is missing, and gives an empty one that size, in whole pages.
pub fn open(path: &CStr, size: Option<u64>) -> Result<RingFile> {
    let size = size.map(whole_pages).transpose()?;
    let file = open_in_ring(path, libc::O_RDWR | if size.is_some() { libc::O_CREAT } else { 0 })?;
    let client = file.client();
    let status = client.status(file.handle()).served().unwrap_or(Err(Errno::OPNOTSUPP))?;
    match size {
        None if status.size == 0 => Err(Errno::INVAL),
        None => Ok(file),
        Some(size) if status.size == size => Ok(file),
        Some(_) if status.size > 0 => Err(Errno::EXIST),
        Some(size) => {
            file.note_change();
            client.set_size(file.handle(), size).served().unwrap_or(Err(Errno::BUSY))?;
            Ok(file)
        }
    }
}

/// Creates the empty file of a window, or opens it.
pub fn open_empty(path: &CStr) -> Result<RingFile> {
    let file = open_in_ring(path, libc::O_RDWR | libc::O_CREAT)?;
    let status = file.client().status(file.handle()).served().unwrap_or(Err(Errno::OPNOTSUPP))?;
    if status.size == 0 { Ok(file) } else { Err(Errno::EXIST) }
}

/// The size in whole pages, if a region can have it.
fn whole_pages(size: u64) -> Result<u64> {
    let pages = size.div_ceil(PAGE_SIZE as u64);
    let is_possible = pages > 0 && u32::try_from(pages).is_ok();
    if is_possible { Ok(pages * PAGE_SIZE as u64) } else { Err(Errno::INVAL) }
}

#[expect(clippy::disallowed_methods, reason = "no event shows that the agent would serve the file again")]
fn open_in_ring(path: &CStr, flags: i32) -> Result<RingFile> {
    let until = monotonic() + OPEN_TIME;
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
