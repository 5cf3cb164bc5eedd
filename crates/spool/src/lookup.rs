//! Lookups in the container.

use tameike_container::session::{Brief, Session};
use tameike_core::{Errno, Result};

/// The attributes of a path in the container, if it exists.
///
/// # Errors
/// `EIO` if the container is damaged there.
pub fn find(session: &Session, path: &[u8]) -> Result<Option<Brief>> {
    match session.stat(path) {
        Ok(found) => Ok(Some(found)),
        Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
        Err(fault) => Err(fault),
    }
}
