//! `tameike agg mount`.

use super::{of_path, open};
use crate::arguments::MountArguments;
use crate::report::say;
use std::sync::Arc;
use tameike_agent::mounted::serve_tree;
use tameike_aggregate::ContainerTree;
use tameike_core::Result;
use tameike_io::os::process::{group, user};
use tameike_io::os::{mount, signal};

/// Shows a container until it is unmounted.
pub fn mount(arguments: &MountArguments) -> Result<u8> {
    let MountArguments { container, at } = arguments;
    let tree = ContainerTree::new(open(container)?, (user(), group()));
    let at = at.canonicalize().map_err(|error| {
        let fault = tameike_core::Fault::from_os("looking for the directory", &error);
        of_path(at, &fault)
    })?;
    let source = format!("tameike:{}", container.display());
    let is_root = user() == 0;
    let fuse =
        if is_root { mount::mount_fuse(&source, &at)? } else { mount::mount_fuse_by_helper(&source, &at)? };
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
    if let Err(fault) = watched {
        // Nobody would end it otherwise.
        let _ = unmount();
        return Err(fault);
    }
    say(format_args!("{} is shown at {}", container.display(), at.display()));
    let served = serve_tree(Arc::new(tree), fuse);
    if served.is_err() {
        let _ = unmount();
    }
    served.map(|()| 0)
}
