//! External content: a file that is too large for the container has its content in a file beside it, in the container's directory. Name,
//! owner, permissions and inode number stay with the entry in the container until the job ends.

use crate::CONTAINER;
use std::sync::{Arc, OnceLock};
use tameike_container::format::external;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::pack::PACKED_BYTES_MAX;
use tameike_core::{Errno, Fault, FaultKind, Result, Timestamp};
use tameike_io::shared::{SharedFile, SharedFs, join, retry_revalidated, split};

/// Opens the directory of a container.
pub type OpenContainer = Box<dyn Fn() -> Result<ContainerDir> + Send + Sync>;

/// The open directory of a container.
pub struct ContainerDir {
    /// The directory.
    pub fs: Arc<dyn SharedFs>,
    /// Why other users control the directory, if they do. Nothing is created or changed in such a directory: other users could read private
    /// files there.
    pub why_not_own: Option<String>,
}

/// Bytes between two syncs of a copy: bounds the time of one sync.
const SYNCED_SIZE: u64 = 256 << 20;
/// The prefix of names of files that are being created beside their later paths.
pub(crate) const ASIDE: &[u8] = b".tameike-moved-";

/// The container's directory on a node that reads and writes external content. It is opened once: a user who may rename files in the shared
/// directory can replace it.
pub struct ExternalDir {
    open: OpenContainer,
    may_share: bool,
    opened: OnceLock<Arc<dyn SharedFs>>,
}

impl ExternalDir {
    /// The directory that `open` opens; with `may_share` also one of another user.
    pub fn new(open: OpenContainer, may_share: bool) -> Self {
        Self { open, may_share, opened: OnceLock::new() }
    }

    /// Opens the directory, if that was not done yet. Fails with `EPERM` if other users control the directory.
    pub(crate) fn get(&self, plain: &dyn SharedFs) -> Result<&dyn SharedFs> {
        if let Some(opened) = self.opened.get() {
            return Ok(&**opened);
        }
        plain.revalidate(CONTAINER);
        let ContainerDir { fs, why_not_own } = retry_revalidated(plain, CONTAINER, || (self.open)())?;
        match why_not_own.filter(|_| !self.may_share) {
            Some(why) => Err(Fault::new(Errno::EPERM, why)),
            None => Ok(&**self.opened.get_or_init(|| fs)),
        }
    }
}

/// The path of an external file in the shared directory, for renames only: the directory may have been replaced, so that nothing is opened
/// by this path.
pub(crate) fn external_path(number: u64) -> Vec<u8> {
    join(CONTAINER, &external::name(number))
}

/// The path at which a file is created before its rename to another one: beside it, as permissions and the choice of disks go by
/// directories.
pub(crate) fn aside_of(path: &[u8], number: u64) -> Result<Vec<u8>> {
    let (dir, _) = split(path).ok_or(Errno::EINVAL)?;
    Ok(join(dir, &[ASIDE, format!("{number:016x}").as_bytes()].concat()))
}

/// Removes a file that may be missing.
pub(crate) fn remove(plain: &dyn SharedFs, path: &[u8]) -> Result<()> {
    match plain.unlink(path) {
        Err(fault) if fault.kind() != FaultKind::Missing => Err(fault),
        _ => Ok(()),
    }
}

/// Copies `size` bytes to an empty file, and sets its atime and mtime. The bytes are read back, and are durable.
pub(crate) fn copy(
    mut read: impl FnMut(u64) -> Result<Vec<u8>>,
    size: u64,
    (atime, mtime): (Timestamp, Timestamp),
    file: &dyn SharedFile,
) -> Result<()> {
    let times = [atime, mtime].map(|time| Some(SetTime::To(time)));
    let times = AttrChange { atime: times[0], mtime: times[1], ..AttrChange::default() };
    if size == 0 {
        return file.change(&times);
    }
    let pieces = || (0..size).step_by(PACKED_BYTES_MAX);
    for offset in pieces() {
        if offset > 0 && offset % SYNCED_SIZE == 0 {
            file.sync()?;
        }
        file.write_at(&read(offset)?, offset)?;
    }
    file.sync()?;
    file.forget_pages()?;
    let mut found = vec![0; PACKED_BYTES_MAX];
    for offset in pieces() {
        let bytes = read(offset)?;
        let count = file.read_at(&mut found, offset)?.min(bytes.len());
        if found[..count] != bytes[..] {
            return Err(Fault::io(format!(
                "the copy reads back differently from the original at byte {offset}"
            )));
        }
    }
    file.change(&times)
}

/// Whether a path leads to an open file.
pub(crate) fn is_at(plain: &dyn SharedFs, path: &[u8], file: &dyn SharedFile) -> Result<bool> {
    match plain.stat(path) {
        Ok(there) => Ok(there.inode_id() == file.stat()?.inode_id()),
        Err(fault) if fault.kind() == FaultKind::Missing => Ok(false),
        Err(fault) => Err(fault),
    }
}
