//! Functions that open streams, whose internal calls in the C library bypass this library.

use super::of;
use crate::names;
use libc::AT_FDCWD;
use std::ffi::{CString, c_char, c_int, c_void};
use tameike_interpose::arguments::Text;
use tameike_interpose::{Verdict, call, deliver, guarded, interpose};

type Stream = *mut c_void;

/// Converts a stream's mode to flags of `open`.
fn flags(mode: &[u8]) -> Option<c_int> {
    let begin = match mode.first()? {
        b'r' => 0,
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    // A comma begins the character encoding.
    let more = || mode.iter().skip(1).take_while(|byte| **byte != b',');
    let has = |letter| more().any(|byte| *byte == letter);
    let access = match (has(b'+'), begin) {
        (true, _) => libc::O_RDWR,
        (false, 0) => libc::O_RDONLY,
        (false, _) => libc::O_WRONLY,
    };
    let exclusive = if has(b'x') && begin != 0 { libc::O_EXCL } else { 0 };
    let closes = if has(b'e') { libc::O_CLOEXEC } else { 0 };
    Some(begin | access | exclusive | closes)
}

fn open(path: Text, mode: *const c_char) -> Verdict<c_int> {
    let flags = flags(super::bytes_at(mode)?)?;
    of(path, |path| names::open(AT_FDCWD, path, flags, 0o666))
}

fn stream_of(number: c_int, mode: *const c_char) -> Stream {
    // SAFETY: a new descriptor, and the caller's mode.
    let stream = unsafe { libc::fdopen(number, mode) };
    if stream.is_null() {
        // SAFETY: the descriptor has no other owner.
        unsafe { libc::close(number) };
    }
    stream.cast()
}

/// Opens the file, and calls `next` with a path that refers to the descriptor.
fn reopen(path: Text, mode: *const c_char, next: impl FnOnce(Text) -> Stream) -> Verdict<Stream> {
    let number = match open(path, mode)? {
        Ok(number) => number,
        Err(error) => return Some(Err(error)),
    };
    let name = CString::new(format!("/proc/self/fd/{number}")).ok()?;
    let stream = next(Text::of(&name));
    // SAFETY: the descriptor was opened here, and has no other owner.
    unsafe { libc::close(number) };
    Some(Ok(stream))
}

interpose! {
    fn [fopen, fopen64, _IO_fopen](path: Text, mode: *const c_char) -> Stream =
        open(path, mode).map(|number| number.map(|number| stream_of(number, mode)));
}

/// Defines the names of `freopen`.
macro_rules! reopens {
    ($($name:ident)+) => {$(
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(path: Text, mode: *const c_char, stream: Stream) -> Stream {
            let next = |path: Text| call!($name(path: Text, mode: *const c_char, stream: Stream) -> Stream);
            match guarded(|| reopen(path, mode, next)) {
                Some(outcome) => deliver(outcome),
                None => call!($name(path: Text, mode: *const c_char, stream: Stream) -> Stream),
            }
        }
    )+};
}

reopens! { freopen freopen64 }
