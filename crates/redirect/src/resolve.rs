//! Resolves paths of the tree through symbolic links, and through directories that are only in the container so far.

use crate::kernel::{self, Result, is_kind};
use crate::location::{self, Location};
use crate::spool::Spool;
use rustix::fs::Stat;
use rustix::io::Errno;
use tameike_core::spool::stub::Stub;

/// Largest number of symbolic links in a path, as in the kernel.
const LINKS_MAX: u32 = 40;

/// The file at a name of the tree.
pub enum Found {
    /// A file, directory or link of the program.
    Real(Box<Stat>),
    Packed(Stub),
}

pub enum Target {
    /// A path of the tree without symbolic links to directories, with its file.
    Inside(Vec<u8>, Found),
    /// An absolute path outside the tree.
    Outside(Vec<u8>),
}

impl Target {
    /// Returns whether the target is a directory of the tree.
    pub fn is_directory(&self) -> bool {
        matches!(self, Self::Inside(_, found) if found.kind() == libc::S_IFDIR)
    }
}

impl Found {
    fn kind(&self) -> u32 {
        match self {
            Self::Real(stat) => stat.st_mode & libc::S_IFMT,
            Self::Packed(_) => libc::S_IFREG,
        }
    }
}

/// Looks up a name without following it, after listing its directory.
pub fn lookup(spool: &Spool, inner: &[u8]) -> Result<Found> {
    spool.list_parent(inner)?;
    let path = spool.real(inner)?;
    loop {
        let stat = kernel::lstat(&path)?;
        if !is_kind(stat.st_mode, libc::S_IFLNK) {
            return Ok(Found::Real(Box::new(stat)));
        }
        return match link_of(spool, inner) {
            // The stub has been replaced by a file.
            Err(Errno::INVAL) => continue,
            target => Ok(Stub::parse(&target?).map_or_else(|| Found::Real(Box::new(stat)), Found::Packed)),
        };
    }
}

pub fn link_of(spool: &Spool, inner: &[u8]) -> Result<Vec<u8>> {
    rustix::fs::readlink(spool.real(inner)?, Vec::new()).map(std::ffi::CString::into_bytes)
}

/// Resolves a path. If `followed`, also follows a link at the last name.
pub fn resolve(spool: &Spool, inner: &[u8], followed: bool) -> Result<Target> {
    let mut links = 0;
    let (mut at, mut rest) = (Vec::new(), inner.to_vec());
    loop {
        let (name, after) = split_first(&rest);
        if name.is_empty() {
            return Ok(Target::Inside(at.clone(), lookup(spool, &at)?));
        }
        let next = if at.is_empty() { name.to_vec() } else { [&at, b"/".as_slice(), name].concat() };
        let found = lookup(spool, &next)?;
        let is_last = after.is_empty();
        match found.kind() {
            libc::S_IFLNK if followed || !is_last => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                match location::of_link(spool, &at, &link_of(spool, &next)?) {
                    Location::Inside(target) => {
                        rest = [&target, b"/".as_slice(), after].concat();
                        at.clear();
                    }
                    Location::Outside(target) if is_last => return Ok(Target::Outside(target)),
                    Location::Outside(target) => {
                        return Ok(Target::Outside([&target, b"/".as_slice(), after].concat()));
                    }
                }
            }
            _ if is_last => return Ok(Target::Inside(next, found)),
            libc::S_IFDIR => (at, rest) = (next, after.to_vec()),
            _ => return Err(Errno::NOTDIR),
        }
    }
}

/// Resolves the path of a file to be created: a name that does not exist, or a dangling link.
pub fn resolve_new(spool: &Spool, inner: &[u8], followed: bool) -> Result<Location> {
    let mut at = inner.to_vec();
    for _ in 0..LINKS_MAX {
        let name = match resolve_parent(spool, &at)? {
            Location::Inside(name) => name,
            outside => return Ok(outside),
        };
        match lookup(spool, &name) {
            Ok(found) if found.kind() == libc::S_IFLNK && followed => {
                let dir = name.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                match location::of_link(spool, &name[..dir], &link_of(spool, &name)?) {
                    Location::Inside(target) => at = target,
                    outside => return Ok(outside),
                }
            }
            Ok(_) | Err(Errno::NOENT) => return Ok(Location::Inside(name)),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::LOOP)
}

/// Resolves the directory of a path. The last name need not exist.
pub fn resolve_parent(spool: &Spool, inner: &[u8]) -> Result<Location> {
    let end = inner.iter().rposition(|byte| *byte == b'/');
    let Some(end) = end else { return Ok(Location::Inside(inner.to_vec())) };
    let (dir, name) = (&inner[..end], &inner[end..]);
    Ok(match resolve(spool, dir, true)? {
        // A name in the root has no slash before it.
        Target::Inside(dir, _) if dir.is_empty() => Location::Inside(name[1..].to_vec()),
        Target::Inside(dir, found) if found.kind() == libc::S_IFDIR => {
            Location::Inside([&dir, name].concat())
        }
        Target::Inside(..) => return Err(Errno::NOTDIR),
        Target::Outside(dir) => Location::Outside([&dir, name].concat()),
    })
}

fn split_first(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let path = &path[start..];
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    let after = &path[end..];
    let next = after.iter().position(|byte| *byte != b'/').unwrap_or(after.len());
    (&path[..end], &after[next..])
}
