//! Names of the cache view that go: what a rename or a removal means for data that is not yet on the shared file system,
//! and for those who have the file open.

use super::CacheView;
use super::opens::OpenFile;
use crate::passthrough::{Identity, Passthrough};
use crate::types::FileNumber;
use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, Errno, FaultKind, FileKind, InodeId, Result};
use tameike_io::shared::{FileStat, SharedFs};

/// A name: its directory, and what it is called there.
pub(super) type Name<'a> = (FileNumber, &'a [u8]);

impl CacheView {
    /// Removes a name of anything but a directory.
    pub(super) async fn remove_name(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        let path = self.below.child(dir, name)?;
        let _held = self.locks.hold_names(BTreeSet::from([self.lock_of((dir, name))])).await?;
        let at = path.clone();
        let look = move |fs: &dyn SharedFs| {
            fs.revalidate(&at);
            fs.stat(&at)
        };
        let stat = self.below.run(look).await?;
        self.before_removal(&stat, (dir, name), &path).await?;
        // The number must not go to a new file before the coordinator has dropped the old one's data.
        let (removed, _pin) = match self.below.unlink(dir, name).await {
            Ok(removed) => removed,
            Err(fault) => {
                self.not_removed(&stat).await;
                return Err(fault);
            }
        };
        if removed.nlink > 1 {
            self.refresh_paths(&removed);
        }
        self.after_removal(&removed).await
    }

    /// Gives a file another name.
    pub(super) async fn rename_name(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        let _held = self.locks.hold_names(BTreeSet::from([self.lock_of(from), self.lock_of(to)])).await?;
        // Until the new name is as it was seen.
        while !self.rename_held(from, to, mode).await? {}
        Ok(())
    }

    /// Renames, unless a file has just been made under the new name, which was free.
    async fn rename_held(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<bool> {
        let (old, new) = (self.below.child(from.0, from.1)?, self.below.child(to.0, to.1)?);
        let (at_old, at_new) = (old.clone(), new.clone());
        let stats = self.below.run(move |fs| {
            [&at_old, &at_new].iter().for_each(|path| fs.revalidate(path));
            let found = match fs.pin(&at_new) {
                Err(fault) if fault.errno == Errno::ENOENT => None,
                found => Some(found?),
            };
            Ok((fs.stat(&at_old)?, found))
        });
        let (moved, found) = stats.await?;
        let is_free = found.is_none();
        let (target, _pin) = found.unzip();
        let target = target.filter(|target| target.inode_id() != moved.inode_id());
        if target.is_some() && mode == RenameMode::NoReplace {
            return Err(Errno::EEXIST.into());
        }
        self.tell_rename(&moved.attr(), &old, &new).await?;
        match (&target, mode) {
            (Some(target), RenameMode::Replace) => self.before_removal(target, to, &new).await?,
            (Some(target), RenameMode::Exchange) => self.tell_rename(&target.attr(), &new, &old).await?,
            (Some(_), RenameMode::NoReplace) | (None, _) => {}
        }
        match rename_as_seen(&self.below, from, to, mode, is_free).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(fault) => {
                if let Some(target) = &target {
                    self.not_removed(target).await;
                }
                return Err(fault);
            }
        }
        for renamed in std::iter::once(&moved).chain(&target) {
            self.refresh_paths(renamed);
        }
        self.tell_moved(&moved, &old, &new).await;
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                self.tell_moved(&target, &new, &old).await;
            }
            Some(target) if mode == RenameMode::Replace => self.after_removal(&target).await?,
            _ => {}
        }
        Ok(true)
    }

    /// What is held against other nodes that rename or remove the same name.
    fn lock_of(&self, (dir, name): Name<'_>) -> InodeId {
        InodeId::of_name(self.below.inode(dir), name)
    }

    /// What a file's coordinator, or every node for a directory, must know before a rename, or of one more name.
    pub(super) async fn tell_rename(&self, attr: &Attr, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (from.to_vec(), to.to_vec());
        match attr.kind {
            FileKind::File => {
                let inode = attr.inode;
                self.tell(inode, CacheRequest::Renamed { inode: Some(inode), from, to }).await
            }
            FileKind::Directory => {
                let request = CacheRequest::Renamed { inode: None, from, to };
                let nodes = self.cluster.device_nodes().iter();
                let told = nodes.map(|&node| self.ask(node, request.clone()));
                futures_util::future::try_join_all(told).await.map(drop)
            }
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharacterDevice
            | FileKind::BlockDevice => Ok(()),
        }
    }

    /// A file is about to lose a name. When it has others, its coordinator must know one of them, or need none.
    /// When it is the last one, whoever has it open, on any node, goes on with the shared file, to which its content moves;
    /// the name's removal then frees it as the system does.
    async fn before_removal(&self, stat: &FileStat, (dir, name): Name<'_>, path: &[u8]) -> Result<()> {
        if stat.kind != FileKind::File {
            return Ok(());
        }
        let inode = stat.inode_id();
        if stat.nlink > 1 {
            let number = self.below.number_of(&Identity::of(stat));
            return match number.and_then(|number| self.below.other_path(number, dir, name)) {
                Some(other) => self.tell_rename(&stat.attr(), path, &other).await,
                None => self.write_back(inode).await.map(drop),
            };
        }
        // First: who opens it from now on is told.
        let told = match self.tell(inode, CacheRequest::Removing { inode }).await {
            Ok(_) => self.removing(inode).await,
            Err(fault) => Err(fault),
        };
        if told.is_err() {
            self.not_removed(stat).await;
        }
        told
    }

    /// Brings a file's content to the shared file; whether it was still there.
    async fn write_back(&self, inode: InodeId) -> Result<bool> {
        match self.tell(inode, CacheRequest::Writeback { inode }).await {
            Err(fault) if fault.kind() == FaultKind::Missing => Ok(false),
            told => told.map(|()| true),
        }
    }

    /// Whoever has the file open here goes on with the shared file.
    ///
    /// # Errors
    /// `ESTALE` when it is gone already, and its content with it.
    pub(super) async fn let_go(&self, inode: InodeId) -> Result<()> {
        // One that was opened while this was done for the others is not among them.
        while let Some(open) = self.opens.named_of(inode) {
            let _leaves = open.data.leaving.write().await;
            let opens = self.opens.all_of(&open.file);
            self.engine.flush(&open.data, false).await?;
            let is_there = self.write_back(inode).await?;
            // Where there is an orphan, its content was brought there before the file went.
            if !is_there && !opens.iter().any(|open| open.is_orphan()) {
                return Err(Errno::ESTALE.into());
            }
            self.look_at_content(opens.clone()).await?;
            opens.iter().for_each(|open| {
                open.set_orphan();
                open.data.set_lends(false);
            });
            self.engine.forget(inode);
        }
        Ok(())
    }

    /// Has the next reads of shared files be of what other nodes have brought there.
    async fn look_at_content(&self, opens: Vec<Arc<OpenFile>>) -> Result<()> {
        let look = move |_: &dyn SharedFs| opens.iter().try_for_each(|open| open.shared.revalidate_content());
        self.below.run(look).await
    }

    /// A node is about to take the last name of a file away, as its coordinator has been told.
    ///
    /// # Errors
    /// When the content cannot be brought to the shared file, for those who have it open here.
    pub async fn removing(&self, inode: InodeId) -> Result<()> {
        self.opens.mark_removed(inode);
        match self.let_go(inode).await {
            // Somebody was faster, and has seen to what becomes of its content.
            Err(fault) if fault.errno == Errno::ESTALE => Ok(()),
            let_go => let_go,
        }
    }

    /// It has not done so.
    pub fn kept(&self, inode: InodeId) {
        self.opens.mark_kept(inode);
        self.opens.with_number(inode).iter().for_each(|open| {
            open.set_named();
            open.data.set_lends(true);
        });
    }

    /// The removal that [`Self::before_removal`] prepared did not happen.
    async fn not_removed(&self, stat: &FileStat) {
        if stat.kind != FileKind::File || stat.nlink > 1 {
            return;
        }
        let inode = stat.inode_id();
        self.kept(inode);
        if let Err(fault) = self.tell(inode, CacheRequest::Kept { inode }).await {
            log::warn!("a file has kept its name, which its coordinator does not know: {fault}");
        }
    }

    /// A file has lost a name.
    async fn after_removal(&self, stat: &FileStat) -> Result<()> {
        if stat.kind != FileKind::File || stat.nlink > 1 {
            return Ok(());
        }
        let inode = stat.inode_id();
        self.engine.forget(inode);
        self.tell(inode, CacheRequest::Removed { inode }).await
    }
}

/// Renames; not when the new name was free and is so no more. Where the file system cannot tell, as NFS, a file that was made
/// under the name this moment is replaced unseen.
async fn rename_as_seen(
    below: &Passthrough,
    from: Name<'_>,
    to: Name<'_>,
    mode: RenameMode,
    is_free: bool,
) -> Result<bool> {
    if mode == RenameMode::Replace && is_free {
        match below.rename(from, to, RenameMode::NoReplace).await {
            Ok(()) => return Ok(true),
            Err(fault) if fault.errno == Errno::EEXIST => return Ok(false),
            Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {}
            Err(fault) => return Err(fault),
        }
    }
    below.rename(from, to, mode).await.map(|()| true)
}
