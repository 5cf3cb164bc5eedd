//! Functions that change the working directory, from which relative paths start.
//!
//! While the C library walks directory trees (`nftw`), it changes the directory internally: the kernel serves relative paths meanwhile.

use super::Upgrade;
use super::arguments::Text;
use crate::{connection, views};
use std::ffi::{c_int, c_void};

type In = *const c_void;
type Out = *mut c_void;

/// Defines functions that may change the working directory.
macro_rules! moves {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty;)*) => {
        $($(moves! { @one $name $arguments -> $result })+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) -> $result:ty) => {
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            moving(|| tameike_interpose::call!($name($($argument: $type),*) -> $result))
        }
    };
}

moves! {
    fn [chdir](path: Text) -> c_int;
    fn [daemon](stays: c_int, keeps: c_int) -> c_int;
    fn [ftw, ftw64](path: Text, function: In, depth: c_int) -> c_int;
    fn [nftw, nftw64](path: Text, function: In, depth: c_int, flags: c_int) -> c_int;
    fn [fts_open, fts64_open](paths: In, options: c_int, order: In) -> Out;
    fn [fts_read, fts64_read](tree: Out) -> Out;
    fn [fts_children, fts64_children](tree: Out, instruction: c_int) -> Out;
    fn [fts_close, fts64_close](tree: Out) -> c_int;
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fchdir(number: c_int) -> c_int {
    match super::guarded(|| number.upgrade().err().map(Err)) {
        Some(failed) => super::deliver(failed),
        None => moving(|| tameike_interpose::call!(fchdir(number: c_int) -> c_int)),
    }
}

/// Runs a call that may change the working directory.
fn moving<T>(call: impl FnOnce() -> T) -> T {
    let concerns_views = || connection::is_enabled() && !connection::is_vfork_child();
    if concerns_views() {
        views::forget_working_directory();
    }
    let outcome = call();
    if concerns_views() {
        views::note_working_directory();
    }
    outcome
}
