//! A file with its attributes and extended attributes by one open, for programs that copy files.

use super::{FileStat, SharedFile, SharedFs};
use rustix::io::Errno as Os;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_core::limits::XATTR_SIZE_MAX;
use tameike_core::{Errno, Result};

/// Buffer size that suffices for most attributes and lists of names.
const SMALL_SIZE: usize = 1 << 10;

/// An extended attribute: its name and value.
pub type NamedXattr = (Vec<u8>, Vec<u8>);

/// A regular file opened for reading, with all attributes.
pub struct WholeFile {
    /// The open file.
    pub file: Arc<dyn SharedFile>,
    /// The attributes, except [`FileStat::handle_hash`].
    pub stat: FileStat,
    /// All extended attributes; empty if the file system does not support them.
    pub xattrs: Vec<NamedXattr>,
}

/// Reads all extended attributes of a file; empty if the file system does not support them.
pub fn xattrs_of<T: SharedFs + ?Sized>(fs: &T, path: &[u8]) -> Result<Vec<NamedXattr>> {
    let names = match fs.xattrs(path) {
        Err(fault) if matches!(fault.errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => Vec::new(),
        names => names?,
    };
    let named = |name: Vec<u8>| {
        let value = fs.xattr(path, &name)?;
        Ok((name, value))
    };
    names.into_iter().map(named).collect()
}

/// As [`xattrs_of`], for an open file.
pub(super) fn xattrs_of_open(file: &OwnedFd) -> rustix::io::Result<Vec<NamedXattr>> {
    let list = match read_buffer(|list| rustix::fs::flistxattr(file, list)) {
        Err(Os::OPNOTSUPP | Os::NOSYS) => return Ok(Vec::new()),
        list => list?,
    };
    let value = |name: Vec<u8>| {
        let value = read_buffer(|value| rustix::fs::fgetxattr(file, name.as_slice(), value))?;
        Ok((name, value))
    };
    names(&list).map(value).collect()
}

/// The names in a list of the system.
pub(super) fn names(list: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    list.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

/// Calls `read` with a buffer that is large enough for its result.
pub(super) fn read_buffer(
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut small = [0; SMALL_SIZE];
    match read(&mut small) {
        Err(Os::RANGE) => {}
        size => return size.map(|size| small[..size].to_vec()),
    }
    let mut large = vec![0; XATTR_SIZE_MAX];
    let size = read(&mut large)?;
    large.truncate(size);
    Ok(large)
}
