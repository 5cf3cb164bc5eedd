//! External content: files that are too large for the container keep their content in a file of its own in the container's
//! directory. Name, owner, permissions and inode number stay with the entry in the container for as long as the job runs.

use crate::CONTAINER;
use std::sync::{Arc, OnceLock};
use tameike_container::format::external;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::pack::PACKED_BYTES_MAX;
use tameike_core::{Errno, Fault, FaultKind, Result, Timestamp};
use tameike_io::shared::{SharedFile, SharedFs, anew, join, split};

/// Opens the directory of a container.
pub type OpenContainer = Box<dyn Fn() -> Result<ContainerDir> + Send + Sync>;

/// The directory of the container, open.
pub struct ContainerDir {
    /// What is in it.
    pub fs: Arc<dyn SharedFs>,
    /// Why other users control what is in it, if they do. In such a directory nothing is made or changed: they could read private
    /// files there.
    pub why_not_own: Option<String>,
}

/// Bytes that are copied between two syncs: nobody waits for one much longer than for them.
const SYNCED_SIZE: u64 = 256 << 20;
/// Beginning of the names of files that are being made beside their places.
pub(crate) const ASIDE: &[u8] = b".tameike-moved-";

/// The directory of the container as a node has it that reads and writes content that is outside. It is opened once: who may rename files in the
/// shared directory can put another one under its name.
pub struct ExternalDir {
    open: OpenContainer,
    may_share: bool,
    opened: OnceLock<Arc<dyn SharedFs>>,
}

impl ExternalDir {
    /// The one that `open` opens; with `may_share` also one of another user.
    pub fn new(open: OpenContainer, may_share: bool) -> Self {
        Self { open, may_share, opened: OnceLock::new() }
    }

    /// Opens it, if that was not done yet.
    ///
    /// # Errors
    /// `EPERM` when other users control what is in it, and what the file system says.
    pub(crate) fn get(&self, plain: &dyn SharedFs) -> Result<&dyn SharedFs> {
        if let Some(opened) = self.opened.get() {
            return Ok(&**opened);
        }
        plain.look_anew(CONTAINER);
        let ContainerDir { fs, why_not_own } = anew(plain, CONTAINER, || (self.open)())?;
        match why_not_own.filter(|_| !self.may_share) {
            Some(why) => Err(Fault::new(Errno::EPERM, why)),
            None => Ok(&**self.opened.get_or_init(|| fs)),
        }
    }
}

/// The file that has the content of a packed file, in the shared directory. Nothing is opened by this path, as the directory on the way may be
/// another one by now.
pub(crate) fn outside_path(number: u64) -> Vec<u8> {
    join(CONTAINER, &external::name(number))
}

/// Where a file is made that is about to have another place: beside its later one, as permissions and places on disks go by directories.
pub(crate) fn aside_of(path: &[u8], number: u64) -> Result<Vec<u8>> {
    let (dir, _) = split(path).ok_or(Errno::EINVAL)?;
    Ok(join(dir, &[ASIDE, format!("{number:016x}").as_bytes()].concat()))
}

/// Removes what may not be there.
pub(crate) fn remove(plain: &dyn SharedFs, path: &[u8]) -> Result<()> {
    match plain.unlink(path) {
        Err(fault) if fault.kind() != FaultKind::Missing => Err(fault),
        _ => Ok(()),
    }
}

/// Copies so many bytes, given by their offsets, to an empty file, which gets times of last access and change of content. The bytes are there,
/// and safe.
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
            return Err(Fault::io(format!("what was written of it reads back differently at byte {offset}")));
        }
    }
    file.change(&times)
}

/// Whether a path leads to a file that is open.
pub(crate) fn is_at(plain: &dyn SharedFs, path: &[u8], file: &dyn SharedFile) -> Result<bool> {
    match plain.stat(path) {
        Ok(there) => Ok(there.inode_id() == file.stat()?.inode_id()),
        Err(fault) if fault.kind() == FaultKind::Missing => Ok(false),
        Err(fault) => Err(fault),
    }
}
