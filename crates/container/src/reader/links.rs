//! Resolution of symbolic links.

use crate::display::shown;
use crate::format::entry::{check_path, split_path};
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::join;

/// Maximum number of links in one resolution, as on Linux.
const LINKS_MAX: usize = 40;

/// The path to which `path` leads after all links in it are followed, the last one, too. It need not exist. `target` returns the target of
/// the link at a path, and `None` if that is no link.
///
/// # Errors
/// `ELOOP` after more than 40 links, `ENOENT` if a link leads out of the container, `ENAMETOOLONG` if the result is no valid path, and
/// errors of `target`.
pub fn follow_links(
    path: &[u8],
    mut target: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>>,
) -> Result<Vec<u8>> {
    let names = |path: &[u8]| path.split(|&byte| byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
    let shown = shown(path);
    let outside = || {
        let message =
            format!("{shown}: a symbolic link in it leads out of the container and is not followed");
        Fault::new(Errno::ENOENT, message)
    };
    let (mut at, mut left, mut links) = (Vec::new(), names(path), 0);
    while let Some(name) = left.pop() {
        match &name[..] {
            b"" | b"." => continue,
            b".." if at.is_empty() => return Err(outside()),
            b".." => {
                at.truncate(split_path(&at).0.len());
                continue;
            }
            _ => {}
        }
        let next = join(&at, &name);
        let Some(to) = target(&next)? else {
            at = next;
            continue;
        };
        links += 1;
        if links > LINKS_MAX {
            return Err(Fault::new(Errno::ELOOP, format!("{shown}: more than {LINKS_MAX} symbolic links")));
        }
        if to.starts_with(b"/") {
            return Err(outside());
        }
        left.extend(names(&to));
    }
    if !at.is_empty() {
        check_path(&at)?;
    }
    Ok(at)
}
