//! The functions that stand before those of the C library ([`tameike_interpose`]).
//!
//! The only room, beside [`crate::kernel`], whose reason is `unsafe`. Functions that the C library calls within itself are not seen
//! here: those that open files by such calls (`fopen`, `mkstemp`, `opendir`, ...) have to be here, too.

mod attributes;
mod directories;
mod environment;
mod life;
mod names;
mod programs;
mod streams;

use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int};
use tameike_interpose::Verdict;
use tameike_interpose::arguments::Text;

/// The result of a call that succeeds with 0.
fn done(outcome: Result<(), Errno>) -> Result<c_int, Errno> {
    outcome.map(|()| 0)
}

/// Runs `verdict` on the bytes of a path.
fn of<T>(path: Text, verdict: impl FnOnce(&[u8]) -> Verdict<T>) -> Verdict<T> {
    crate::spool::get()?;
    verdict(path.bytes()?)
}

/// Defines functions of the C library that it is called for on another path than the argument in brackets: the one that is told, if any.
macro_rules! redirect {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty, [$path:ident] = $verdict:expr;)*) => {
        $($($crate::abi::redirect! { @one $name $arguments -> $result, [$path] = $verdict })+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, [$path:ident] = $verdict:expr) => {
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            match tameike_interpose::guarded(|| $verdict) {
                Some(Ok(real)) => {
                    let $path = Text::of(&real);
                    tameike_interpose::call!($name($($argument: $type),*) -> $result)
                }
                Some(Err(error)) => tameike_interpose::deliver(Err(error)),
                None => tameike_interpose::call!($name($($argument: $type),*) -> $result),
            }
        }
    };
}

use redirect;

/// The file that has a path's content.
fn content(directory: c_int, path: Text, follow: bool) -> Verdict<CString> {
    of(path, |path| crate::names::filled(directory, path, follow))
}

/// Copies a string to memory that the caller frees, or to `room` of `size` bytes.
fn give(text: &[u8], room: *mut c_char, size: usize) -> Result<*mut c_char, Errno> {
    let text = CString::new(text).map_err(|_| Errno::INVAL)?;
    let bytes = text.as_bytes_with_nul();
    if room.is_null() {
        // SAFETY: a string that ends with a zero byte; the C library makes the copy.
        let copy = unsafe { libc::strdup(text.as_ptr()) };
        return if copy.is_null() { Err(Errno::NOMEM) } else { Ok(copy) };
    }
    if bytes.len() > size {
        return Err(Errno::RANGE);
    }
    // SAFETY: the caller gave room for `size` bytes, and so many are not written.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), room, bytes.len()) };
    Ok(room)
}

/// A string that the C library has returned.
fn bytes_at<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not null, it is a string that ends with a zero byte, and the caller's to read.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}
