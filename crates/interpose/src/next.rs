//! The next functions in symbol resolution order: those of the C library, or of another preloaded library.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that is resolved at its first call.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// Creates an unresolved function.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the function's address. Works before constructors have run, and while a library is loaded.
    #[inline]
    pub fn address(&self) -> *const c_void {
        let known = self.address.load(Ordering::Acquire);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *const c_void {
        // SAFETY: the name is NUL-terminated.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            found = missing as *mut c_void;
        }
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Replaces a function that this C library does not have: fails with `ENOSYS`.
extern "C-unwind" fn missing() -> c_int {
    crate::set_errno(libc::ENOSYS);
    -1
}

/// Calls the next function of a name.
#[macro_export]
macro_rules! call {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
        static NEXT: $crate::next::Next = $crate::next::Next::new(NAME);
        // SAFETY: the C library's function of this name has these arguments, and this result.
        let next: extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(NEXT.address()) };
        next($($argument),*)
    }};
}
