//! What libraries that stand before the C library are made of: tables of its functions, each with what answers in its place.
//!
//! Variadic functions (`open`, `fcntl`, `syscall`, ...) are declared with a fixed list: on Linux on x86-64 and AArch64 integers and
//! pointers arrive in the same registers either way, and one that was not given is read as whatever is there, and
//! not used. Threads that are cancelled unwind through functions that wait in the C library: all are `C-unwind`, and own
//! nothing when they call on.

pub mod arguments;
pub mod lists;
pub mod next;

use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What answers a call; where it is `None`, the C library's own function does.
pub type Verdict<T> = Option<Result<T, Errno>>;

/// Defines functions of the C library, under one or more names, each with what answers; where that is `None`, the C library's own
/// does.
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

/// What a function of the C library returns.
pub trait Outcome {
    /// How it tells of a failure.
    fn failed(error: Errno) -> Self;
}

/// Defines types of which one value says that the number of the failure is in `errno`.
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
    (), ();
    Mapping, Self(libc::MAP_FAILED);
}

impl<T> Outcome for *mut T {
    fn failed(error: Errno) -> Self {
        set_errno(error.raw_os_error());
        std::ptr::null_mut()
    }
}

/// What `mmap` returns.
#[repr(transparent)]
pub struct Mapping(*mut c_void);

/// The number of what went wrong, or 0.
#[repr(transparent)]
pub struct Wrong(pub c_int);

impl Outcome for Wrong {
    fn failed(error: Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// The outcome as the C library tells it.
pub fn deliver<T: Outcome>(answer: Result<T, Errno>) -> T {
    answer.unwrap_or_else(T::failed)
}

/// A panic is a mistake of a library, and must not end the program: the C library answers.
pub fn guarded<T>(verdict: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    catch_unwind(AssertUnwindSafe(verdict)).unwrap_or(None)
}

/// `errno` of the calling thread.
pub fn errno() -> i32 {
    // SAFETY: the C library's own place for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(errno: i32) {
    // SAFETY: the C library's own place for the calling thread.
    unsafe { *libc::__errno_location() = errno };
}
