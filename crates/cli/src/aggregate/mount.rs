//! `tameike agg mount`: mounts a container read-only.

use super::{of_path, open};
use crate::arguments::MountArguments;
use crate::report::say;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tameike_agent::mounted::serve_tree;
use tameike_container::ContainerTree;
use tameike_core::Result;
use tameike_io::os::mount::UnmountWatch;
use tameike_io::os::process::{group, start_thread, user};
use tameike_io::os::{mount, signal};

/// Time for which programs with open files are served after the unmount.
const LEAVING: Duration = Duration::from_secs(1);

/// Reasons for the end of the mount.
enum Event {
    /// The kernel has closed the connection: no mount and no open file is left.
    Served(Result<()>),
    /// It was unmounted in this namespace. Another namespace may have a copy.
    Unmounted,
}

/// Serves a container until it is unmounted.
pub fn mount(arguments: &MountArguments) -> Result<u8> {
    let MountArguments { container, at } = arguments;
    let opened = open(container)?;
    // Files that are added later are not visible; but external content that is not yet promoted grows.
    let is_unchanging = opened.count_external() == 0;
    let tree = ContainerTree::new(opened, (user(), group()));
    let at = at.canonicalize().map_err(|error| {
        let fault = tameike_core::Fault::from_os("finding the directory", &error);
        of_path(at, &fault)
    })?;
    let source = format!("tameike:{}", container.display());
    let is_root = user() == 0;
    let fuse = match is_root {
        true => mount::mount_fuse(&source, &at, true)?,
        false => mount::mount_fuse_by_helper(&source, &at, true)?,
    };
    let unmount = {
        let at = at.clone();
        move || if is_root { mount::unmount(&at) } else { mount::unmount_by_helper(&at) }
    };
    let watched = signal::watch_ending({
        let unmount = unmount.clone();
        move |_| {
            if let Err(fault) = unmount() {
                say(format_args!("{fault}"));
            }
        }
    });
    let (ends, ended) = channel();
    let started = watched.and_then(|()| watch(UnmountWatch::new(&at)?, ends.clone())).and_then(|()| {
        start_thread("mount", move || {
            let _ = ends.send(Event::Served(serve_tree(Arc::new(tree), is_unchanging, fuse)));
        })
    });
    if let Err(fault) = started {
        // No other process would unmount it.
        let _ = unmount();
        return Err(fault);
    }
    say(format_args!("{} is mounted at {}", container.display(), at.display()));
    match ended.recv() {
        Ok(Event::Served(served)) => {
            if served.is_err() {
                let _ = unmount();
            }
            served.map(|()| 0)
        }
        // The copies end with this process.
        Ok(Event::Unmounted) | Err(_) => match ended.recv_timeout(LEAVING) {
            Ok(Event::Served(served)) => served.map(|()| 0),
            Ok(Event::Unmounted) | Err(_) => Ok(0),
        },
    }
}

/// Sends an event after the unmount.
fn watch(watch: UnmountWatch, ends: Sender<Event>) -> Result<()> {
    start_thread("unmount", move || match watch.wait() {
        Ok(()) => drop(ends.send(Event::Unmounted)),
        // Then the mount ends with its last copy.
        Err(fault) => say(format_args!("{fault}")),
    })
    .map(drop)
}
