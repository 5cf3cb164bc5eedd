//! The functions that stand before those of the C library.
//!
//! The only room, beside [`crate::kernel`], whose reason is `unsafe`: [`arguments`] makes Rust's values of what a C caller
//! has given, [`tail`] and [`borrow`] are in assembly. The rest is tables of functions.
//!
//! How such functions are declared is told in [`tameike_interpose`].

mod arguments;
mod attributes;
mod borrow;
mod descriptors;
mod directory;
mod life;
mod names;
mod raw;
mod sets;
mod streams;
mod tail;
mod transfer;
mod upgraded;

use rustix::io::Errno;
use std::ffi::c_int;
use tameike_interpose::Verdict;

/// Defines functions that the C library's own answer, as soon as the arguments in brackets are the kernel's.
macro_rules! upgrade {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty [$($first:ident),*];)*) => {
        tameike_interpose::interpose! {$(
            fn [$($name),+] $arguments -> $result = $crate::abi::kernels(&[$(&$first),*]);
        )*}
    };
}

use tameike_interpose::{Mapping, Wrong, deliver, guarded, interpose};
use upgrade;

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
