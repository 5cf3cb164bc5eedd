//! Validation of names of directory entries.

use crate::errno::{Errno, Result};
use crate::limits::NAME_SIZE_MAX;

/// Validates a new name: not empty, no `/`, no NUL, not `.` or `..`, not too long.
///
/// # Errors
/// `EINVAL` or `ENAMETOOLONG`.
pub fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_SIZE_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let special = matches!(name, b"" | b"." | b"..");
    if special || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(check(bad), Err(Errno::EINVAL.into()));
        }
        assert_eq!(check(&[b'x'; 256]), Err(Errno::ENAMETOOLONG.into()));
        assert_eq!(check(&[0xff; 255]), Ok(()));
    }
}
