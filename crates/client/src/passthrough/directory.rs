//! Open directories of a view over a tree, read from the underlying file system.

use super::{Passthrough, TreeView};
use crate::types::{FileNumber, HandleNumber, ListedEntry};
use crate::vfs::{Directories, Entries};
use std::sync::Arc;
use tameike_core::{Errno, Result};
use tameike_io::shared::{NamedFile, SharedDir};

/// An open directory, and the frontend's number of it.
#[derive(Clone)]
pub(super) struct OpenDir {
    number: FileNumber,
    open: Arc<dyn SharedDir>,
}

impl<V: TreeView> Directories for V {
    async fn open_dir(&self, dir: FileNumber) -> Result<HandleNumber> {
        let below = self.below();
        // Another node may have renamed the directory.
        below.stat(dir).await?;
        let path = below.path(dir)?;
        let opened = below.run(move |fs| {
            let open = fs.open_dir(&path)?;
            Ok((open.stat()?, open))
        });
        let (stat, open) = opened.await?;
        if !below.is(dir, &stat) {
            // It has just been renamed, and another directory has its name: the caller repeats the lookup.
            return Err(Errno::ESTALE.into());
        }
        Ok(below.open_dirs.open(OpenDir { number: dir, open }))
    }

    async fn readdir(&self, dir: HandleNumber, after: u64) -> Result<Entries> {
        let below = self.below();
        let fetch = |OpenDir { number, open }| async move {
            let names = below.run(move |_| open.read(after)).await?;
            Ok(names.into_iter().map(|named| listed(below, number, named)).collect())
        };
        below.open_dirs.read(dir, after, fetch).await
    }

    fn release_dir(&self, dir: HandleNumber) {
        self.below().open_dirs.close(dir);
    }

    async fn fsync_dir(&self, dir: FileNumber) -> Result<()> {
        let path = self.below().path(dir)?;
        self.below().run(move |fs| fs.sync_dir(&path)).await
    }
}

fn listed(below: &Passthrough, dir: FileNumber, named: NamedFile) -> ListedEntry {
    let NamedFile { name, inode, kind, next } = named;
    // Inode numbers that the file system returns for `.` and `..` are not those of the view.
    let inode = if matches!(&name[..], b"." | b"..") { dir } else { below.number(inode) };
    ListedEntry { next, inode: inode.0, kind, name }
}
