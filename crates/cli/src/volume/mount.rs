//! `tameike volume mount` and `unmount`: mounts a volume in this mount namespace, for all programs of the user.

use crate::arguments::{VolumeMountArguments, VolumeUnmountArguments};
use crate::report;
use std::path::{Path, PathBuf};
use tameike_agent::attach::Connection;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::mount;
use tameike_io::os::process::user;

/// Mounts a volume, and leaves the mount.
pub(super) fn mount(arguments: &VolumeMountArguments) -> Result<u8> {
    let VolumeMountArguments { volume, dir } = arguments;
    let dir = dir.canonicalize().map_err(|error| {
        let fault = Fault::from_os(format_args!("finding the directory {}", dir.display()), &error);
        let hint = format!("{fault}; create it first: mkdir -p {}", dir.display());
        if fault.errno == Errno::ENOENT { Fault::new(fault.errno, hint) } else { fault }
    })?;
    // Before anything is mounted.
    let connection = Connection::open(&volume.for_agent(), 0)?;
    let source = volume.source();
    let fuse = match user() {
        0 => mount::mount_fuse(&source, &dir, false)?,
        _ => mount::mount_fuse_by_helper(&source, &dir, false)?,
    };
    let served = connection.attach(fuse).and_then(|()| {
        rustix::fs::statvfs(&dir).map(drop).map_err(|error| {
            Fault::from_os(format_args!("using the mount at {}", dir.display()), &error.into())
        })
    });
    if let Err(fault) = served {
        if let Err(left) = unmount_at(&dir) {
            report::say(format_args!("{left}"));
        }
        return Err(fault);
    }
    let at = dir.display();
    report::say(format_args!(
        "volume {volume} is mounted at {at}; `tameike volume unmount {at}` unmounts it"
    ));
    Ok(0)
}

/// Unmounts a volume, also if its agent has failed.
pub(super) fn unmount(arguments: &VolumeUnmountArguments) -> Result<u8> {
    let dir = path_of_mount(&arguments.dir)?;
    if !mount::mounts()?.contains(&dir) {
        let message = format!("no volume is mounted at {}", dir.display());
        return Err(Fault::new(Errno::EINVAL, message));
    }
    unmount_at(&dir).map(|()| 0)
}

/// Resolves links of a path, without access to the mount at its end, whose agent may have failed.
fn path_of_mount(dir: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| {
        Fault::from_os(format_args!("finding the directory {}", dir.display()), &error)
    };
    let dir = std::path::absolute(dir).map_err(failed)?;
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(failed)?.join(name)),
        _ => Ok(dir),
    }
}

fn unmount_at(dir: &Path) -> Result<()> {
    if user() == 0 { mount::unmount(dir) } else { mount::unmount_by_helper(dir) }
}
