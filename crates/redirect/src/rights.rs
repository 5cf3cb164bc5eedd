//! Permissions, owners and times by path.

use crate::kernel::{self, Result, is_kind};
use crate::names::{Way, way};
use crate::place::{self, Place};
use crate::resolve::{self, Found, Target};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use std::ffi::CString;
use tameike_core::attr::AttrChange;
use tameike_core::spool::protocol::Request;
use tameike_core::spool::stub::Stub;
use tameike_interpose::Verdict;

/// `faccessat`.
pub fn access(directory: i32, path: &[u8], wanted: i32, flags: i32) -> Verdict<()> {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let wanted = Access::from_bits_retain(wanted.cast_unsigned());
    let flags = AtFlags::from_bits_retain(flags.cast_unsigned());
    loop {
        return Some(match way(directory, path, follow)? {
            Ok(Way::Outside(path)) => rustix::fs::accessat(CWD, &path, wanted, flags),
            Ok(Way::Packed(_, _, stub)) => may(&stub, wanted),
            Ok(Way::Real(spool, inner, stat)) => {
                let answer =
                    spool.real(&inner).and_then(|path| rustix::fs::accessat(CWD, &path, wanted, flags));
                // A file that was packed since has left a link that leads nowhere; one that a program has made is told of.
                if answer == Err(Errno::NOENT) && !is_kind(stat.st_mode, libc::S_IFLNK) {
                    continue;
                }
                answer
            }
            Err(error) => Err(error),
        });
    }
}

fn may(stub: &Stub, wanted: Access) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let executes = stub.mode & 0o111 != 0;
    let bits = wanted.bits() as u16 & 0o7;
    let shift = if user == stub.uid {
        6
    } else if rustix::process::getegid().as_raw() == stub.gid {
        3
    } else {
        0
    };
    let allowed = if user == 0 { 0o6 | u16::from(executes) } else { stub.mode >> shift };
    if bits & !allowed == 0 { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Attributes by path: `fchmodat`, `fchownat`, `utimensat`. `of_directory` is the kernel's call.
pub fn change(
    directory: i32,
    path: &[u8],
    follow: bool,
    change: AttrChange,
    of_directory: impl FnOnce(&CString) -> Result<()>,
) -> Verdict<()> {
    let (spool, place) = place::find(directory, path)?;
    Some((|| {
        let inner = match place {
            Place::Inside(inner) => inner,
            Place::Outside(path) => return of_directory(&kernel::text(path)?),
        };
        match resolve::resolve(spool, &inner, follow)? {
            Target::Inside(inner, Found::Real(stat)) if is_kind(stat.st_mode, libc::S_IFDIR) => {
                of_directory(&spool.real(&inner)?)
            }
            Target::Inside(path, _) => spool.ask(&Request::Change { path, change }),
            Target::Outside(path) => of_directory(&kernel::text(path)?),
        }
    })())
}
