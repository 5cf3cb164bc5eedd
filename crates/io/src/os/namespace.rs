//! Namespaces of its own for a node, so that its mounts are seen by its programs only and end with them.
//!
//! A user who is not root gets a user namespace in which only the own user and group exist: programs keep
//! their number and their right to the files, and files of others show as `nobody`'s. Nothing here starts
//! processes; both functions change the calling process and must be called while it has one thread.

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use tameike_core::{Fault, Result};

/// Which namespaces a process made for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// A mount namespace.
    Mount,
    /// A user and a mount namespace.
    UserAndMount,
}

/// Gives the calling process a mount namespace of its own, and a user namespace where that takes one. Mounts
/// made by others on the host still come in; mounts made here do not go out.
///
/// # Errors
/// The kernel or the site refuses; after a failure in the middle the process is good for nothing but to end.
pub fn isolate() -> Result<Namespaces> {
    let made = if geteuid().is_root() && unshare(UnshareFlags::NEWNS).is_ok() {
        Namespaces::Mount
    } else {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
            .map_err(|error| Fault::from_os("making a user and a mount namespace", &error.into()))?;
        write_map("uid_map", &format!("{user} {user} 1"))?;
        write_map("setgroups", "deny")?;
        write_map("gid_map", &format!("{group} {group} 1"))?;
        Namespaces::UserAndMount
    };
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|error| Fault::from_os("keeping own mounts from the rest of the host", &error.into()))?;
    Ok(made)
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the only flag that is unsafe to other threads, FILES, is not among those used here.
    unsafe { unshare_unsafe(flags) }
}

fn write_map(name: &str, content: &str) -> Result<()> {
    let path = format!("/proc/self/{name}");
    std::fs::write(&path, content).map_err(|error| Fault::from_os(format_args!("writing {path}"), &error))
}

/// Moves the calling process into the namespaces that process `pid` made with [`isolate`]. Where it is there
/// already, it stays.
///
/// # Errors
/// The process is gone, or belongs to somebody else.
pub fn enter(pid: u32, namespaces: Namespaces) -> Result<()> {
    let open = |kind: &str| {
        let path = format!("/proc/{pid}/ns/{kind}");
        File::open(&path).map_err(|error| Fault::from_os(format_args!("opening {path}"), &error))
    };
    let join = |file: &File, kind: LinkNameSpaceType| {
        move_into_link_name_space(file.as_fd(), Some(kind)).map_err(|error| {
            Fault::from_os(format_args!("entering the {kind:?} namespace of process {pid}"), &error.into())
        })
    };
    let mounts = open("mnt")?;
    if is_own("mnt", &mounts)? {
        return Ok(());
    }
    if namespaces == Namespaces::UserAndMount {
        join(&open("user")?, LinkNameSpaceType::User)?;
    }
    join(&mounts, LinkNameSpaceType::Mount)
}

/// Whether an open namespace is that of the calling process.
fn is_own(kind: &str, namespace: &File) -> Result<bool> {
    let path = format!("/proc/self/ns/{kind}");
    let failed = |error: std::io::Error| Fault::from_os(format_args!("looking at {path}"), &error);
    let own = std::fs::metadata(&path).map_err(failed)?;
    let other = namespace.metadata().map_err(failed)?;
    Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
}
