//! Sets the size and times of a shared file at the end of a flush, and syncs it.

use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::unit::FlushEnd;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{FileStat, SharedFile};

/// Sets the size and mtime of an open file that was `seen` so, and syncs it. Returns its attributes. Fails with `EIO` if the fsync fails,
/// whatever its errno.
pub(crate) fn set_size_and_times(
    file: &dyn SharedFile,
    seen: &FileStat,
    size: u64,
    ending: FlushEnd,
) -> Result<FileStat> {
    // A truncate to a stale size would remove bytes behind it.
    if learn_size(file, seen, size)? < size {
        file.truncate(size)?;
    }
    if let Some(mtime) = ending.mtime {
        let change = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
        match file.change(&change) {
            // A file of another owner keeps the mtime of the flush.
            Err(fault) if fault.errno == Errno::EPERM => {}
            other => other?,
        }
    }
    sync(file)?;
    file.stat()
}

/// Syncs an open file. A failed fsync gets an errno of its own: it leaves more in doubt than a write to a full file system.
pub(crate) fn sync(file: &dyn SharedFile) -> Result<()> {
    file.sync().map_err(|fault| Fault::io(fault.to_string()))
}

/// Returns the size of an open file that was `seen` so. Fetches it again where it is less than `expected`: the mount may show a stale size.
pub(crate) fn learn_size(file: &dyn SharedFile, seen: &FileStat, expected: u64) -> Result<u64> {
    if seen.size < expected {
        file.revalidate()?;
        return Ok(file.stat()?.size);
    }
    Ok(seen.size)
}
