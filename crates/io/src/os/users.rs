//! Numbers of users by name, from the name services of the host.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;
use tameike_core::{Fault, Result};

/// Sizes of the buffer for a record of a user, in bytes.
const RECORD_SIZE: usize = 1 << 10;
const RECORD_SIZE_MAX: usize = 1 << 20;

/// The number of the user of this name, if there is one.
///
/// # Errors
/// The name services fail.
pub fn by_name(name: &str) -> Result<Option<u32>> {
    let Ok(wanted) = CString::new(name) else { return Ok(None) };
    let mut buffer: Vec<libc::c_char> = vec![0; RECORD_SIZE];
    loop {
        let mut record = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: the name ends with NUL, and the call writes to the record, to the buffer of the given size and to `found` only.
        let failed = unsafe {
            let (space, size) = (buffer.as_mut_ptr(), buffer.len());
            libc::getpwnam_r(wanted.as_ptr(), record.as_mut_ptr(), space, size, &raw mut found)
        };
        match failed {
            0 if found.is_null() => return Ok(None),
            // SAFETY: `found` points to the record, which the call has initialized.
            0 => return Ok(Some(unsafe { record.assume_init() }.pw_uid)),
            libc::ERANGE if buffer.len() < RECORD_SIZE_MAX => buffer.resize(buffer.len() * 2, 0),
            // Documented for names that do not exist.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            number => {
                let error = std::io::Error::from_raw_os_error(number);
                return Err(Fault::from_os(format_args!("looking up the user {name}"), &error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name() {
        assert_eq!(by_name("root"), Ok(Some(0)));
        assert_eq!((by_name("no such user"), by_name("a\0b")), (Ok(None), Ok(None)));
    }
}
