//! Access checks, and changes of attributes by path.

use crate::kernel::{self, Result, is_kind};
use crate::location::{self, Location};
use crate::names::{Existing, find_existing};
use crate::resolve::{self, Found, Target};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use std::ffi::CString;
use tameike_core::attr::AttrChange;
use tameike_core::spool::protocol::Request;
use tameike_core::spool::stub::Stub;
use tameike_interpose::Verdict;

/// `faccessat` of a redirected path.
pub fn access(directory: i32, path: &[u8], wanted: i32, flags: i32) -> Verdict<()> {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let wanted = Access::from_bits_retain(wanted.cast_unsigned());
    let flags = AtFlags::from_bits_retain(flags.cast_unsigned());
    loop {
        return Some(match find_existing(directory, path, follow)? {
            Ok(Existing::Outside(path)) => rustix::fs::accessat(CWD, &path, wanted, flags),
            Ok(Existing::Packed(_, _, stub)) => may(&stub, wanted),
            Ok(Existing::Real(spool, inner, stat)) => {
                let answer =
                    spool.real(&inner).and_then(|path| rustix::fs::accessat(CWD, &path, wanted, flags));
                // The file may have been packed since, which leaves a dangling link. For a program's dangling link, ENOENT is right.
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

/// `fchmodat`, `fchownat` and `utimensat`. `of_directory` makes the kernel's call, for directories and files outside the tree.
pub fn change(
    directory: i32,
    path: &[u8],
    follow: bool,
    change: AttrChange,
    of_directory: impl FnOnce(&CString) -> Result<()>,
) -> Verdict<()> {
    let (spool, place) = location::find(directory, path)?;
    Some((|| {
        let inner = match place {
            Location::Inside(inner) => inner,
            Location::Outside(path) => return of_directory(&kernel::text(path)?),
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
