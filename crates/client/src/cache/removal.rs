//! Unlink and rename in the cache view: handling of dirty data and of open handles on all nodes when a name goes away.

use super::CacheView;
use crate::passthrough::{Identity, Passthrough};
use crate::types::{FileNumber, Name};
use futures_util::future::join;
use std::collections::BTreeSet;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Attr, Errno, FaultKind, FileKind, InodeId, Result};
use tameike_fabric::{Destination, join_calls, under_one_map};
use tameike_io::shared::FileStat;

impl CacheView {
    /// Unlinks anything but a directory.
    pub(super) async fn remove_name(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        let path = self.below.child(dir, name)?;
        let _held = self.locks.hold_names(BTreeSet::from([self.lock_of((dir, name))])).await?;
        let at = path.clone();
        let stat = self
            .below
            .run(move |fs| {
                fs.revalidate(&at);
                fs.stat(&at)
            })
            .await?;
        self.before_removal(&stat, (dir, name), &path).await?;
        // Pin the inode number: no new file may get it before the coordinator has dropped the old file's data.
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

    pub(super) async fn rename_name(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        let _held = self.locks.hold_names(BTreeSet::from([self.lock_of(from), self.lock_of(to)])).await?;
        // Retry if the new name has changed since the stat.
        while !self.rename_held(from, to, mode).await? {}
        Ok(())
    }

    /// Renames. Returns false if the new name was free and another process has just created a file there.
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
        // Two names of one file both stay.
        let is_same = target.as_ref().is_some_and(|target| target.inode_id() == moved.inode_id());
        let target = target.filter(|_| !is_same);
        if target.is_some() && mode == RenameMode::NoReplace {
            return Err(Errno::EEXIST.into());
        }
        self.report_rename(&moved.attr(), &old, &new).await?;
        let renamed = self.rename_reported((from, &old), (to, &new), target.as_ref(), mode, is_free);
        match renamed.await {
            Ok(true) => {}
            other => {
                self.report_rename_end(&moved, &old, &new, false).await;
                if let Some(target) = target.filter(|_| mode == RenameMode::Exchange) {
                    self.report_rename_end(&target, &new, &old, false).await;
                }
                return other;
            }
        }
        for renamed in std::iter::once(&moved).chain(&target) {
            self.refresh_paths(renamed);
        }
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                join(self.report_moved(&moved, &old, &new), self.report_moved(&target, &new, &old)).await;
            }
            target => {
                let ended = async {
                    if !is_same {
                        self.report_rename_end(&moved, &old, &new, true).await;
                    }
                };
                join(self.report_moved(&moved, &old, &new), ended).await;
                if let Some(target) = target.filter(|_| mode == RenameMode::Replace) {
                    self.after_removal(&target).await?;
                }
            }
        }
        Ok(true)
    }

    /// Renames what was reported, over or with `target`. As [`Self::rename_held`].
    async fn rename_reported(
        &self,
        (from, old): (Name<'_>, &[u8]),
        (to, new): (Name<'_>, &[u8]),
        target: Option<&FileStat>,
        mode: RenameMode,
        is_free: bool,
    ) -> Result<bool> {
        match (target, mode) {
            (Some(target), RenameMode::Replace) => self.before_removal(target, to, new).await?,
            (Some(target), RenameMode::Exchange) => self.report_rename(&target.attr(), new, old).await?,
            (Some(_), RenameMode::NoReplace) | (None, _) => {}
        }
        let renamed = rename_as_seen(&self.below, from, to, mode, is_free).await;
        if let (Err(_), Some(target)) = (&renamed, target) {
            self.not_removed(target).await;
        }
        renamed
    }

    /// Returns the inode whose lock excludes renames and removals of this name by other nodes.
    fn lock_of(&self, (dir, name): Name<'_>) -> InodeId {
        InodeId::of_name(self.below.inode(dir), name)
    }

    /// Announces a rename or a new link before it happens: for a file to its coordinator, for a directory to every device node.
    pub(super) async fn report_rename(&self, attr: &Attr, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (from.to_vec(), to.to_vec());
        match attr.kind {
            FileKind::File => {
                let inode = attr.inode;
                self.notify(inode, CacheRequest::Renamed { inode: Some(inode), from, to }).await
            }
            FileKind::Directory => self.ask_all_nodes(CacheRequest::Renamed { inode: None, from, to }).await,
            _ => Ok(()),
        }
    }

    /// Reports the end of a rename. Of the names of a file, the coordinator keeps some: old ones must not displace others.
    async fn report_rename_end(&self, stat: &FileStat, from: &[u8], to: &[u8], is_renamed: bool) {
        let inode = (stat.kind == FileKind::File).then(|| stat.inode_id());
        let request = CacheRequest::RenameEnded { inode, from: from.to_vec(), to: to.to_vec(), is_renamed };
        let reported = match (stat.kind, inode) {
            (FileKind::Directory, _) => self.ask_all_nodes(request).await,
            (_, Some(inode)) if !is_renamed || stat.nlink > 1 => self.notify(inode, request).await,
            _ => Ok(()),
        };
        if let Err(fault) = reported {
            log::info!("a coordinator does not know of the end of a rename: {fault}");
        }
    }

    /// Sends a request to all nodes that coordinate files.
    async fn ask_all_nodes(&self, request: CacheRequest) -> Result<()> {
        let asked = under_one_map(&self.cluster, |map| {
            let nodes = map.nodes().iter().map(|&node| Destination::Primary(node, map.epoch));
            join_calls(nodes.map(|to| self.ask(to, request.clone())).collect::<Vec<_>>())
        });
        asked.await.map(drop)
    }

    /// Prepares the removal of a name:
    ///
    /// - If the file has other names, its coordinator switches to one of them, or this node writes back the file so that none is needed.
    /// - If it is the last name, the coordinator has all nodes with open handles write back the content and switch to the shared file. The
    ///   shared file system then frees the file after the last close.
    async fn before_removal(&self, stat: &FileStat, (dir, name): Name<'_>, path: &[u8]) -> Result<()> {
        if stat.kind != FileKind::File {
            return Ok(());
        }
        let inode = stat.inode_id();
        if stat.nlink > 1 {
            let number = self.below.tree.number_of(&Identity::of(stat));
            return match number.and_then(|number| self.below.tree.other_path(number, dir, name)) {
                Some(other) => self.report_rename(&stat.attr(), path, &other).await,
                None => self.write_back(inode).await.map(drop),
            };
        }
        // First announce it: from then on the coordinator reports the removal to each new open.
        let announced = async {
            self.notify(inode, CacheRequest::Removing { inode }).await?;
            self.removing(inode).await
        };
        let announced = announced.await;
        if announced.is_err() {
            self.not_removed(stat).await;
        }
        announced
    }

    /// Writes back a file's content to the shared file. Returns false if that file is already gone.
    async fn write_back(&self, inode: InodeId) -> Result<bool> {
        match self.notify(inode, CacheRequest::Writeback { inode }).await {
            Err(fault) if fault.kind() == FaultKind::Missing => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// Switches all handles of the file on this node to the shared file. Fails with `ESTALE` if the file and its content are already gone.
    pub(super) async fn switch_to_shared(&self, inode: InodeId) -> Result<()> {
        // Repeat: a program may open the file during the switch.
        while let Some(open) = self.opens.named_of(inode) {
            let _leaves = open.data.leaving.write().await;
            let opens = self.opens.all_of(&open.file);
            self.engine.flush(&open.data, false).await?;
            let is_there = self.write_back(inode).await?;
            // If an orphan exists, its content was written back before the file went away.
            if !is_there && !opens.iter().any(|open| open.is_orphan()) {
                return Err(Errno::ESTALE.into());
            }
            let shared: Vec<_> = opens.iter().map(|open| open.shared.clone()).collect();
            // The next reads of the shared files must return what other nodes wrote back.
            self.below.run(move |_| shared.iter().try_for_each(|file| file.revalidate_content())).await?;
            opens.iter().for_each(|open| {
                open.set_orphan();
                open.data.set_grantable(false);
            });
            self.engine.forget(inode);
        }
        Ok(())
    }

    /// Handles the coordinator's report that a node is about to remove the last name of a file.
    pub async fn removing(&self, inode: InodeId) -> Result<()> {
        self.opens.set_removed(inode, true);
        match self.switch_to_shared(inode).await {
            // Another node has already removed the file and has written back its content.
            Err(fault) if fault.errno == Errno::ESTALE => Ok(()),
            switched => switched,
        }
    }

    /// Handles the report that the announced removal did not happen.
    pub fn kept(&self, inode: InodeId) {
        self.opens.set_removed(inode, false);
        self.opens.with_number(inode).iter().for_each(|open| {
            open.set_named();
            open.data.set_grantable(true);
        });
    }

    /// Reverts [`Self::before_removal`] after a failed removal.
    async fn not_removed(&self, stat: &FileStat) {
        if stat.kind != FileKind::File || stat.nlink > 1 {
            return;
        }
        let inode = stat.inode_id();
        self.kept(inode);
        if let Err(fault) = self.notify(inode, CacheRequest::Kept { inode }).await {
            log::warn!("cannot report the failed removal of {inode} to its coordinator: {fault}");
        }
    }

    /// Drops the file's data here and on its coordinator after the removal of its last name.
    async fn after_removal(&self, stat: &FileStat) -> Result<()> {
        if stat.kind != FileKind::File || stat.nlink > 1 {
            return Ok(());
        }
        let inode = stat.inode_id();
        self.engine.forget(inode);
        self.notify(inode, CacheRequest::Removed { inode }).await
    }
}

/// Renames. Returns false if the new name was free and no longer is. On file systems without `RENAME_NOREPLACE`, such as NFS, the rename
/// replaces a file that was created at this moment.
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
