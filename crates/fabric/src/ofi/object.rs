//! The operations that all objects of libfabric share: bind, control, close.

use super::bindings::{fi_ops, fid};
use super::library::Library;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// An object of the library, closed when dropped.
pub(super) struct Object(pub(super) *mut fid);

impl Object {
    fn ops(&self) -> *mut fi_ops {
        // SAFETY: an open object of the library, whose table lives as long as the object.
        unsafe { (*self.0).ops }
    }

    pub(super) fn bind(&self, library: &Library, to: &Object, flags: u64, doing: &str) -> Result<(), String> {
        // SAFETY: as in `ops`; both objects are open.
        let returned = unsafe { (*self.ops()).bind.map(|bind| bind(self.0, to.0, flags)) };
        library.check(doing, returned.unwrap_or(-libc::ENOSYS))
    }

    pub(super) fn control(
        &self,
        library: &Library,
        command: c_int,
        argument: *mut c_void,
        doing: &str,
    ) -> Result<(), String> {
        // SAFETY: as in `ops`; the callers' arguments are what the commands take.
        let returned = unsafe { (*self.ops()).control.map(|control| control(self.0, command, argument)) };
        library.check(doing, returned.unwrap_or(-libc::ENOSYS))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: as in `ops`; this was the last reference.
        if let Some(close) = unsafe { (*self.ops()).close } {
            // SAFETY: as above.
            let returned = unsafe { close(self.0) };
            if returned != 0 {
                log::debug!("closing an object of libfabric failed with error {returned}");
            }
        }
    }
}

/// Opens an object by a call that stores its pointer.
pub(super) fn made<T>(
    library: &Library,
    doing: &str,
    open: impl FnOnce(*mut *mut T) -> Option<c_int>,
) -> Result<*mut T, String> {
    let mut object = null_mut();
    library.check(doing, open(&raw mut object).unwrap_or(-libc::ENOSYS))?;
    Ok(object)
}
