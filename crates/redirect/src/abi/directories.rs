//! Directories: their names, and the one that the process is in.
//!
//! A packed file is a symbolic link for who reads a directory by itself: what kind of thing a link is, is not told, so that programs
//! look.

use super::{content, give, of, redirect};
use crate::{kernel, names, spool};
use libc::{AT_FDCWD, DIR, dirent, dirent64};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use tameike_interpose::arguments::Text;
use tameike_interpose::{Verdict, call, deliver, guarded, interpose};

type In = *const c_void;
type List = *mut *mut *mut dirent;

/// Directories of the tree that are open as streams; one for which there is no place is found by its descriptor.
static STREAMS: [AtomicPtr<DIR>; 64] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 64];

fn note(stream: *mut DIR) {
    let null = std::ptr::null_mut();
    let mut places = STREAMS.iter();
    places.find(|place| place.compare_exchange(null, stream, Ordering::AcqRel, Ordering::Relaxed).is_ok());
}

fn forget(stream: *mut DIR) {
    let null = std::ptr::null_mut();
    for place in &STREAMS {
        let _ = place.compare_exchange(stream, null, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn is_of_tree(stream: *mut DIR) -> bool {
    STREAMS.iter().any(|place| place.load(Ordering::Acquire) == stream)
}

/// The directory of a path, with all its names in the tree.
fn listed(path: &[u8]) -> Verdict<std::ffi::CString> {
    let found = names::filled(AT_FDCWD, path, true)?;
    Some(found.and_then(|real| {
        if let Some(spool) = spool::get()
            && let Some(inner) = spool.inner_of_tree(real.as_bytes())
        {
            spool.list(&inner)?;
        }
        Ok(real)
    }))
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn opendir(path: Text) -> *mut DIR {
    match guarded(|| of(path, listed)) {
        Some(Ok(real)) => {
            let path = Text::of(&real);
            let stream = call!(opendir(path: Text) -> *mut DIR);
            if !stream.is_null() {
                note(stream);
            }
            stream
        }
        Some(Err(error)) => deliver(Err(error)),
        None => call!(opendir(path: Text) -> *mut DIR),
    }
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

/// Takes from an entry what kind of thing it is, where that is a link.
fn veil(entry: *mut dirent) {
    // SAFETY: not null, it is the C library's entry, which nobody else looks at before the caller does.
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
        veil(entry);
    }
    entry
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn readdir64(stream: *mut DIR) -> *mut dirent64 {
    let entry = call!(readdir64(stream: *mut DIR) -> *mut dirent64);
    if is_of_tree(stream) {
        veil(entry.cast());
    }
    entry
}

// The two kinds of entries are one.
const _: () = assert!(size_of::<dirent>() == size_of::<dirent64>());

/// Defines the names of `scandir`, whose C library looks at the names of the tree.
macro_rules! scans {
    ($($name:ident)+) => {$(
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(path: Text, list: List, select: In, order: In) -> c_int {
            match guarded(|| of(path, listed)) {
                Some(Ok(real)) => {
                    let path = Text::of(&real);
                    let count = call!($name(path: Text, list: List, select: In, order: In) -> c_int);
                    for at in 0..usize::try_from(count).unwrap_or(0) {
                        // SAFETY: the C library has put that many entries into the list that the caller gave a place for.
                        veil(unsafe { *(*list).add(at) });
                    }
                    count
                }
                Some(Err(error)) => deliver(Err(error)),
                None => call!($name(path: Text, list: List, select: In, order: In) -> c_int),
            }
        }
    )+};
}

scans! { scandir scandir64 }

redirect! {
    fn [chdir](path: Text) -> c_int, [path] = content(AT_FDCWD, path, true);
}

/// The working directory, where it is in the tree.
fn working_directory(room: *mut c_char, size: usize) -> Verdict<*mut c_char> {
    spool::get()?;
    let outer = names::outer(&kernel::working_directory().ok()?)?;
    Some(match (room.is_null(), size) {
        (false, 0) => Err(Errno::INVAL),
        (true, 1..) if size <= outer.len() => Err(Errno::RANGE),
        _ => give(&outer, room, size),
    })
}

/// `realpath`: the room is for the longest path.
fn real_path(path: Text, room: *mut c_char) -> Verdict<*mut c_char> {
    let outer = of(path, names::real_path)?;
    Some(outer.and_then(|outer| give(&outer, room, libc::PATH_MAX as usize)))
}

interpose! {
    fn [getcwd](room: *mut c_char, size: usize) -> *mut c_char = working_directory(room, size);
    fn [__getcwd_chk](room: *mut c_char, size: usize, all: usize) -> *mut c_char =
        if size <= all { working_directory(room, size) } else { None };
    fn [get_current_dir_name]() -> *mut c_char = working_directory(std::ptr::null_mut(), 0);
    fn [getwd](room: *mut c_char) -> *mut c_char = working_directory(room, libc::PATH_MAX as usize);
    fn [realpath](path: Text, room: *mut c_char) -> *mut c_char = real_path(path, room);
    fn [__realpath_chk](path: Text, room: *mut c_char, all: usize) -> *mut c_char = real_path(path, room);
    fn [canonicalize_file_name](path: Text) -> *mut c_char = real_path(path, std::ptr::null_mut());
}
