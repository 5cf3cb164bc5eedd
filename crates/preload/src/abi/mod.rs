//! The functions that stand before those of the C library.
//!
//! The only room, beside [`crate::kernel`], whose reason is `unsafe`: [`arguments`] makes Rust's values of what a C caller
//! has given, [`next`] finds the functions behind, [`tail`] and [`borrow`] are in assembly. The rest is tables of functions.
//!
//! Variadic functions (`open`, `fcntl`, `syscall`, ...) are declared here with a fixed list: on Linux on x86-64 and AArch64 integers and
//! pointers arrive in the same registers either way, and one that was not given is read as whatever is there, and
//! not used. Threads that are cancelled unwind through functions that wait in the C library: all are `C-unwind`, and own
//! nothing when they call on.

mod arguments;
mod attributes;
mod borrow;
mod descriptors;
mod directory;
mod life;
mod names;
mod next;
mod raw;
mod sets;
mod streams;
mod tail;
mod transfer;
mod upgraded;

use crate::file::Verdict;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Defines functions of the C library, under one or more names, each with what answers; where that is `None`, the C library's own
/// does.
macro_rules! interpose {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty = $verdict:expr;)*) => {
        $($($crate::abi::interpose! { @one $name $arguments -> $result = $verdict })+)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty = $verdict:expr) => {
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            match $crate::abi::guarded(|| $verdict) {
                Some(answer) => $crate::abi::deliver(answer),
                None => $crate::abi::next::call!($name($($argument: $type),*) -> $result),
            }
        }
    };
}

/// Defines functions that the C library's own answer, as soon as the arguments in brackets are the kernel's.
macro_rules! upgrade {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty [$($first:ident),*];)*) => {
        $crate::abi::interpose! {$(
            fn [$($name),+] $arguments -> $result = $crate::abi::kernels(&[$(&$first),*]);
        )*}
    };
}

use {interpose, upgrade};

/// Something that may be, or lead to, a file of the ring, and has to be the kernel's.
trait Upgrade {
    fn upgrade(&self) -> Result<(), Errno>;
}

/// A descriptor.
impl Upgrade for c_int {
    fn upgrade(&self) -> Result<(), Errno> {
        match crate::table::entry(*self) {
            Some(entry) if !entry.is_free() => crate::upgrade::one(*self),
            _ => Ok(()),
        }
    }
}

/// Leaves the call to the kernel, with all of `arguments` its own.
fn kernels<T>(arguments: &[&dyn Upgrade]) -> Verdict<T> {
    arguments.iter().find_map(|argument| argument.upgrade().err()).map(Err)
}

/// What a function of the C library returns.
trait Outcome {
    /// How it tells of a failure.
    fn failed(error: Errno) -> Self;
}

/// Defines types of which one value says that the number of the failure is in `errno`.
macro_rules! outcomes {
    ($($type:ty, $failed:expr;)*) => {$(
        impl Outcome for $type {
            fn failed(error: Errno) -> Self {
                crate::kernel::set_errno(error.raw_os_error());
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
        crate::kernel::set_errno(error.raw_os_error());
        std::ptr::null_mut()
    }
}

/// What `mmap` returns.
#[repr(transparent)]
struct Mapping(*mut c_void);

/// The number of what went wrong, or 0.
#[repr(transparent)]
struct Wrong(c_int);

impl Outcome for Wrong {
    fn failed(error: Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// The outcome as the C library tells it.
fn deliver<T: Outcome>(answer: Result<T, Errno>) -> T {
    answer.unwrap_or_else(T::failed)
}

/// A panic is a mistake of this library, and must not end the program: the kernel answers.
fn guarded<T>(verdict: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    catch_unwind(AssertUnwindSafe(verdict)).unwrap_or(None)
}
