//! [`Vfs`](crate::vfs::Vfs) of the cache view, except for file content.

use super::CacheView;
use crate::kernel_pages::{EngineFile, OnEngine};
use crate::locks::FileLocks;
use crate::passthrough::{Owner, Passthrough, TreeView};
use crate::types::{FileNumber, Found, HandleNumber, Name, OpenMode, Opened, ViewSpace};
use crate::vfs::{Inodes, Locking, Names, OpenFiles, Usage};
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::{Attr, Errno, Generation, InodeId, Result};

impl TreeView for CacheView {
    fn below(&self) -> &Passthrough {
        &self.below
    }
}

impl OnEngine for CacheView {
    fn engine_file(&self, handle: HandleNumber) -> Result<EngineFile> {
        let open = self.handle(handle)?;
        Ok(EngineFile { data: open.data.clone(), is_detached: open.is_orphan() })
    }
}

impl Names for CacheView {
    async fn lookup(&self, dir: FileNumber, name: &[u8]) -> Result<Found> {
        let found = self.below.lookup(dir, name).await?;
        let file = self.below.identity(found.file);
        Ok(Found { attr: self.overlay_file(&file, found.attr).await?, ..found })
    }

    async fn make(&self, dir: FileNumber, name: &[u8], new: NewInode) -> Result<Found> {
        self.below.make(dir, name, new).await
    }

    async fn link(&self, file: FileNumber, dir: FileNumber, name: &[u8]) -> Result<Found> {
        let (from, to) = (self.below.path(file)?, self.below.child(dir, name)?);
        let found = self.below.link(file, dir, name).await?;
        // The coordinator uses this path if the file's other names are removed.
        self.report_rename(&found.attr, &from, &to).await?;
        let file = self.below.identity(found.file);
        Ok(Found { attr: self.overlay_file(&file, found.attr).await?, ..found })
    }

    async fn unlink(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name).await
    }

    async fn rmdir(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        self.below.rmdir(dir, name).await
    }

    async fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        self.rename_name(from, to, mode).await
    }
}

impl Inodes for CacheView {
    async fn lookup_again(&self, file: FileNumber) -> Result<Found> {
        self.below.lookup_again(file, self.getattr(file)).await
    }

    fn forget(&self, file: FileNumber, count: u64) {
        self.below.tree.forget(file, count);
    }

    async fn getattr(&self, file: FileNumber) -> Result<Attr> {
        self.overlay(&self.stat(file).await?).await
    }

    async fn setattr(&self, file: FileNumber, change: AttrChange) -> Result<Attr> {
        self.change(file, change).await
    }

    async fn readlink(&self, file: FileNumber) -> Result<Vec<u8>> {
        self.below.readlink(file).await
    }
}

impl OpenFiles for CacheView {
    async fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> Result<(Found, Opened)> {
        let path = self.below.child(dir, name)?;
        let at = path.clone();
        let owner = Owner::of(&new);
        let created = self.below.run(move |fs| {
            let file = owner.create(fs, &at, new.mode)?;
            let stat = file.stat()?;
            Ok((file, stat))
        });
        let (found, opened) = match created.await {
            Err(fault) if fault.errno == Errno::EEXIST && !exclusive => {
                let (stat, opened) = self.open_at(path, mode).await?;
                (self.below.found(dir, name, &stat), opened)
            }
            Err(fault) => return Err(fault),
            Ok((file, stat)) => {
                let mode = OpenMode { truncate: false, ..mode };
                let opened = self.open_shared((path, file), &stat, mode, true).await?;
                (self.below.made(dir, name, &stat), opened)
            }
        };
        match self.overlay_file(&self.below.identity(found.file), found.attr).await {
            Ok(attr) => Ok((Found { attr, ..found }, opened)),
            Err(fault) => {
                self.close(opened.handle);
                Err(fault)
            }
        }
    }

    async fn open(&self, file: FileNumber, mode: OpenMode) -> Result<Opened> {
        if let Some(opened) = self.reopen_orphan(file, mode).await? {
            return Ok(opened);
        }
        let path = self.below.path(file)?;
        let (stat, opened) = self.open_at(path.clone(), mode).await?;
        if !self.below.is(file, &stat) {
            // Another file has taken the name: the caller repeats the lookup.
            self.close(opened.handle);
            self.revalidate(path).await?;
            return Err(Errno::ESTALE.into());
        }
        Ok(opened)
    }

    async fn flush(&self, handle: HandleNumber) -> Result<()> {
        self.sync_open(&*self.handle(handle)?, false).await
    }

    async fn fsync(&self, handle: HandleNumber) -> Result<()> {
        self.sync_open(&*self.handle(handle)?, true).await
    }

    fn only_awaits_others(&self, handle: HandleNumber) -> bool {
        self.handle(handle).is_ok_and(|open| !open.is_orphan() && open.data.is_flushed())
    }

    async fn size(&self, handle: HandleNumber) -> Result<u64> {
        let open = self.handle(handle)?;
        if !open.is_orphan() {
            return Ok(open.data.size());
        }
        self.below.run(move |_| open.shared.stat()).await.map(|stat| stat.size)
    }

    async fn release(&self, handle: HandleNumber) {
        if let Some(open) = self.opens.get(handle).filter(|open| !open.is_orphan()) {
            self.engine.flush_mapped(&open.data, open.mode).await;
        }
        self.close(handle);
    }
}

impl Locking for CacheView {
    fn locks(&self) -> Option<&Arc<FileLocks>> {
        Some(&self.locks)
    }

    fn locked_inode(&self, handle: HandleNumber) -> Result<InodeId> {
        Ok(self.handle(handle)?.data.inode)
    }

    async fn publish(&self, handle: HandleNumber) -> Result<()> {
        let open = self.handle(handle)?;
        if open.is_orphan() || open.data.is_flushed() {
            return Ok(());
        }
        self.engine.flush(&open.data, false).await
    }

    async fn revalidate(&self, handle: HandleNumber) -> Result<Option<Generation>> {
        self.revalidate_open(&*self.handle(handle)?).await
    }
}

impl Usage for CacheView {
    async fn space(&self) -> Result<ViewSpace> {
        self.below.space().await
    }
}
