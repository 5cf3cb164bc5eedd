//! Functions that replace those of the C library ([`tameike_interpose`]).
//!
//! Besides [`crate::kernel`], this is the only module that exists for `unsafe` code. Internal calls of the C library bypass this library:
//! functions that open files by such calls (`fopen`, `mkstemp`, `opendir`, ...) must therefore be replaced, too.

mod attributes;
mod directories;
mod environment;
mod names;
mod process;
mod programs;
mod streams;

use rustix::io::Errno;
use std::ffi::{CString, c_char, c_int};
use tameike_interpose::arguments::Text;
use tameike_interpose::{Outcome, Verdict};

/// Runs `verdict` on the bytes of a path.
fn of<T>(path: Text, verdict: impl FnOnce(&[u8]) -> Verdict<T>) -> Verdict<T> {
    crate::spool::get()?;
    verdict(path.bytes()?)
}

/// Defines functions that call the C library with another path for the argument in brackets, if the expression returns one.
macro_rules! redirect {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty, [$path:ident] = $verdict:expr;)*) => {
        $($($crate::abi::redirect! { @one $name $arguments -> $result, [$path] = $verdict })+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) -> $result:ty, [$path:ident] = $verdict:expr) => {
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            let real = tameike_interpose::guarded(|| $verdict);
            $crate::abi::with_path(
                $path, real, |$path| tameike_interpose::call!($name($($argument: $type),*) -> $result)
            )
        }
    };
}

use redirect;

/// Calls a function of the C library with the path that `real` has, or else with `path`.
fn with_path<T: Outcome>(path: Text, real: Verdict<CString>, call: impl FnOnce(Text) -> T) -> T {
    match real {
        Some(Ok(real)) => call(Text::of(&real)),
        Some(Err(error)) => T::failed(error),
        None => call(path),
    }
}

/// Returns the kernel's path of a file, unpacking it if necessary.
fn content(directory: c_int, path: Text, follow: bool) -> Verdict<CString> {
    of(path, |path| crate::names::unpacked(directory, path, follow))
}

/// Copies a string to memory that the caller frees, or to `buffer` of `size` bytes.
fn give(text: &[u8], buffer: *mut c_char, size: usize) -> Result<*mut c_char, Errno> {
    let text = CString::new(text).map_err(|_| Errno::INVAL)?;
    let bytes = text.as_bytes_with_nul();
    if buffer.is_null() {
        // SAFETY: the string is NUL-terminated; the C library allocates the copy.
        let copy = unsafe { libc::strdup(text.as_ptr()) };
        return if copy.is_null() { Err(Errno::NOMEM) } else { Ok(copy) };
    }
    if bytes.len() > size {
        return Err(Errno::RANGE);
    }
    // SAFETY: the caller passed a buffer of `size` bytes, and no more are written.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, bytes.len()) };
    Ok(buffer)
}

/// Returns the bytes of a C string, or `None` for null.
fn bytes_at<'a>(text: *const c_char) -> Option<&'a [u8]> {
    Text::at(text.cast_mut().cast()).bytes()
}
