//! The directories on which a job mounts its views, as seen without the mounts.
//!
//! If nodes have namespaces, only the job's programs see the views; other programs of the user see these directories. They
//! refuse writes (mode 0500) and have a README. Files that a program, like one of root, writes there nevertheless are never
//! removed: a message reports them, and the job's directory stays.

use super::base::{make_private_dir, mount_names, view_dirs};
use rustix::fs::{Dir, Mode, OFlags};
use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::mount;

/// The file that explains the directory.
const README: &str = "README";
const README_TEXT: &str = "\
A view of a Tameike job is mounted here for programs of the job only: those that
`tameike run` and `tameike exec` start. Other programs see this directory instead,
and must not write here: the files would not be in the view.
`tameike mount` prints paths of the views for all programs of this host.
";
/// Names of one directory that a message lists.
const NAMES_MAX: usize = 5;

/// The directory below a mount, opened before the mount.
pub struct MountPoint {
    path: PathBuf,
    dir: OwnedFd,
}

impl MountPoint {
    /// Creates the directory. With `closed`, it refuses writes and has a README. The caller holds the lock on the directory for
    /// jobs, because the nodes of a host share their mount points.
    pub fn make(path: &Path, closed: bool) -> Result<Self> {
        let failed =
            |error| Fault::from_os(format_args!("creating the mount point {}", path.display()), &error);
        make_private_dir(path)?;
        let readme = path.join(README);
        if closed && !readme.exists() {
            set_mode(path, 0o700).map_err(failed)?;
            std::fs::write(&readme, README_TEXT).map_err(failed)?;
            set_mode(&readme, 0o400).map_err(failed)?;
        }
        if closed {
            set_mode(path, 0o500).map_err(failed)?;
        }
        Ok(Self { path: path.to_owned(), dir: open_dir(path).map_err(failed)? })
    }

    /// Returns the message on files that programs outside the job wrote here.
    pub fn strays(&self) -> Option<String> {
        strays_in(&self.path, &self.dir, |_| false)
    }
}

/// Returns messages on files that programs outside a job wrote to its mount points, by directory. Directories with a mount in
/// this process's namespace are skipped: the node reports them.
pub fn strays(job_dir: &Path) -> Vec<String> {
    let mounted = mount::mounts().unwrap_or_default();
    let mut found = Vec::new();
    for above in view_dirs(job_dir) {
        let is_own = |name: &[u8]| mount_names().any(|own| own.as_bytes() == name);
        found.extend(open_dir(&above).ok().and_then(|dir| strays_in(&above, &dir, is_own)));
        let paths = mount_names().map(|name| above.join(name));
        for path in paths.filter(|path| !mounted.contains(path)) {
            found.extend(open_dir(&path).ok().and_then(|dir| strays_in(&path, &dir, |_| false)));
        }
    }
    found
}

/// Removes the mount points of a job with their README files. Fails with `ENOTEMPTY` and removes nothing if there are other files.
pub fn remove(job_dir: &Path) -> Result<()> {
    let strays = strays(job_dir);
    if !strays.is_empty() {
        return Err(Fault::new(Errno::ENOTEMPTY, strays.join("; ")));
    }
    for above in view_dirs(job_dir) {
        for path in mount_names().map(|name| above.join(name)) {
            remove_one(&path)
                .map_err(|error| Fault::from_os(format_args!("removing {}", path.display()), &error))?;
        }
    }
    Ok(())
}

fn remove_one(path: &Path) -> std::io::Result<()> {
    let absent = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    match set_mode(path, 0o700) {
        Err(error) if absent(&error) => return Ok(()),
        done => done?,
    }
    match std::fs::remove_file(path.join(README)) {
        Err(error) if !absent(&error) => return Err(error),
        _ => {}
    }
    // Fails if a program has written a file in the meantime.
    std::fs::remove_dir(path)
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn open_dir(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Describes the entries of a directory, without its README and names of the job.
fn strays_in(path: &Path, dir: &OwnedFd, is_own: impl Fn(&[u8]) -> bool) -> Option<String> {
    let entries = Dir::read_from(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| match entry.file_name().to_bytes() {
            b"." | b".." => false,
            b"README" => !is_own_readme(dir),
            name => !is_own(name),
        })
        .map(|entry| entry.file_name().to_string_lossy().escape_debug().to_string())
        .collect();
    names.sort();
    describe(path, &names)
}

fn is_own_readme(dir: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let text = rustix::fs::openat(dir, README, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .and_then(|file| std::io::read_to_string(File::from(file)));
    text.is_ok_and(|text| text == README_TEXT)
}

fn describe(path: &Path, names: &[String]) -> Option<String> {
    let more = names.len().saturating_sub(NAMES_MAX);
    let mut list = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        list = format!("{list} and {more} more");
    }
    (!names.is_empty()).then(|| {
        format!(
            "a program outside of the job wrote {list} to {}, below the mount point of the view: it is in no view, and \
             stays there; move it to another directory",
            path.display()
        )
    })
}
