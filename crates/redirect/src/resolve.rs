//! What is at a path of the tree, through symbolic links and directories that the container alone has so far.

use crate::kernel::{self, Result, is_kind};
use crate::place::{self, Place};
use crate::spool::Spool;
use rustix::fs::Stat;
use rustix::io::Errno;
use tameike_core::spool::stub::Stub;

/// Symbolic links on one way: as the kernel has it.
const LINKS_MAX: u32 = 40;

/// What a name of the tree is.
pub enum Found {
    /// A file, a directory, a link of the program's.
    Real(Box<Stat>),
    /// A file that is packed.
    Packed(Stub),
}

/// Where a path leads.
pub enum Target {
    /// To a path of the tree on which no directory is a link, with what is there.
    Inside(Vec<u8>, Found),
    /// To an absolute path elsewhere.
    Outside(Vec<u8>),
}

impl Target {
    /// Whether it is a directory of the tree.
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

/// What a name is itself. Its directory is listed before.
pub fn look(spool: &Spool, inner: &[u8]) -> Result<Found> {
    spool.list_parent(inner)?;
    let path = spool.real(inner)?;
    loop {
        let stat = kernel::look(&path)?;
        if !is_kind(stat.st_mode, libc::S_IFLNK) {
            return Ok(Found::Real(Box::new(stat)));
        }
        return match link_of(spool, inner) {
            // It was a stub, and is a file now.
            Err(Errno::INVAL) => continue,
            target => Ok(Stub::parse(&target?).map_or_else(|| Found::Real(Box::new(stat)), Found::Packed)),
        };
    }
}

/// Where the link of this name leads.
pub fn link_of(spool: &Spool, inner: &[u8]) -> Result<Vec<u8>> {
    rustix::fs::readlink(spool.real(inner)?, Vec::new()).map(std::ffi::CString::into_bytes)
}

/// Where a path leads; the last name is `followed` when it is a link.
pub fn resolve(spool: &Spool, inner: &[u8], followed: bool) -> Result<Target> {
    let mut links = 0;
    let (mut at, mut rest) = (Vec::new(), inner.to_vec());
    loop {
        let (name, after) = split_first(&rest);
        if name.is_empty() {
            return Ok(Target::Inside(at.clone(), look(spool, &at)?));
        }
        let next = if at.is_empty() { name.to_vec() } else { [&at, b"/".as_slice(), name].concat() };
        let found = look(spool, &next)?;
        let is_last = after.is_empty();
        match found.kind() {
            libc::S_IFLNK if followed || !is_last => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                match place::of_link(spool, &at, &link_of(spool, &next)?) {
                    Place::Inside(target) => {
                        rest = [&target, b"/".as_slice(), after].concat();
                        at.clear();
                    }
                    Place::Outside(target) if is_last => return Ok(Target::Outside(target)),
                    Place::Outside(target) => {
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

/// Where a file is made by a name at which there is none, or a link that leads to none.
pub fn resolve_new(spool: &Spool, inner: &[u8], followed: bool) -> Result<Place> {
    let mut at = inner.to_vec();
    for _ in 0..LINKS_MAX {
        let name = match resolve_parent(spool, &at)? {
            Place::Inside(name) => name,
            outside => return Ok(outside),
        };
        match look(spool, &name) {
            Ok(found) if found.kind() == libc::S_IFLNK && followed => {
                let dir = name.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                match place::of_link(spool, &name[..dir], &link_of(spool, &name)?) {
                    Place::Inside(target) => at = target,
                    outside => return Ok(outside),
                }
            }
            Ok(_) | Err(Errno::NOENT) => return Ok(Place::Inside(name)),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::LOOP)
}

/// Where a name is whose directory may be reached by links: nothing needs to be there.
pub fn resolve_parent(spool: &Spool, inner: &[u8]) -> Result<Place> {
    let end = inner.iter().rposition(|byte| *byte == b'/');
    let Some(end) = end else { return Ok(Place::Inside(inner.to_vec())) };
    let (dir, name) = (&inner[..end], &inner[end..]);
    Ok(match resolve(spool, dir, true)? {
        // A name in the root has no slash before it.
        Target::Inside(dir, _) if dir.is_empty() => Place::Inside(name[1..].to_vec()),
        Target::Inside(dir, found) if found.kind() == libc::S_IFDIR => Place::Inside([&dir, name].concat()),
        Target::Inside(..) => return Err(Errno::NOTDIR),
        Target::Outside(dir) => Place::Outside([&dir, name].concat()),
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
