//! Safe use of directories and files below a directory that other users can write to, such as `/dev/shm` and `/tmp`.
//!
//! Another user can create a directory of any name there, with symbolic links and FIFOs in it. A program that uses it writes
//! through the links to its own user's files, and blocks at a FIFO. So a directory that must belong to this user is checked
//! before use. It stays this user's, since the sticky bits of the directories above keep other users from renaming or removing
//! it. The owners of those directories, and groups with write permission, are trusted.

use super::process::{may_be_any_user, user};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno as Os;
use std::os::fd::OwnedFd;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};

/// Mode bits by which other users can change the content of a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// True if `path` is a directory of this user that no other user can write to or replace; false if it does not exist.
///
/// # Errors
/// `EPERM` if it is a symbolic link, a file, or a directory that belongs to or is writable by another user; also if a directory
/// above is writable by all users without a sticky bit.
pub fn is_own_dir(path: &Path) -> Result<bool> {
    let found = match rustix::fs::lstat(path) {
        Ok(found) => found,
        Err(Os::NOENT) => return Ok(false),
        Err(error) => {
            return Err(Fault::from_os(format_args!("checking {}", path.display()), &error.into()));
        }
    };
    match why_not_own(&found, |flags| rustix::fs::open(path, flags, Mode::empty())) {
        None => check_above(path).map(|()| true),
        Some(why) => Err(Fault::new(Errno::EPERM, format!("{} {why}", path.display()))),
    }
}

fn check_above(path: &Path) -> Result<()> {
    let failed =
        |error| Fault::from_os(format_args!("checking the directories above {}", path.display()), &error);
    for above in path.canonicalize().map_err(failed)?.ancestors().skip(1) {
        let found = rustix::fs::stat(above).map_err(|error| failed(error.into()))?;
        if found.st_mode & WRITABLE_BY_ALL != 0 && found.st_mode & STICKY == 0 {
            let message = format!(
                "all users can replace what is in {}, and so {}; run `chmod +t` on it, or choose another directory",
                above.display(),
                path.display()
            );
            return Err(Fault::new(Errno::EPERM, message));
        }
    }
    Ok(())
}

/// The reason why the found entry, which `open` opens, is not a private directory of this user; `None` if it is.
pub fn why_not_own(found: &Stat, open: impl FnOnce(OFlags) -> rustix::io::Result<OwnedFd>) -> Option<String> {
    // Only the owner may open with `O_NOATIME`, which the kernel checks by the real owner id, whatever it shows here.
    let for_owner = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory if found.st_uid != user() => {
            Some(format!("belongs to another user (UID {})", found.st_uid))
        }
        FileType::Directory if may_be_any_user(found.st_uid) && open(for_owner).is_err() => {
            Some("belongs to another user, who is not mapped in this user namespace".to_owned())
        }
        FileType::Directory if found.st_mode & WRITABLE_BY_OTHERS != 0 => {
            Some("can be written to by other users; `chmod go-w` ends that".to_owned())
        }
        FileType::Directory => None,
        FileType::Symlink => Some("is a symbolic link, not a directory".to_owned()),
        _ => Some("is not a directory".to_owned()),
    }
}

/// Opens a regular file. Never follows a symbolic link in the last component, and never blocks on a FIFO.
///
/// # Errors
/// `EPERM` if it is not a regular file, and the errors of the system.
pub fn open_regular(path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let failed = |error: Os| Fault::from_os(format_args!("open {}", path.display()), &error.into());
    let never_waits = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags | never_waits, mode).map_err(failed)?;
    let found = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Fault::new(Errno::EPERM, format!("open {}: it is not a regular file", path.display())));
    }
    // With `O_NONBLOCK`, io_uring would fail with EAGAIN instead of waiting for the device.
    rustix::fs::fcntl_getfl(&file)
        .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK))
        .map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_directory_that_other_users_control_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("dir");
        let found = |path: &Path| is_own_dir(path).map_err(|fault| (fault.errno, fault.to_string()));
        assert_eq!(found(&path), Ok(false));
        std::fs::create_dir(&path).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        for mode in [0o700, 0o755] {
            set_mode(mode);
            assert_eq!(found(&path), Ok(true));
        }
        let refused = |path: &Path, why: &str| {
            let (errno, message) = found(path).expect_err(why);
            assert!(errno == Errno::EPERM && message.contains(why), "{message}");
        };
        for mode in [0o770, 0o702, 0o1777] {
            set_mode(mode);
            refused(&path, "written to by other users");
        }
        set_mode(0o700);
        let set_above =
            |mode| std::fs::set_permissions(place.path(), PermissionsExt::from_mode(mode)).unwrap();
        set_above(0o777);
        refused(&path, "all users can replace");
        set_above(0o1777);
        assert_eq!(found(&path), Ok(true));
        let link = place.path().join("link");
        symlink(&path, &link).unwrap();
        refused(&link, "is a symbolic link");
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        refused(&file, "is not a directory");
        if user() == 0 {
            chown(&path, Some(65_533), None).unwrap();
            refused(&path, "belongs to another user (UID 65533)");
        }
    }

    #[test]
    fn links_and_fifos_are_not_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let open = |name: &str| {
            let (flags, mode) = (OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
            open_regular(&at(name), flags, mode).map_err(|fault| fault.errno)
        };
        std::fs::write(at("file"), "kept").unwrap();
        symlink(at("file"), at("link")).unwrap();
        assert_eq!(open("link").map(drop), Err(Errno::ELOOP));
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
        assert_eq!(open("fifo").map(drop), Err(Errno::EPERM));
        let opened = open("file").unwrap();
        assert!(!rustix::fs::fcntl_getfl(&opened).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(open("new").map(drop), Ok(()));
        assert_eq!(std::fs::read(at("file")).unwrap(), b"kept");
    }
}
