//! Resolution of symbolic links by the entries of a container.

use super::Container;
use super::links::follow_links;
use tameike_core::{FileKind, Result};

impl Container {
    /// The path after all links in it are followed, the last one, too. It need not exist.
    pub fn follow(&self, path: &[u8]) -> Result<Vec<u8>> {
        follow_links(path, |at| match self.find(at)? {
            Some(entry) if entry.node.is_some_and(|node| node.kind == FileKind::Symlink) => {
                Ok(Some(self.node(&entry)?.target))
            }
            _ => Ok(None),
        })
    }
}
