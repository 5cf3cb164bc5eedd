//! Streams. The C library's I/O on their descriptors bypasses this library, so that the kernel must serve them.

use super::arguments::Text;
use super::upgrade;
use std::ffi::{c_char, c_int, c_void};

upgrade! {
    fn [fdopen, _IO_fdopen](number: c_int, mode: *const c_char) -> *mut c_void [number];
    fn [fopen, fopen64, _IO_fopen](path: Text, mode: *const c_char) -> *mut c_void [path];
    fn [freopen, freopen64](path: Text, mode: *const c_char, stream: *mut c_void) -> *mut c_void [path];
}
