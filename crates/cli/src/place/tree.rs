//! Recursive removal of directories that never crosses a mount point, so that cleanup cannot delete the content of a remaining
//! mount.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, statat, unlinkat};
use rustix::io::Errno as Os;
use rustix::path::Arg;
use std::ffi::{CStr, CString};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process;

/// Removes a file, or a directory recursively. A missing path is not an error. Fails with `EPERM` if it belongs to another user, and with `EXDEV` if it contains a mount, which stays as it is.
pub fn remove(path: &Path) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Fault::from_os(format_args!("removing {}", path.display()), &error)),
    };
    if found.uid() != process::user() {
        return Err(Fault::new(Errno::EPERM, format!("{} belongs to another user", path.display())));
    }
    remove_on(path, found.dev())
}

/// Descends and ascends by single names: a path that a program created in a view can exceed PATH_MAX, and the depth can exceed
/// the limit of descriptors.
fn remove_on(path: &Path, device: u64) -> Result<()> {
    let failed = |error: Os| match error {
        Os::XDEV => {
            let why = format!("{} contains a mount; it was not removed", path.display());
            Fault::new(Errno::EXDEV, why)
        }
        error => Fault::from_os(format_args!("removing {}", path.display()), &error.into()),
    };
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Fault::new(Errno::EINVAL, format!("{} cannot be removed", path.display())));
    };
    let above = open_dir(CWD, above).map_err(failed)?;
    let mut down = vec![CString::new(name.as_bytes()).map_err(|_| failed(Os::INVAL))?];
    if !is_dir(&above, &down[0], device).map_err(failed)? {
        return unlinkat(&above, &down[0], AtFlags::empty()).map_err(failed);
    }
    let mut at = open_dir(&above, &down[0]).map_err(failed)?;
    loop {
        if let Some(sub) = remove_files(&at, device).map_err(failed)? {
            at = open_dir(&at, &sub).map_err(failed)?;
            down.push(sub);
            continue;
        }
        let Some(empty) = down.pop() else { return Ok(()) };
        let Some(_) = down.last() else {
            return unlinkat(&above, &empty, AtFlags::REMOVEDIR).map_err(failed);
        };
        at = open_dir(&at, c"..").map_err(failed)?;
        unlinkat(&at, &empty, AtFlags::REMOVEDIR).map_err(failed)?;
    }
}

fn open_dir(above: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// `EXDEV` for a mount point.
fn is_dir(above: &OwnedFd, name: &CStr, device: u64) -> rustix::io::Result<bool> {
    let found = statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if found.st_dev != device {
        return Err(Os::XDEV);
    }
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Removes files of a directory up to the first subdirectory, and returns that one.
fn remove_files(dir: &OwnedFd, device: u64) -> rustix::io::Result<Option<CString>> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if is_dir(dir, name, device)? {
            return Ok(Some(name.to_owned()));
        }
        unlinkat(dir, name, AtFlags::empty())?;
    }
    Ok(None)
}

/// Returns true if a directory is missing, empty, or has only the entry `name`.
pub fn is_empty_but_for(path: &Path, name: &str) -> Result<bool> {
    let cannot = |error| Fault::from_os(format_args!("reading {}", path.display()), &error);
    let entries = match path.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(cannot(error)),
    };
    for entry in entries {
        if entry.map_err(cannot)?.file_name() != name {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_removed_and_links_are_not_followed() {
        let temp = tempfile::tempdir().expect("a directory");
        let keep = temp.path().join("keep");
        std::fs::create_dir_all(keep.join("sub")).expect("made");
        let tree = temp.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).expect("made");
        std::fs::write(tree.join("a/b/file"), "x").expect("written");
        std::os::unix::fs::symlink(&keep, tree.join("a/link")).expect("a link");
        remove(&tree).expect("removed");
        remove(&tree).expect("gone already");
        assert!(!tree.exists() && keep.join("sub").is_dir());
        assert!(is_empty_but_for(&tree, "sub").expect("not there"));
        assert!(
            is_empty_but_for(&keep, "sub").expect("read") && !is_empty_but_for(&keep, "x").expect("read")
        );
    }

    #[test]
    fn trees_deeper_than_path_max_and_the_descriptor_limit_are_removed() {
        let temp = tempfile::tempdir().expect("a directory");
        let tree = temp.path().join("tree");
        std::fs::create_dir(&tree).expect("made");
        let mut at = open_dir(CWD, &tree).expect("open");
        for depth in 0..3000 {
            for name in [c"a", c"b"].into_iter().take(1 + usize::from(depth % 1000 == 0)) {
                rustix::fs::mkdirat(&at, name, Mode::RWXU).expect("made");
            }
            at = open_dir(&at, c"a").expect("open");
        }
        rustix::fs::symlinkat("nowhere", &at, c"link").expect("a link");
        drop(at);
        remove(&tree).expect("removed");
        assert!(!tree.exists());
    }
}
