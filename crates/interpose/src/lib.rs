//! Building blocks of libraries that replace functions of the C library under `LD_PRELOAD`.
//!
//! Variadic functions (`open`, `fcntl`, `syscall`, ...) are declared with a fixed number of arguments. On Linux on x86-64 and AArch64,
//! integers and pointers arrive in the same registers either way; missing arguments read as garbage, and are not used. Cancelled
//! threads unwind through functions that wait in the C library: all functions are `C-unwind`, and own nothing when they call it.

pub mod arguments;
pub mod attributes;
pub mod lists;
pub mod next;

use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Flags with which `creat` opens a file.
pub const CREAT_FLAGS: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// Result of a call; `None` if the C library's function must serve it.
pub type Verdict<T> = Option<Result<T, Errno>>;

/// Defines replacements of C library functions, under one or more names, each with an expression of type [`Verdict`].
#[macro_export]
macro_rules! interpose {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty = $verdict:expr;)*) => {
        $($($crate::interpose! { @one $name $arguments -> $result = $verdict })+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty = $verdict:expr) => {
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            match $crate::guarded(|| $verdict) {
                Some(answer) => $crate::deliver(answer),
                None => $crate::call!($name($($argument: $type),*) -> $result),
            }
        }
    };
}

/// Return type of a C library function.
pub trait Outcome {
    /// Returns the value that reports a failure, and sets `errno` if the type requires it.
    fn failed(error: Errno) -> Self;
}

/// Implements [`Outcome`] for types with one failure value, which leave the error in `errno`.
macro_rules! outcomes {
    ($($type:ty, $failed:expr;)*) => {$(
        impl Outcome for $type {
            fn failed(error: Errno) -> Self {
                $crate::set_errno(error.raw_os_error());
                $failed
            }
        }
    )*};
}

outcomes! {
    i32, -1;
    i64, -1;
    isize, -1;
    usize, 0;
    (), ();
    Mapping, Self(libc::MAP_FAILED);
}

impl<T> Outcome for *mut T {
    fn failed(error: Errno) -> Self {
        set_errno(error.raw_os_error());
        std::ptr::null_mut()
    }
}

/// Result of `mmap`.
#[repr(transparent)]
pub struct Mapping(*mut c_void);

/// An error number as result, or 0.
#[repr(transparent)]
pub struct ErrorNumber(pub c_int);

impl Outcome for ErrorNumber {
    fn failed(error: Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Converts an outcome to the C library's result.
pub fn deliver<T: Outcome>(answer: Result<T, Errno>) -> T {
    answer.unwrap_or_else(T::failed)
}

/// Converts a success to 0, the result of most calls.
pub fn done<E>(outcome: Result<(), E>) -> Result<c_int, E> {
    outcome.map(|()| 0)
}

/// Evaluates `verdict`. A panic must not end the program: the C library then serves the call.
pub fn guarded<T>(verdict: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    catch_unwind(AssertUnwindSafe(verdict)).unwrap_or(None)
}

/// Returns `errno` of the calling thread.
pub fn errno() -> i32 {
    // SAFETY: points to the calling thread's variable in the C library.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` of the calling thread.
pub fn set_errno(errno: i32) {
    // SAFETY: points to the calling thread's variable in the C library.
    unsafe { *libc::__errno_location() = errno };
}
