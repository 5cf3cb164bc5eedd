//! Directory streams, and the working directory.
//!
//! Stubs of packed files are symbolic links. `readdir` therefore reports the type of links as DT_UNKNOWN, so that programs call `stat`.

use super::{content, give, of, redirect, with_path};
use crate::{kernel, names, spool};
use libc::{AT_FDCWD, DIR, dirent, dirent64};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use tameike_interpose::arguments::Text;
use tameike_interpose::{Verdict, call, deliver, guarded, interpose};

type In = *const c_void;
type List = *mut *mut *mut dirent;

/// Open streams of directories in the tree. If all slots are in use, entries of further streams keep their type.
static STREAMS: [AtomicPtr<DIR>; 64] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 64];

fn note(stream: *mut DIR) {
    let null = std::ptr::null_mut();
    let mut slots = STREAMS.iter();
    slots.find(|slot| slot.compare_exchange(null, stream, Ordering::AcqRel, Ordering::Relaxed).is_ok());
}

fn forget(stream: *mut DIR) {
    let null = std::ptr::null_mut();
    for slot in &STREAMS {
        let _ = slot.compare_exchange(stream, null, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn is_of_tree(stream: *mut DIR) -> bool {
    STREAMS.iter().any(|slot| slot.load(Ordering::Acquire) == stream)
}

/// The directory of a path, with all its names in the tree.
fn listed(path: &[u8]) -> Verdict<std::ffi::CString> {
    let spool = spool::get()?;
    let found = names::unpacked(AT_FDCWD, path, true)?;
    Some(found.and_then(|real| {
        spool.inner_of_tree(real.as_bytes()).map_or(Ok(()), |inner| spool.list(&inner))?;
        Ok(real)
    }))
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn opendir(path: Text) -> *mut DIR {
    let real = guarded(|| of(path, listed));
    let is_of_tree = matches!(real, Some(Ok(_)));
    let stream = with_path(path, real, |path| call!(opendir(path: Text) -> *mut DIR));
    if is_of_tree && !stream.is_null() {
        note(stream);
    }
    stream
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fdopendir(number: c_int) -> *mut DIR {
    let inner = guarded(|| {
        let spool = spool::get()?;
        let inner = spool.inner_of_tree(&kernel::path_of(number).ok()?)?;
        Some(spool.list(&inner))
    });
    if let Some(Err(error)) = inner {
        return deliver(Err(error));
    }
    let stream = call!(fdopendir(number: c_int) -> *mut DIR);
    if inner.is_some() && !stream.is_null() {
        note(stream);
    }
    stream
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn closedir(stream: *mut DIR) -> c_int {
    forget(stream);
    call!(closedir(stream: *mut DIR) -> c_int)
}

/// Replaces the type of a link by DT_UNKNOWN.
fn hide_type(entry: *mut dirent) {
    // SAFETY: if not null, the pointer is to the C library's entry, which no other code uses before the caller.
    if let Some(entry) = unsafe { entry.as_mut() }
        && entry.d_type == libc::DT_LNK
    {
        entry.d_type = libc::DT_UNKNOWN;
    }
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn readdir(stream: *mut DIR) -> *mut dirent {
    let entry = call!(readdir(stream: *mut DIR) -> *mut dirent);
    if is_of_tree(stream) {
        hide_type(entry);
    }
    entry
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn readdir64(stream: *mut DIR) -> *mut dirent64 {
    let entry = call!(readdir64(stream: *mut DIR) -> *mut dirent64);
    if is_of_tree(stream) {
        hide_type(entry.cast());
    }
    entry
}

// `dirent` and `dirent64` have one layout.
const _: () = assert!(size_of::<dirent>() == size_of::<dirent64>());

/// Defines the variants of `scandir`, which read the directory in the tree.
macro_rules! scans {
    ($($name:ident)+) => {$(
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(path: Text, list: List, select: In, order: In) -> c_int {
            let real = guarded(|| of(path, listed));
            let is_of_tree = matches!(real, Some(Ok(_)));
            let scan = |path: Text| call!($name(path: Text, list: List, select: In, order: In) -> c_int);
            let count = with_path(path, real, scan);
            let entries = if is_of_tree { usize::try_from(count).unwrap_or(0) } else { 0 };
            for at in 0..entries {
                // SAFETY: the C library has stored a list of that many entries at the caller's pointer.
                hide_type(unsafe { *(*list).add(at) });
            }
            count
        }
    )+};
}

scans! { scandir scandir64 }

redirect! {
    fn [chdir](path: Text) -> c_int, [path] = content(AT_FDCWD, path, true);
}

/// Returns the working directory, if it is in the tree.
fn working_directory(buffer: *mut c_char, size: usize) -> Verdict<*mut c_char> {
    spool::get()?;
    let outer = names::outer(&kernel::working_directory().ok()?)?;
    Some(match (buffer.is_null(), size) {
        (false, 0) => Err(Errno::INVAL),
        (true, 1..) if size <= outer.len() => Err(Errno::RANGE),
        _ => give(&outer, buffer, size),
    })
}

/// `realpath`: the buffer has space for the longest path.
fn real_path(path: Text, buffer: *mut c_char) -> Verdict<*mut c_char> {
    let outer = of(path, names::real_path)?;
    Some(outer.and_then(|outer| give(&outer, buffer, libc::PATH_MAX as usize)))
}

interpose! {
    fn [getcwd](buffer: *mut c_char, size: usize) -> *mut c_char = working_directory(buffer, size);
    fn [__getcwd_chk](buffer: *mut c_char, size: usize, all: usize) -> *mut c_char =
        if size <= all { working_directory(buffer, size) } else { None };
    fn [get_current_dir_name]() -> *mut c_char = working_directory(std::ptr::null_mut(), 0);
    fn [getwd](buffer: *mut c_char) -> *mut c_char = working_directory(buffer, libc::PATH_MAX as usize);
    fn [realpath](path: Text, buffer: *mut c_char) -> *mut c_char = real_path(path, buffer);
    fn [__realpath_chk](path: Text, buffer: *mut c_char, all: usize) -> *mut c_char = real_path(path, buffer);
    fn [canonicalize_file_name](path: Text) -> *mut c_char = real_path(path, std::ptr::null_mut());
}
