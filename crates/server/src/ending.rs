//! The end of a shared file: where it is, and that a flush gives it, with the time of its last change.

use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::unit::Ending;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{FileStat, SharedFile};

/// Gives an open file that was `seen` so its size and time, makes it safe, and tells how it then is.
///
/// # Errors
/// What the file system says; `EIO` when the fsync has failed, whatever the reason.
pub(crate) fn end(file: &dyn SharedFile, seen: &FileStat, size: u64, ending: Ending) -> Result<FileStat> {
    // To give the file the end that this machine remembers of it would cut what is behind that.
    if learn_size(file, seen, size)? < size {
        file.truncate(size)?;
    }
    if let Some(mtime) = ending.mtime {
        let change = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
        match file.change(&change) {
            // A file of another owner keeps the time of the flush.
            Err(fault) if fault.errno == Errno::EPERM => {}
            other => other?,
        }
    }
    sync(file)?;
    file.stat()
}

/// Makes an open file safe. To who asks, that this has failed is another thing than a write that found no room.
///
/// # Errors
/// `EIO`, whatever the reason.
pub(crate) fn sync(file: &dyn SharedFile) -> Result<()> {
    file.sync().map_err(|fault| Fault::io(fault.to_string()))
}

/// The size of an open file that was `seen` so: asked for anew where it is less than `expected`, as this machine may remember an
/// older one.
///
/// # Errors
/// What the file system says.
pub(crate) fn learn_size(file: &dyn SharedFile, seen: &FileStat, expected: u64) -> Result<u64> {
    if seen.size < expected {
        file.look_anew()?;
        return Ok(file.stat()?.size);
    }
    Ok(seen.size)
}
