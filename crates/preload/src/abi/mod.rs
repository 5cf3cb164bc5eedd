//! Functions that replace those of the C library.
//!
//! Besides [`crate::kernel`], this is the only module that exists for `unsafe` code: [`arguments`] converts C arguments, [`variadic`] and
//! [`vfork`] are assembly. The others are tables of functions. [`tameike_interpose`] documents their declarations.

mod arguments;
mod attributes;
mod descriptors;
mod directory;
mod kernel_only;
mod names;
mod process;
mod region;
mod sets;
mod streams;
mod syscall;
mod transfer;
mod variadic;
mod vfork;

use rustix::io::Errno;
use std::ffi::c_int;
use tameike_interpose::Verdict;

/// Defines functions that upgrade the arguments in brackets, and call the C library.
macro_rules! upgrade {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty [$($first:ident),*];)*) => {
        tameike_interpose::interpose! {$(
            fn [$($name),+] $arguments -> $result = $crate::abi::upgrade_first(&[$(&$first),*]);
        )*}
    };
}

use tameike_interpose::{ErrorNumber, Mapping, deliver, done, guarded, interpose};
use upgrade;

/// Runs `change`; a panic ends it.
fn contained(change: impl FnOnce()) {
    guarded::<()>(|| {
        change();
        None
    });
}

/// An argument that may refer to ring files, which must be upgraded.
trait Upgrade {
    fn upgrade(&self) -> Result<(), Errno>;
}

impl Upgrade for c_int {
    fn upgrade(&self) -> Result<(), Errno> {
        crate::upgrade::one(*self)
    }
}

/// Upgrades `arguments`, and leaves the call to the kernel.
fn upgrade_first<T>(arguments: &[&dyn Upgrade]) -> Verdict<T> {
    arguments.iter().find_map(|argument| argument.upgrade().err()).map(Err)
}
