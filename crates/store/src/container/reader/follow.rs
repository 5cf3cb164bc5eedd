//! Symbolic links, which are followed within a container.

use super::super::entry::split_path;
use super::Container;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::join;

/// Links that are followed on the way to one path.
const LINKS_MAX: usize = 40;

impl Container {
    /// The path that one leads to when all links on it are followed, the last one too. There may be nothing at it.
    ///
    /// # Errors
    /// `ELOOP` when there are more than 40 links, `ENOENT` when one leads out of the container, and as [`Self::find`].
    pub fn follow(&self, path: &[u8]) -> Result<Vec<u8>> {
        let names =
            |path: &[u8]| path.split(|&byte| byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let (mut at, mut left, mut links) = (Vec::new(), names(path), 0);
        while let Some(name) = left.pop() {
            match &name[..] {
                b"" | b"." => continue,
                b".." if at.is_empty() => return Err(outside(path)),
                b".." => {
                    at.truncate(split_path(&at).0.len());
                    continue;
                }
                _ => {}
            }
            let next = join(&at, &name);
            let link = self
                .find(&next)?
                .filter(|entry| entry.node.is_some_and(|node| node.kind == FileKind::Symlink));
            let Some(link) = link else {
                at = next;
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::ELOOP.into());
            }
            let target = self.node(&link)?.target;
            if target.starts_with(b"/") {
                return Err(outside(path));
            }
            left.extend(names(&target));
        }
        Ok(at)
    }
}

fn outside(path: &[u8]) -> Fault {
    let message = format!("{}: a link leads out of the container", String::from_utf8_lossy(path));
    Fault::new(Errno::ENOENT, message)
}
