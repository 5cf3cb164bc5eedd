//! A file with its attributes and extended attributes by one open, for programs that copy files.

use super::{FileStat, SharedFile, SharedFs};
use rustix::io::Errno as Os;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tameike_core::limits::XATTR_SIZE_MAX;
use tameike_core::{Errno, Result};

/// Most attributes, and lists of their names, are no larger.
const SMALL_SIZE: usize = 1 << 10;

/// An extended attribute: its name and value.
pub type NamedXattr = (Vec<u8>, Vec<u8>);

/// A regular file that is open for reading.
pub struct WholeFile {
    /// The open file.
    pub file: Arc<dyn SharedFile>,
    /// Its attributes, but for [`FileStat::birth`].
    pub stat: FileStat,
    /// All its extended attributes; none where the file system knows of none.
    pub xattrs: Vec<NamedXattr>,
}

/// All extended attributes of a file; none where the file system knows of none.
///
/// # Errors
/// What the file system says.
pub fn xattrs_of<T: SharedFs + ?Sized>(fs: &T, path: &[u8]) -> Result<Vec<NamedXattr>> {
    let names = match fs.xattrs(path) {
        Err(fault) if matches!(fault.errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => Vec::new(),
        names => names?,
    };
    let told = |name: Vec<u8>| {
        let value = fs.xattr(path, &name)?;
        Ok((name, value))
    };
    names.into_iter().map(told).collect()
}

/// The same of an open file.
pub(super) fn xattrs_of_open(file: &OwnedFd) -> rustix::io::Result<Vec<NamedXattr>> {
    let list = match told(|list| rustix::fs::flistxattr(file, list)) {
        Err(Os::OPNOTSUPP | Os::NOSYS) => return Ok(Vec::new()),
        list => list?,
    };
    let value = |name: Vec<u8>| {
        let value = told(|value| rustix::fs::fgetxattr(file, name.as_slice(), value))?;
        Ok((name, value))
    };
    names(&list).map(value).collect()
}

/// The names in a list of the system.
pub(super) fn names(list: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    list.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

/// What the system tells by filling a buffer that is large enough.
pub(super) fn told(ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut small = [0; SMALL_SIZE];
    match ask(&mut small) {
        Err(Os::RANGE) => {}
        size => return size.map(|size| small[..size].to_vec()),
    }
    let mut large = vec![0; XATTR_SIZE_MAX];
    let size = ask(&mut large)?;
    large.truncate(size);
    Ok(large)
}
