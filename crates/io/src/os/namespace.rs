//! Private namespaces of a node: only its programs see its mounts, which end with them.
//!
//! A user other than root gets a user namespace that maps only this user and group. Programs keep their user id and their access
//! to files; files of other users appear to belong to `nobody`. Both functions change the calling process, which must be
//! single-threaded.

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use tameike_core::{Fault, Result};

/// The namespaces that a process created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// A mount namespace.
    Mount,
    /// A user and a mount namespace.
    UserAndMount,
}

/// Gives the calling process a private mount namespace, and a user namespace if that is required. Later mounts of the host
/// propagate into it; its mounts do not propagate out.
///
/// # Errors
/// The kernel or the site refuses. After an error the process may be in a partial state, and must exit.
pub fn isolate() -> Result<Namespaces> {
    let made = if geteuid().is_root() && unshare(UnshareFlags::NEWNS).is_ok() {
        Namespaces::Mount
    } else {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
            .map_err(|error| Fault::from_os("creating a user and a mount namespace", &error.into()))?;
        write_map("uid_map", &format!("{user} {user} 1"))?;
        write_map("setgroups", "deny")?;
        write_map("gid_map", &format!("{group} {group} 1"))?;
        Namespaces::UserAndMount
    };
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|error| Fault::from_os("making the mounts of this process private", &error.into()))?;
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

/// Moves the calling process into the namespaces that process `pid` created by [`isolate`], unless it is there already.
///
/// # Errors
/// The process has exited, or belongs to another user.
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

/// True if an open namespace is that of the calling process.
fn is_own(kind: &str, namespace: &File) -> Result<bool> {
    let path = format!("/proc/self/ns/{kind}");
    let failed = |error: std::io::Error| Fault::from_os(format_args!("reading {path}"), &error);
    let own = std::fs::metadata(&path).map_err(failed)?;
    let other = namespace.metadata().map_err(failed)?;
    Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
}
